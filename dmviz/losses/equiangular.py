"""Equiangular basis vectors: more directions than dimensions, no two of them close to the same line."""

import math
from dataclasses import replace
from typing import Annotated

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


@entry
class Equiangular:
    r"""Turn particles until no two of them lie near the same line through the origin.

    $$ F = \sum_{i \ne j} a_i a_j \bigl[\,|u_i \cdot u_j| - c\,\bigr]_+, \qquad u = x / |x| $$

    The mean, over pairs, of how much their |cosine| exceeds the threshold c; the paper has the sum, N^2 times as much.
    The target is not read. Unit: none; between 0 and 1 - c. Only directions count, and opposite ones are the same: both
    ends of a line are one vector. N directions in D dimensions can not all have |cosine| below Welch's bound,

    $$ \max_{i \ne j} |u_i \cdot u_j| \ge \sqrt{\frac{N - D}{D (N - 1)}}, $$

    which a regular simplex, among others, attains. With `welch` that bound is the threshold (N is 1 / sum a_i^2 where
    weights differ); a fixed one below it never reaches 0. `threshold` 0 keeps every pair pushing, at a force that does
    not fade; near 1 only vectors that almost coincide push.

    Fails: for many particles in two or three dimensions the bound is near 1 / sqrt(D) and far from what can be reached,
    and particles come to rest where a few pairs coincide and all others are at right angles. Each pair pushes fully or
    not at all, so particles jitter unless steps are short.

    Shen et al. 2023; the bound, Welch 1974. `simplex` gives the vectors of the regular simplex.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[1.0, 0.0], [3.0, 3.0]])
    >>> round(Equiangular(threshold=0.5)(x, Cloud(x), seeded(0)).item(), 4)  # (1 / sqrt(2) - 0.5) / 2
    0.1036

    ```
    """

    title = "Equiangular basis vectors"
    family = "regularizers"
    source = ("shen2023equiangular", "welch1974lower")
    needs = "nothing"
    cost = "N^2 D time, N memory"
    laws = frozenset({"nonnegative", "rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0

    threshold: Annotated[
        float,
        Range(
            0.0, 1.0, help="|cosine| that is still allowed: 0 keeps all pairs pushing, 1 none", when={"welch": (False,)}
        ),
    ] = 0.2
    welch: Annotated[bool, Help("Take as threshold the least that so many vectors can reach in so many dimensions")] = (
        False
    )

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        a, u = mass_of(x, weight), directions(x)
        total, allowed = torch.zeros((), dtype=accurate(x), device=x.device), self._allowed(x, a)
        for i, j in tiles(len(x), len(x), x):
            rows = checkpoint(_excess, u[i], u[j], a[j], allowed, i == j, use_reentrant=False)
            total = total + a[i].to(total.dtype) @ rows.to(total.dtype)
        return total.to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Along the sphere, away from every line that is too near."""
        a, u = mass_of(x, weight), directions(x)
        allowed = self._allowed(x, a)
        total = torch.zeros((), dtype=accurate(x), device=x.device)
        grad = torch.zeros_like(x, dtype=total.dtype)
        if x.shape[1] <= DIRECT and chosen(target.memo, x):
            s, grad = _compiled_excess(u, u, a, allowed, True)
            return Velocity(_weighed(-2.0 * turned(x, u, grad.to(x.dtype)), weight), (a.double() @ s).to(x.dtype))
        for i, j in tiles(len(x), len(x), x):
            if j.start < i.start:
                continue
            cosine = u[i] @ u[j].T
            excess = _excess_of(cosine, allowed, i == j)
            total += (1.0 if i == j else 2.0) * (a[i].to(total.dtype) @ (excess @ a[j]).to(total.dtype))
            sign = excess.sign_().copysign_(cosine)
            grad[i] += sign @ (a[j][:, None] * u[j])
            if i != j:
                grad[j] += sign.T @ (a[i][:, None] * u[i])
        return Velocity(_weighed(-2.0 * turned(x, u, grad.to(x.dtype)), weight), total.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The push felt at any points (K, D) among particles x."""
        with torch.no_grad():
            a, u, here = mass_of(x, weight), directions(x), directions(at)
            allowed = self._allowed(x, a)
            grad = torch.zeros_like(at, dtype=accurate(x))
            if x.shape[1] <= DIRECT and chosen(target.memo, x):
                _, grad = _compiled_excess(here, u, a, allowed, False)
                return -2.0 * turned(at, here, grad.to(at.dtype))
            for i, j in tiles(len(at), len(x), x):
                cosine = here[i] @ u[j].T
                sign = _excess_of(cosine, allowed, False).sign_().copysign_(cosine)
                grad[i] += sign @ (a[j][:, None] * u[j])
            return -2.0 * turned(at, here, grad.to(at.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing but the choice of kernels, so that a run keeps one."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    def _allowed(self, x: Tensor, a: Tensor) -> float:
        return welch_bound(1.0 / float(a.to(accurate(a)).square().sum()), x.shape[1]) if self.welch else self.threshold


def _weighed(v: Tensor, weight: Tensor | None) -> Tensor:
    """A particle without weight has no velocity."""
    return v if weight is None else torch.where(weight[:, None] > 0, v, 0.0)


@torch.no_grad()
def _compiled_excess(u: Tensor, others: Tensor, a: Tensor, allowed: float, same: bool) -> tuple[Tensor, Tensor]:
    """(N,) and (N, D) float64: weighed sums of how much each |cosine| is too large, and their gradients in u."""
    from dmviz.losses import _fused_more

    s, grad = torch.zeros(len(u), dtype=torch.float64), torch.zeros(u.shape, dtype=torch.float64)
    across, share = others.T.contiguous().numpy(), a.to(u.dtype).contiguous().numpy()
    least, u = u.new_tensor(allowed).numpy()[()], u.contiguous()

    def work(i: slice) -> None:
        first = i.start if same else -1
        _fused_more.excess_rows(u[i].numpy(), across, share, least, first, s[i].numpy(), grad[i].numpy())

    over_rows(work, len(u), len(u) * len(others))
    return s, grad


def _excess_of(cosine: Tensor, allowed: float, same: bool) -> Tensor:
    """(B, C) by how much each |cosine| is too large, 0 elsewhere and on the diagonal of one cloud."""
    if same:
        cosine.fill_diagonal_(0.0)
    return cosine.abs().sub_(allowed).clamp_min_(0.0)


def _excess(u: Tensor, other: Tensor, b: Tensor, allowed: float, same: bool) -> Tensor:
    """(B,) weighed sums of how much |cosine| is too large."""
    excess = ((u @ other.T).abs() - allowed).clamp_min(0.0)
    if same:
        excess = excess * (1.0 - torch.eye(len(u), dtype=u.dtype, device=u.device))
    return excess @ b


def welch_bound(n: float, dim: int) -> float:
    """The least that the largest |cosine| among n directions can be; 0 where all fit at right angles.

    >>> welch_bound(3, 2), welch_bound(2, 5)
    (0.5, 0.0)
    """
    return math.sqrt((n - dim) / (dim * (n - 1))) if n > max(dim, 1) else 0.0


def simplex(n: int) -> Tensor:
    """(n, n) float64 vertices of a regular simplex of n points on the unit sphere; they span n - 1 dimensions.

    Any two have cosine -1 / (n - 1) and distance sqrt(2 n / (n - 1)).
    """
    if n < 2:
        raise ValueError(f"simplex: n must be at least 2, got {n}")
    return math.sqrt(n / (n - 1)) * (torch.eye(n, dtype=torch.float64) - 1.0 / n)
