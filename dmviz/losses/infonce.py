"""InfoNCE and NT-Xent: each particle must be more like its own partner than like anyone else."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen, over_rows
from dmviz.losses._lines import accurate
from dmviz.losses._own_pairs import directions, turned
from dmviz.losses._pairs import DIRECT, tiles
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity

_LEAST = 1e-37  # what the log of nothing is taken of: a weightless pot has no one to hear


@entry
class InfoNce:
    r"""Let every particle find its partner, the target row with its own number, among all the others.

    $$ F = \sum_i a_i \Bigl[-\frac{s_{ii}}{\tau} + \log \sum_j N a_j\, e^{s_{ij} / \tau}\Bigr], \qquad
       s_{ij} = \cos(x_i, y_j) $$

    `one_way` asks each particle for its partner among the rows of the target (InfoNCE). `symmetric` averages that with
    each partner looking for its particle (as in CLIP). `nt_xent` puts both clouds into one pot: each of the 2N looks
    for its twin among the 2N - 1 others, those of its own cloud included, so that particles also push each other.

    Order matters: particle i belongs with target row i, from row 0 again where the target has fewer rows; rows beyond
    the last particle and the target's weights are not read. A pair counts with its particle's weight. Unit: nats; only
    directions count. A guess by chance scores log N, or log(2N - 1) for `nt_xent`, so values for different N do not
    compare; log N - F bounds the mutual information from below and can not exceed log N. Where all rows lie at right
    angles and every particle is with its partner the value is log(1 + (N - 1) exp(-1 / tau)), not 0.

    A small `tau` heeds only the nearest others, a large one all alike. Fails: two pairs of the same kind (the same
    class, the same point) are pushed apart like any others. A row of zeros has cosine 0 with all and does not move.

    Van den Oord et al. 2018; NT-Xent, Chen et al. 2020, equation 1.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.eye(3)
    >>> round(InfoNce(tau=1.0)(x, Cloud(x), seeded(0)).item(), 4)  # log(1 + 2 exp(-1))
    0.5514

    ```
    """

    title = "InfoNCE"
    family = "regularizers"
    source = ("oord2018representation", "chen2020simple")
    needs = "samples"
    cost = "N^2 D time, N memory"
    laws = frozenset({"rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0
    ordered = True

    variant: Annotated[
        Literal["one_way", "symmetric", "nt_xent"],
        Help("Who looks for whom: particles for partners, both for each other, or both among all"),
    ] = "one_way"
    tau: Annotated[
        float,
        Range(0.025, 10.0, log=True, help="Temperature. Small: only the nearest others push; large: all push alike"),
    ] = 0.2

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        a, u, v = mass_of(x, weight), directions(x), _partners(target, len(x))
        w = len(x) * a
        z, back = (self._sums(u, v, w), None) if self.variant == "one_way" else self._heard(u, v, w)
        return self._value(u, v, a, z, back).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """To the partner, and away from the others, each as much as it is mistaken for the partner."""
        a, u, v = mass_of(x, weight), directions(x), _partners(target, len(x))
        wide, w = accurate(x), len(x) * a
        compiled = x.shape[1] <= DIRECT and chosen(target.memo, x)
        back: Tensor | None = None
        with torch.no_grad():
            if self.variant == "one_way":  # what is heard and what pulls, in one pass
                z, found = self._heard_and_pulled(u, v, w, compiled)
                pull = found / z[:, None] - v.to(wide)
            else:
                z, heard = self._heard(u, v, w, compiled)
                back, pull = heard, self._mixed(u, v, w, z, heard, a, compiled) - 2.0 * v.to(wide)
            if self.variant == "nt_xent":
                pull = pull + self._mixed(u, u, w, z, z, a, compiled, True)
        way = turned(x, u, (pull * ((1.0 if back is None else 0.5) / self.tau)).to(x.dtype))
        if weight is not None:
            way = torch.where(weight[:, None] > 0, way, 0.0)  # a particle without weight has no velocity
        return Velocity(-way, self._value(u, v, a, z, back).to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing but the choice of kernels, so that a run keeps one."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    def chance(self, n: int) -> float:
        """The value of guessing, for n particles: the line to compare with."""
        return math.log(2 * n - 1 if self.variant == "nt_xent" else n)

    def _value(self, u: Tensor, v: Tensor, a: Tensor, z: Tensor, back: Tensor | None) -> Tensor:
        """The sums are those of exp((s - 1) / tau), so that no number is too large."""
        heard = z.log() if back is None else 0.5 * (z.log() + back.log())
        close = (u * v).sum(1).to(z.dtype)
        some = a > 0
        return (a.to(z.dtype) * torch.where(some, heard + (1.0 - close) / self.tau, 0.0)).sum()

    def _heard(self, u: Tensor, v: Tensor, w: Tensor, compiled: bool = False) -> tuple[Tensor, Tensor]:
        """What each particle, and each partner, hears in all where both look."""
        z, back = self._sums(u, v, w, compiled), self._sums(v, u, w, compiled)
        if self.variant == "symmetric":
            return z, back
        return z + self._sums(u, u, w, compiled, True), back + self._sums(v, v, w, compiled, True)

    def _heard_and_pulled(self, u: Tensor, v: Tensor, w: Tensor, compiled: bool) -> tuple[Tensor, Tensor]:
        """(N,) `_sums` and (N, D) the same sums times v_j."""
        if compiled:
            z, pulled = _similar_sums(u, v, w, (torch.ones_like(w), torch.zeros_like(w)), self.tau, False)
            return z.clamp_min(_LEAST), pulled
        found = self._products(u, v, torch.cat((w[:, None] * v, w[:, None]), 1))
        return found[:, -1].clamp_min(_LEAST), found[:, :-1]

    def _sums(self, u: Tensor, v: Tensor, w: Tensor, compiled: bool = False, same: bool = False) -> Tensor:
        """(N,) float64 sum_j w_j exp((s_ij - 1) / tau), without j = i where both are the same cloud."""
        if compiled:
            return _similar_sums(u, v, w, None, self.tau, same)[0].clamp_min(_LEAST)
        parts: dict[int, Tensor] = {}
        for i, j in tiles(len(u), len(v), u):
            e = checkpoint(_row_sums, u[i], v[j], w[j], self.tau, same and i == j, use_reentrant=False)
            parts[i.start] = parts.get(i.start, 0.0) + e.to(accurate(u))
        return torch.cat(list(parts.values())).clamp_min(_LEAST)

    def _mixed(
        self, u: Tensor, v: Tensor, w: Tensor, z: Tensor, back: Tensor, a: Tensor, compiled: bool, same: bool = False
    ) -> Tensor:
        """(N, D) float64: sum_j E_ij (w_j / z_i + N a_j / back_j) v_j, what the others of a cloud pull."""
        d, owed = v.shape[1], (len(u) * a.to(back.dtype) / back).to(v.dtype)
        if compiled:
            return _similar_sums(u, v, w, (1.0 / z, owed), self.tau, same)[1]
        pulled = self._products(u, v, torch.cat((w[:, None] * v, owed[:, None] * v), 1), same)
        return pulled[:, :d] / z[:, None] + pulled[:, d:]

    def _products(self, u: Tensor, v: Tensor, columns: Tensor, same: bool = False) -> Tensor:
        """(N, K) float64: E times columns (N, K), with E_ij = exp((s_ij - 1) / tau)."""
        found = torch.zeros(len(u), columns.shape[1], dtype=accurate(u), device=u.device)
        for i, j in tiles(len(u), len(v), u):
            found[i] += _similar(u[i], v[j], self.tau, same and i == j) @ columns[j]
        return found


def _partners(target: Cloud, n: int) -> Tensor:
    """(N, D) directions of the target rows that belong with the particles."""
    rows = torch.arange(n, device=target.x.device) % len(target)
    return directions(target.x.detach())[rows]


def _similar(u: Tensor, v: Tensor, tau: float, same: bool) -> Tensor:
    """(B, C) exp((s - 1) / tau)."""
    e = (u @ v.T).sub_(1.0).mul_(1.0 / tau).exp_()
    return e.fill_diagonal_(0.0) if same else e


def _similar_sums(
    u: Tensor, v: Tensor, w: Tensor, pulls: tuple[Tensor, Tensor] | None, tau: float, same: bool
) -> tuple[Tensor, Tensor]:
    """(N,) sum_j w_j E_ij and, for `pulls` r (N,) and owed (M,), (N, D) sum_j E_ij (r_i w_j + owed_j) v_j; compiled."""
    from dmviz.losses import _fused_more

    s, grad = torch.zeros(len(u), dtype=torch.float64), torch.zeros(u.shape, dtype=torch.float64)
    mine, owed = (t.to(u.dtype).contiguous() for t in pulls or (w, w))
    across, share, u, back = v.T.contiguous().numpy(), w.contiguous().numpy(), u.contiguous(), owed.numpy()
    scale = u.new_tensor(1.0 / tau).numpy()[()]

    def work(i: slice) -> None:
        rows = (t[i].numpy() for t in (s, grad))
        first = i.start if same else -1
        _fused_more.similar_rows(
            u[i].numpy(), across, share, back, mine[i].numpy(), scale, first, *rows, pulls is not None
        )

    over_rows(work, len(u), len(u) * len(v))
    return s, grad


def _row_sums(u: Tensor, v: Tensor, w: Tensor, tau: float, same: bool) -> Tensor:
    e = ((u @ v.T - 1.0) / tau).exp()
    if same:
        e = e * (1.0 - torch.eye(len(u), dtype=e.dtype, device=e.device))
    return e @ w
