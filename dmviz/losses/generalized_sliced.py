"""Generalized sliced Wasserstein distance: transport of what curved functions see, polynomials or circles."""

import math
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._lines import Staircase, accurate, power_on_lines, pull_on_lines
from dmviz.losses._slicing import fixed_unit_vectors, unit_vectors
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

Defining = Literal["linear", "cubic", "quintic", "circular"]
_DEGREES = {"linear": 1, "cubic": 3, "quintic": 5}
_MONOMIALS = 50_000  # most of them that a polynomial may have
_BLOCK = 1 << 18  # numbers handled at once
_READ = 1 << 20  # readings kept at once
_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "triangle"})


@entry
class GeneralizedSliced:
    r"""Look through many curved functions instead of along lines, and match what each of them reads in order.

    $$ F = \frac1L \sum_{l=1}^{L} W_p^p(g_l \# \mu,\ g_l \# \nu),\qquad
       g_l(x) = \sum_{|\alpha| = m} \theta_{l\alpha}\, x^\alpha \quad\text{or}\quad g_l(x) = |x - r\,\theta_l| $$

    `defining`: a homogeneous polynomial of odd degree m = 1 (linear: sliced Wasserstein), 3 or 5, with coefficients
    even on the unit sphere, or the distance from a centre drawn evenly on the sphere of `radius` r about the origin.
    Only odd degrees tell all laws apart, so the authors' default of 2 is not offered. The value is the mean over the L
    functions (the released code returns the root of a sum); unit: length to the power p m, or p for circles.

    The pull on a particle is the way to its goal on each reading times the function's gradient: far from the origin
    polynomials pull very hard, at the origin not at all. Circles pull away from and towards their centres.

    Fails: the origin matters, so moving both clouds changes the value; a cubic reads 1,000 at a distance of 10, so put
    clouds near 0 and at scale 1 and take small steps, smaller where particles lie further out. There are
    C(D + m - 1, m) monomials, 50,000 at most. Few circles, or one far away, leave places that look alike.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    >>> loss = GeneralizedSliced(defining="cubic")
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # on a line the only monomial is x^3: (8 - 1)^2
    49.0

    ```
    """

    title = "Generalized sliced Wasserstein"
    family = "slices"
    source = ("kolouri2019generalized",)
    needs = "samples"
    cost = "L (N + M) (C + log) time for C monomials, N + M memory"

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
    defining: Annotated[
        Defining, Help("what each look reads: a position along a line, a polynomial of degree 3 or 5, or a distance")
    ] = "cubic"
    radius: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="how far the circles' centres lie from 0: far ones read like lines, near ones the distance from 0",
            when={"defining": ("circular",)},
        ),
    ] = 2.0
    slices: Annotated[
        int, Range(1, 2048, log=True, help="functions to look through: few are fast and rough, many slow and smooth")
    ] = 64
    draw: Annotated[
        Literal["fresh", "fixed"],
        Help("fresh: new functions at every step, right on average; fixed: the same all along"),
    ] = "fresh"
    function_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed functions", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = set(_LAWS)
        if self.draw == "fixed":
            found.add("deterministic")
        if self.defining == "linear":
            found.add("shift_free")
        return frozenset(found)

    @property
    def degree(self) -> float:
        return float(self.power * _DEGREES.get(self.defining, 1))

    @property
    def root(self) -> float:
        return float(self.power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there, functions = self._seen(x, target, rng)
        costs = [
            power_on_lines(self._readings(here, some), weight, self._readings(there, some), target.weight, self.power)
            for some in self._blocks(functions, len(x) + len(target))
        ]
        return torch.cat(costs).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: the pull on each reading, through the chain rule."""
        here, there, functions = self._seen(x, target, rng)
        v, value = torch.zeros_like(here), torch.zeros((), dtype=here.dtype, device=x.device)
        for some in self._blocks(functions, len(x) + len(target)):
            stairs = Staircase.of(self._readings(there, some), target.weight)
            pull = pull_on_lines(self._readings(here, some), weight, stairs, self.power)
            v += self._pulled(here, some, pull.v)
            value += pull.value.sum()
        v = torch.where(mass_of(x, weight)[:, None] > 0, v / len(functions), 0.0)
        return Velocity(v.to(x.dtype), (value / len(functions)).to(x.dtype))

    def _seen(self, x: Tensor, target: Cloud, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Both clouds in float64, since powers lose digits, and (L, C) coefficients or (L, D) centres."""
        y = target.x.detach().to(accurate(x))
        x = x.to(y)
        if self.defining == "linear":  # what a line reads may be read from anywhere
            centre = y.mean(0)
            x, y = x - centre, y - centre
        if self.defining == "circular":
            return x, y, self.radius * self._directions(target.dim, rng).to(x)
        return x, y, self._directions(monomials(target.dim, _DEGREES[self.defining]), rng).to(x)

    def _directions(self, dim: int, rng: Generator) -> Tensor:
        """(L, D) unit vectors; for circles also opposite ones, which lines need not tell apart."""
        if self.defining != "circular":
            if self.draw == "fixed":
                return fixed_unit_vectors("auto", self.slices, dim, self.function_seed)
            return unit_vectors("auto", self.slices, dim, rng)
        rng = seeded(self.function_seed, 54) if self.draw == "fixed" else rng
        half = unit_vectors("auto", -(-self.slices // 2), dim, rng)
        sign = 1.0 - 2.0 * torch.randint(2, (1,), generator=rng, device=rng.device).to(half)
        return sign * torch.cat((half, -half))[: max(self.slices, 1)]

    def _blocks(self, functions: Tensor, width: int) -> list[Tensor]:
        """Functions in groups whose readings take little room."""
        return list(torch.split(functions, max(1, _READ // max(width, 1))))

    def _readings(self, x: Tensor, theta: Tensor) -> Tensor:
        """(L, N) what each function reads at each point, differentiable in x."""
        if self.defining == "circular":
            return distances(x, theta)
        if self.defining == "linear":
            return theta @ x.T
        return polynomials(x, theta, _DEGREES[self.defining])

    def _pulled(self, x: Tensor, theta: Tensor, pull: Tensor) -> Tensor:
        """(N, D) sum over functions of pull (L, N) times the function's gradient."""
        if self.defining == "circular":
            far = distances(x, theta)
            share = torch.where(far > 0, pull / far.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
            return share.sum(0)[:, None] * x - share.T @ theta
        if self.defining == "linear":
            return pull.T @ theta
        return polynomial_pull(x, theta, _DEGREES[self.defining], pull)


def distances(x: Tensor, centres: Tensor) -> Tensor:
    """(L, N) distances from (L, D) centres."""
    if x.shape[1] <= 3:
        ways = [x[None, :, k] - centres[:, k, None] for k in range(x.shape[1])]
        square = torch.stack([way.square() for way in ways]).sum(0)
    else:
        square = (x.square().sum(1) + centres.square().sum(1, keepdim=True) - 2 * centres @ x.T).clamp_min(0)
    # A root has no slope at 0, where a point lies on a centre: use 0 there.
    return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)


def monomials(dim: int, degree: int) -> int:
    """How many there are, or a ValueError if too many."""
    count = math.comb(dim + degree - 1, degree)
    if count > _MONOMIALS:
        raise ValueError(
            f"GeneralizedSliced: a polynomial may have at most {_MONOMIALS:,} monomials, and degree {degree} in {dim} "
            f"dimensions has {count:,}. Choose a lower degree, linear or circular."
        )
    return count


@lru_cache(maxsize=8)
def factors(dim: int, degree: int) -> Tensor:
    """(C, m) which coordinates each monomial multiplies: x0 x0 x0, x0 x0 x1, ..."""
    return torch.tensor(list(combinations_with_replacement(range(dim), degree)))


def polynomials(x: Tensor, theta: Tensor, degree: int) -> Tensor:
    """(L, N) homogeneous polynomials with coefficients (L, C), monomials in the order of `factors`."""
    which = factors(x.shape[1], degree).to(x.device)
    blocks = [theta @ x[part][:, which].prod(-1).T for part in _parts(len(x), which.numel())]
    return torch.cat(blocks, dim=1)


def polynomial_pull(x: Tensor, theta: Tensor, degree: int, pull: Tensor) -> Tensor:
    """(N, D) sum over l of pull (L, N) times the gradient of polynomial l."""
    which = factors(x.shape[1], degree).to(x.device)
    v = torch.zeros_like(x)
    for part in _parts(len(x), which.numel()):
        coefficient, values = pull[:, part].T @ theta, x[part][:, which]  # (B, C) and (B, C, m)
        for k in range(degree):
            # Each factor of a monomial in turn: the product of the others is what it is multiplied by.
            others = torch.cat((values[..., :k], values[..., k + 1 :]), dim=-1).prod(-1)
            v[part].index_add_(1, which[:, k], coefficient * others)
    return v


def _parts(count: int, width: int) -> list[slice]:
    """Blocks of points."""
    size = max(1, _BLOCK // max(width, 1))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
