"""Truncated kernel Stein discrepancy: particles against a density that ends at a border."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import Cloud, Score, mass_of, seeded
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._slicing import unit
from dmviz.losses._stein import stein_mean, stein_sums, through_score
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

Domain = Literal["ball", "box"]
_BLOCK = 1 << 20  # numbers handled at once


@entry
class TruncatedKsd:
    r"""Weigh a density cut off at a border against its particles, with test functions that vanish on that border.

    $$ F = E\,u(X,X') - \sum_{l=1}^{D} E\,v_l(X)^T (K' + \epsilon I)^{-1} E\,v_l(X), \qquad
       v_l(x) = s_l(x)\,\varphi(x) + \partial_l \varphi(x) $$

    with the score s of the target, the gaussian kernel k = exp(-r^2 / 2 l^2), u the Stein kernel of the kernel Stein
    discrepancy, boundary points z_1, ..., z_m, phi(x) = (k(x, z_1), ..., k(x, z_m)) and K' = k(z, z). It is that
    discrepancy with the kernel made to vanish at the boundary points, so that a density that is not 0 at the border,
    such as a normal law cut off at a circle, is not pulled through its border.
    Never more than the uncut discrepancy, and less with each boundary point. Unit: 1/length^2.

    The domain is a ball or a box around the origin; its boundary points are evenly spaced on the line and in the plane,
    and drawn once, uniformly, above. The target's score is that of the uncut density: only the domain truncates it.

    It fails where boundary points are sparse for the bandwidth: mass leaks between them. Many close ones make K'
    singular, which the ridge mends. Nothing holds particles inside but the discrepancy itself; let the setup keep them
    in a box for that. In many dimensions a border needs more points than there are.

    Williams and Liu 2023 (who take the median distance as bandwidth and a ridge of 0.001; they fit a density to points,
    here points move to a density).

    ```python
    >>> from dmviz.cloud import seeded
    >>> normal = Cloud(torch.zeros(1, 1), score=lambda x: -x)
    >>> far = TruncatedKsd(radius=900.0)(torch.tensor([[0.0]]), normal, seeded(0)).item()  # no border: |s|^2 + D / l^2
    >>> near = TruncatedKsd(radius=1.0)(torch.tensor([[0.0]]), normal, seeded(0)).item()
    >>> round(far, 4), near < far
    (1.0, True)

    ```
    """

    title = "Truncated kernel Stein discrepancy"
    family = "kernels"
    source = ("williams2023approximate", "liu2016kernelized")
    needs = "score"
    cost = "N^2 D + N m D time and one Jacobian product of the score, N + m^2 memory"
    degree = math.nan
    root = 2.0

    domain: Annotated[Domain, Help("Where the density ends: at a sphere, or at the faces of a box")] = "ball"
    radius: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="From the origin to the border, or to each face")
    ] = 2.0
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far particles push each other, and how far the border is felt. Small: each is alone",
        ),
    ] = 1.0
    boundary: Annotated[int, Range(1, 1000, log=True, help="Points on the border: few let mass leak between them")] = 64
    ridge: Annotated[
        float, Range(1e-8, 1.0, log=True, help="Small: exact on the border; large: the border is hardly felt")
    ] = 1e-3
    estimator: Annotated[
        Literal["biased", "unbiased"],
        Help("Biased keeps each particle's pair with itself: never negative. Unbiased is 0 on average at the target"),
    ] = "biased"

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({"nonnegative", "deterministic"} if self.estimator == "biased" else {"deterministic"})

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        s, a, border = _score(target)(x), mass_of(x, weight).double(), self._border(x)
        heard = torch.zeros(len(border.z), x.shape[1], dtype=torch.float64, device=x.device)
        for i in _rows(len(x), border):
            part = checkpoint(
                _sum, x[i].double(), s[i].double(), a[i], border, use_reentrant=False, preserve_rng_state=False
            )
            heard = heard + part
        value = stein_mean(x, s, mass_of(x, weight), self._kernel) - (heard * border.solve(heard)).sum()
        if self.estimator == "unbiased":
            value = (value - a.square() @ self._own(x, s, border)) * _pairs(a)
        return value.to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """-2 times the slope of what a particle hears from the others, less what the border takes away."""
        a, border = mass_of(x, weight), self._border(x)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            scores = _score(target)(leaf)
        s, wide = scores.detach(), a.double()
        sums = stein_sums(x.detach(), s, x.detach(), s, a, self._kernel, chosen(target.memo, x))
        share = [_sum(x[i].double(), s[i].double(), wide[i], border) for i in _rows(len(x), border)]
        heard = torch.stack(share).sum(0)
        taken = border.solve(heard)  # (m, D)
        value = wide @ sums.u - (heard * taken).sum()
        pull, by_score = sums.grad, sums.by_score
        for i in _rows(len(x), border):
            slope, turn = _slopes(x[i].double(), s[i].double(), taken, border)
            pull[i] -= slope
            by_score[i] -= turn
        if self.estimator == "unbiased":
            value, pull, by_score = self._off_diagonal(x, s, wide, border, (value, pull, by_score))
        v = (-2.0 * (pull + through_score(scores, leaf, by_score))).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """Which kernels the run will use; the border is factorised once for all runs."""
        self._border(target.x)
        return replace(target, memo={"compiled": chosen(None, target.x)})

    @property
    def _kernel(self) -> Kernel:
        return Kernel("gaussian", (self.bandwidth,))

    def _border(self, x: Tensor) -> "Border":
        setting = (self.domain, self.boundary, x.shape[1])
        z, factor = boundary_points(*setting), _factor(*setting, self.bandwidth / self.radius, self.ridge)
        return Border(z.to(x.device) * self.radius, self.bandwidth, factor.to(x.device))

    def _own(self, x: Tensor, s: Tensor, border: "Border") -> Tensor:
        """(N,) each particle's pair with itself, differentiable in x and s."""
        found = []
        for i in _rows(len(x), border):
            v = _features(x[i].double(), s[i].double(), border)  # (n, m, D)
            flat = v.movedim(1, 0).flatten(1)
            lost = (flat * border.solve(flat)).sum(0).view(len(v), -1).sum(1)
            found.append(s[i].double().square().sum(1) + x.shape[1] / self.bandwidth**2 - lost)
        return torch.cat(found)

    def _off_diagonal(
        self, x: Tensor, s: Tensor, a: Tensor, border: "Border", whole: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Value and slopes without each particle's pair with itself."""
        with torch.enable_grad():
            x_leaf, s_leaf = x.detach().requires_grad_(True), s.detach().requires_grad_(True)
            own = self._own(x_leaf, s_leaf, border)
            by_x, by_s = torch.autograd.grad(own.sum(), (x_leaf, s_leaf))
        value, pull, by_score = whole
        half = 0.5 * a[:, None] * _pairs(a)
        return (
            (value - a.square() @ own.detach()) * _pairs(a),
            pull * _pairs(a) - half * by_x,
            by_score * _pairs(a) - half * by_s,
        )


class Border(NamedTuple):
    """Boundary points, and the Cholesky factor of their kernel matrix with its ridge; all float64."""

    z: Tensor  # (m, D)
    bandwidth: float
    factor: Tensor  # (m, m)

    def solve(self, rows: Tensor) -> Tensor:
        """(K' + ridge I)^-1 times (m, ...)."""
        return torch.cholesky_solve(rows, self.factor)


@lru_cache(maxsize=32)
def boundary_points(domain: Domain, count: int, dim: int) -> Tensor:
    """(m, D) float64 points on the border of the unit ball or of the box [-1, 1]^D; the line has only two."""
    if dim == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    if dim == 2:
        step = torch.arange(count, dtype=torch.float64) / count
        if domain == "ball":
            return torch.stack(((2 * math.pi * step).cos(), (2 * math.pi * step).sin()), 1)
        side, along = (4 * step).floor(), 2 * (4 * step).frac() - 1  # around the square, from one corner
        turns = side * (math.pi / 2)
        x, y = torch.ones_like(along), along
        return torch.stack((turns.cos() * x - turns.sin() * y, turns.sin() * x + turns.cos() * y), 1)
    rng = seeded(0, 56)
    if domain == "ball":
        z = torch.randn(count, dim, generator=rng, dtype=torch.float64)
        return unit(z)
    z = 2 * torch.rand(count, dim, generator=rng, dtype=torch.float64) - 1
    face = torch.randint(2 * dim, (count,), generator=rng)
    z[torch.arange(count), face // 2] = (2 * (face % 2) - 1).double()
    return z


@lru_cache(maxsize=32)
def _factor(domain: Domain, count: int, dim: int, bandwidth: float, ridge: float) -> Tensor:
    z = boundary_points(domain, count, dim)
    gram = torch.exp(-0.5 * (z[:, None] - z[None]).square().sum(-1) / bandwidth**2)
    gram.diagonal().add_(ridge)
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor


def _features(x: Tensor, s: Tensor, border: Border) -> Tensor:
    """(N, m, D) v_l(x) at every boundary point: k (s - (x - z) / l^2)."""
    apart = x[:, None] - border.z[None]
    return _bumps(x, border)[..., None] * (s[:, None] - apart / border.bandwidth**2)


def _bumps(x: Tensor, border: Border) -> Tensor:
    """(N, m) k(x, z)."""
    r2 = x.square().sum(1)[:, None] + border.z.square().sum(1) - 2.0 * x @ border.z.T
    return (r2 * (-0.5 / border.bandwidth**2)).clamp(-80.0, 0.0).exp()


def _sum(x: Tensor, s: Tensor, a: Tensor, border: Border) -> Tensor:
    """(m, D) sum_i a_i v_l(x_i)."""
    w, scale = a[:, None] * _bumps(x, border), border.bandwidth**-2
    return w.T @ (s - scale * x) + scale * w.sum(0)[:, None] * border.z


def _slopes(x: Tensor, s: Tensor, c: Tensor, border: Border) -> tuple[Tensor, Tensor]:
    """Gradient in x at fixed score, and in the score, of sum_jl c_jl v_l(x)_j; (N, D) each, with c (m, D)."""
    k, scale = _bumps(x, border), border.bandwidth**-2
    turn = k @ c
    w = ((s - scale * x) @ c.T + scale * (border.z * c).sum(1)).mul_(k)  # k (s.c_j - (x - z_j).c_j / l^2)
    return -scale * (w.sum(1, keepdim=True) * x - w @ border.z + turn), turn


def _rows(n: int, border: Border) -> list[slice]:
    size = max(1, _BLOCK // border.z.numel())
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def _pairs(a: Tensor) -> Tensor:
    """1 / (1 - sum a_i^2), and 0 for a single particle, which has no pair."""
    rest = 1.0 - a.double().square().sum()
    return torch.where(rest > 1e-12, 1.0 / rest, 0.0)


def _score(target: Cloud) -> Score:
    if target.score is None:
        raise ValueError(
            "TKSD needs the score of its target, and this one has only samples. Pick a shape with a known density."
        )
    return target.score
