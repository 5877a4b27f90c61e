"""RDMReg: sparse particles, matched on lines to a law that is zero as often as one asks for."""

import math
from functools import lru_cache
from typing import Annotated, Literal

import torch
from scipy.optimize import brentq
from scipy.special import gammainc, gammaincc, gammaincinv
from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._slicing import Slices, fixed_unit_vectors, sliced_power, sliced_velocity, unit_vectors
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class RdmReg:
    r"""Make the particles' law one in which every coordinate is exactly zero with a chosen probability.

    $$ F = \frac1L \sum_{l=1}^{L} W_2^2(\theta_l \cdot \mu,\ \theta_l \cdot \rho), \qquad
       \rho = \text{law of } s\,\max(0,\ m + \sigma e)\ \text{in every coordinate},\quad
       p(e) \propto e^{-|e|^p / p} $$

    The target of the page is not read: the target is rho, the rectified generalized Gaussian, of which as many points
    are drawn as there are particles; s is `scale`. p = 2 is a normal, p = 1 a Laplace law before the negative part is
    cut to 0. With F the distribution function of e, the expected number of coordinates that are not zero is

    $$ E|z|_0 = D\, F(m / \sigma) = \frac D2 \Bigl(1 + \mathrm{sign}(m)\, P\bigl(1/p,\ |m / \sigma|^p / p\bigr)\Bigr) $$

    with P the regularized lower incomplete gamma function; for p = 1 and m < 0 it is (D/2) exp(m / sigma).
    `expected_active` gives it. Unit: length squared, without a factor 1/2, as sliced W2 of which this is a case.

    `mean` far below 0 leaves few coordinates active, far above none at rest. `width` sets sigma so that the variance is
    1 before or after the cut. `rectify` takes the particles for what goes into the cut, as in the paper, whose encoder
    ends in one: a negative coordinate then counts as 0 and, having no gradient, stays dead. Without it particles come
    near 0 but seldom are 0.

    Fails: the drawn points differ from rho by chance, so the value does not fall to 0 but to about what two draws are
    apart, roughly as 1 / N. A draw that stays fixed is matched point by point, chance included.

    Kuang et al. 2026, equations 8 to 15, where 8,192 lines see thousands of dimensions.

    ```python
    >>> round(RdmReg(mean=-1.0).expected_active(100), 2)  # 50 exp(-sqrt(2))
    12.16

    ```
    """

    title = "Rectified distribution matching"
    family = "regularizers"
    source = ("kuang2026rectified",)
    needs = "nothing"
    cost = "L N (D + log N) time, N + M memory"
    degree = 2.0
    root = 2.0

    p: Annotated[
        float, Range(0.25, 8.0, log=True, help="Shape. Below 1: a spike with long tails; 1 Laplace; 2 normal; 8 a box")
    ] = 1.0
    mean: Annotated[
        float, Range(-5.0, 5.0, help="Middle of the law before the cut: -3 leaves 1 in 100 active, +3 nearly all")
    ] = 0.0
    width: Annotated[
        Literal["before", "after"], Help("Variance 1 before the cut, or after it (wider: sparse laws spread more)")
    ] = "before"
    scale: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="Size of the whole law: all its values are multiplied")
    ] = 1.0
    rectify: Annotated[bool, Help("Negative coordinates of particles count as 0 and stay where they are")] = False
    slices: Annotated[
        int, Range(1, 8192, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 64
    draw: Annotated[
        Literal["fresh", "fixed"],
        Help("fresh: new lines and new points of the law at every step, right on average; fixed: the same all along"),
    ] = "fresh"
    draw_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed lines and points", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({"nonnegative", "deterministic"} if self.draw == "fixed" else {"nonnegative"})

    @property
    def sigma(self) -> float:
        """Width of the law before the cut and before `scale`."""
        return gennorm_sigma(self.p) if self.width == "before" else rectified_sigma(self.p, self.mean)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return sliced_power(torch.relu(x) if self.rectify else x, *self._asked(x, rng), weight, 2)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Twice the mean over lines of the way to the drawn point of the same rank."""
        seen = torch.relu(x) if self.rectify else x
        v, value = sliced_velocity(seen, *self._asked(x, rng), weight, 2)
        return Velocity(torch.where(x > 0, v, 0.0) if self.rectify else v, value)

    def expected_active(self, dim: int) -> float:
        """Expected number of coordinates, of `dim`, that are not zero."""
        return dim * active_fraction(self.p, self.mean, self.sigma)

    def mean_and_variance(self) -> tuple[float, float]:
        """Of one coordinate, with `scale`."""
        mean, variance = rectified_moments(self.p, self.mean, self.sigma)
        return self.scale * mean, self.scale**2 * variance

    def sample(self, n: int, dim: int, rng: Generator) -> Tensor:
        """(n, dim) float64 points of the law."""
        return self.scale * _drawn(self.p, self.mean, self.sigma, (n, dim), rng)

    def _asked(self, x: Tensor, rng: Generator) -> tuple[Cloud, Slices]:
        """The points to match, and the lines to look along."""
        n, dim = x.shape
        if self.draw == "fixed":
            theta = fixed_unit_vectors("auto", self.slices, dim, self.draw_seed)
            y = self.scale * _kept(self.p, self.mean, self.sigma, (n, dim), self.draw_seed)
        else:
            theta, y = unit_vectors("auto", self.slices, dim, rng), self.sample(n, dim, rng)
        return Cloud(y.to(x)), Slices.even(theta)


def gennorm_sigma(p: float) -> float:
    """The sigma with which the generalized Gaussian has variance 1: 1 / sqrt(2) for p = 1, 1 for p = 2.

    >>> round(gennorm_sigma(1.0), 4), round(gennorm_sigma(2.0), 4)
    (0.7071, 1.0)
    """
    return math.exp(0.5 * (math.lgamma(1 / p) - math.lgamma(3 / p)) - math.log(p) / p)


@lru_cache(maxsize=64)
def rectified_sigma(p: float, mean: float) -> float:
    """The sigma with which the law has variance 1 after the cut, to rounding."""
    excess = lambda log_sigma: rectified_moments(p, mean, math.exp(log_sigma))[1] - 1.0  # noqa: E731
    return math.exp(float(brentq(excess, math.log(1e-6), math.log(1e6), xtol=1e-14)))


def active_fraction(p: float, mean: float, sigma: float) -> float:
    """Probability that one coordinate is not cut to 0."""
    inside = float(gammainc(1 / p, abs(mean / sigma) ** p / p))  # of |e| below |mean / sigma|
    return 0.5 * (1.0 + math.copysign(inside, mean))


def rectified_moments(p: float, mean: float, sigma: float) -> tuple[float, float]:
    r"""Mean and variance of max(0, mean + sigma e), from the incomplete moments of e above -mean / sigma.

    Above a the first moment is $p^{1/p} Q(2/p, |a|^p/p)\, \Gamma(2/p) / 2\Gamma(1/p)$ with Q the upper incomplete gamma
    function, whatever the sign of a; the second is half of the whole one, plus or minus what lies between 0 and a.
    """
    a = -mean / sigma
    reach = abs(a) ** p / p
    first = 0.5 * _moment(p, 1) * float(gammaincc(2 / p, reach))
    between = float(gammainc(3 / p, reach))
    second = 0.5 * _moment(p, 2) * (float(gammaincc(3 / p, reach)) if a > 0 else 1.0 + between)
    active = active_fraction(p, mean, sigma)
    average = mean * active + sigma * first
    square = mean**2 * active + 2 * mean * sigma * first + sigma**2 * second
    return average, square - average**2


def _moment(p: float, k: int) -> float:
    """Mean of |e|^k."""
    return math.exp(k * math.log(p) / p + math.lgamma((k + 1) / p) - math.lgamma(1 / p))


def _drawn(p: float, mean: float, sigma: float, shape: tuple[int, int], rng: Generator) -> Tensor:
    """(n, dim) float64 max(0, mean + sigma e): |e|^p / p has a gamma law, and a coin throws the sign."""
    wide = torch.float32 if rng.device.type == "mps" else torch.float64
    below, coin = torch.rand((2, *shape), generator=rng, device=rng.device, dtype=wide).to("cpu", torch.float64)
    power = -torch.log1p(-below) if p == 1.0 else torch.from_numpy(gammaincinv(1 / p, below.numpy()))
    size = (p * power).pow(1 / p)
    return (mean + sigma * torch.where(coin < 0.5, size, -size)).clamp_min(0.0)


@lru_cache(maxsize=2)
def _kept(p: float, mean: float, sigma: float, shape: tuple[int, int], seed: int) -> Tensor:
    """The same for one seed, kept, since a run asks for it at every step."""
    return _drawn(p, mean, sigma, shape, seeded(seed, 52))
