"""Kernel inception distance: MMD with a polynomial kernel."""

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._polynomial import Heard, Polynomial, few, heard, mean, moments
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class KernelInceptionDistance:
    r"""Compare means, spreads and skews of two clouds at once, through one polynomial of inner products.

    $$ F = E\,k(X,X') + E\,k(Y,Y') - 2\,E\,k(X,Y), \qquad
       k(x,y) = \Bigl(\frac{x\cdot y}{D\,s^2} + c\Bigr)^p $$

    with order p = 3, constant c = 1 and scale s = 1 by default, so that gamma = 1 / D. On features of an Inception
    network this is the distance of that name; here the points themselves are the features. The unbiased estimator,
    which evaluations report, leaves out each point's pair with itself: 0 on average for equal laws, so it can be
    negative, and it has no least value: followed as a flow, particles in the end run apart without limit. So the biased
    one, never negative, comes first here. Unit: none.

    Order 1 sees the means alone, 2 means and covariances, 3 all moments up to the third: two laws that share those are
    0 apart, so the distance is no metric of laws. Points far from the origin dominate: a small scale lets the highest
    moment rule, a large one leaves only the means. It depends on where the origin is. Followed as a flow its speed
    grows with the power p - 1 of the distance to the origin: take short steps, or a larger scale.

    "subsets" averages over random subsets without replacement, as evaluations do (50 of 1,000 there); a weighted cloud
    keeps its weights within each subset, scaled to sum to 1 there, which is right on average only for equal weights.

    Binkowski et al. 2018. In few dimensions moments are summed instead of pairs, which is exact and takes no time.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [1.0]])
    >>> KernelInceptionDistance()(here, Cloud(there), seeded(0)).item()  # 1 + 2^3 - 2
    7.0

    ```
    """

    title = "Kernel inception distance"
    family = "kernels"
    source = ("binkowski2018demystifying",)
    needs = "samples"
    cost = "(N + M) D^p time in few dimensions, else (N + M) N D; N + M memory"
    degree = 0.0
    root = 2.0

    order: Annotated[int, Range(1, 5, help="Highest moment that is seen: 1 means, 2 spreads, 3 skews")] = 3
    scale: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Size of a typical coordinate. Small: the highest moment rules; large: the means alone",
        ),
    ] = 1.0
    constant: Annotated[float, Range(0.0, 10.0, help="0 leaves only the highest moment; more lets the lower in")] = 1.0
    estimator: Annotated[
        Literal["biased", "unbiased"],
        Help("Biased keeps each point's pair with itself: never negative. Unbiased is 0 on average, as reported"),
    ] = "biased"
    points: Annotated[
        Literal["all", "subsets"],
        Help("all: every point, once; subsets: mean over random parts, as in evaluations"),
    ] = "all"
    subsets: Annotated[
        int, Range(1, 100, help="how many random parts: more are steadier and slower", when={"points": ("subsets",)})
    ] = 10
    subset_size: Annotated[
        int,
        Range(2, 10_000, log=True, help="points in each part: small parts are noisy", when={"points": ("subsets",)}),
    ] = 1000

    @property
    def laws(self) -> frozenset[Law]:
        always: set[Law] = {"rotation_free"}
        if self.estimator == "biased":
            always |= {"nonnegative"}
        if self.points == "all":
            always |= {"symmetric", "deterministic"}
            if self.estimator == "biased":
                always |= {"zero_at_target", "triangle"}
        return frozenset(always)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        parts = self._parts(x, target, rng, weight)
        for part in parts:
            own = mean(part.x, part.x, part.a, part.a, self._kernel(target))
            own = self._off_diagonal(own, part.x.double(), part.a.double(), target)
            cross = mean(part.x, part.target.x, part.a, part.target.mass(), self._kernel(target))
            total = total + own - 2.0 * cross + self._target_term(part.target)
        return (total / len(parts)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """-2 grad f, f the witness, by moments or by products in tiles."""
        v, value = torch.zeros_like(x, dtype=torch.float64), torch.zeros((), dtype=torch.float64, device=x.device)
        parts = self._parts(x, target, rng, weight)
        for part in parts:
            kernel, a, z = self._kernel(target), part.a.double(), part.x.double()
            own, cross = heard(z, z, a, kernel), self._from_target(z, part.target)
            value += self._off_diagonal(a @ own.s, z, a, target) - 2.0 * (a @ cross.s) + self._target_term(part.target)
            pull = own.grad
            if self.estimator == "unbiased":
                self_slope = kernel.slope(z.square().sum(1))[:, None] * z
                pull = (pull - a[:, None] * self_slope) * _pairs_scale(a)
            v.index_add_(0, part.rows, 2.0 * (cross.grad - pull) / part.share)
        v = (v / len(parts)).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, (value / len(parts)).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """-2 grad f at any points (K, D), among all particles, also where steps take subsets."""
        a = mass_of(x, weight)
        own, cross = heard(at, x, a, self._kernel(target)).grad, self._from_target(at, target).grad
        return (2.0 * (cross - (own * _pairs_scale(a) if self.estimator == "unbiased" else own))).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's own term, and its moments where they are few."""
        kernel, b = self._kernel(target), target.mass()
        memo = {"of": target.x, "loss": self, "own": self._own_term(target)}
        if few(target.x, kernel):
            memo["moments"] = moments(target.x, b, kernel)
        return replace(target, memo=memo)

    def _kernel(self, target: Cloud) -> Polynomial:
        return Polynomial(self.order, 1.0 / (target.dim * self.scale**2), self.constant)

    def _from_target(self, x: Tensor, target: Cloud) -> Heard:
        known = target.memo["moments"] if self._mine(target) and target.memo and "moments" in target.memo else None
        return heard(x, target.x, target.mass(), self._kernel(target), known)

    def _target_term(self, target: Cloud) -> Tensor:
        return target.memo["own"] if self._mine(target) and target.memo else self._own_term(target)

    def _mine(self, target: Cloud) -> bool:
        return bool(target.memo) and target.memo.get("of") is target.x and target.memo.get("loss") == self  # type: ignore[union-attr]

    @torch.no_grad()
    def _own_term(self, target: Cloud) -> Tensor:
        y, b = target.x.double(), target.mass().double()
        return self._off_diagonal(b @ heard(y, y, b, self._kernel(target)).s, y, b, target)

    def _off_diagonal(self, total: Tensor, x: Tensor, a: Tensor, target: Cloud) -> Tensor:
        """The mean over pairs of different points where that is asked for, from the mean over all pairs."""
        if self.estimator == "biased":
            return total
        return (total - a.square() @ self._kernel(target).at(x.square().sum(1))) * _pairs_scale(a)

    def _parts(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None) -> "list[_Part]":
        a = mass_of(x, weight)
        if self.points == "all" or max(len(x), len(target)) <= self.subset_size:
            return [_Part(torch.arange(len(x), device=x.device), x, a, a.new_ones((), dtype=torch.float64), target)]
        found = []
        for _ in range(self.subsets):
            i, j = (torch.randperm(len(z), generator=rng, device=rng.device)[: self.subset_size] for z in (x, target.x))
            i, j = i.to(x.device), j.to(x.device)
            share, b = a[i].double().sum().clamp_min(1e-300), target.mass()[j]
            found.append(_Part(i, x[i], a[i] / share.to(a.dtype), share, Cloud(target.x[j], b / b.sum())))
        return found


class _Part(NamedTuple):
    """Particles and target points that are compared with each other."""

    rows: Tensor  # (n,) which particles
    x: Tensor  # (n, D)
    a: Tensor  # (n,) sums to 1
    share: Tensor  # () of all weight that these particles have
    target: Cloud


def _pairs_scale(a: Tensor) -> Tensor:
    """1 / (1 - sum a_i^2), and 0 for a single point, which has no pair."""
    rest = 1.0 - a.double().square().sum()
    return torch.where(rest > 1e-12, 1.0 / rest, 0.0)
