r"""Laws of directions that can be learned: von Mises-Fisher, and what a small network makes of even directions.

The von Mises-Fisher law in D dimensions has density proportional to $e^{\kappa\, m \cdot \theta}$. All that is needed
of its Bessel functions is $S = \log {}_0F_1(D/2;\ \kappa^2/4) = \log \sum_k (\kappa^2/4)^k / (k!\,(D/2)_k)$, the log of
the mean of that exponential over the sphere: a sum of positive terms, taken in logarithms, so that nothing overflows or
vanishes in any dimension. With $E k$ under those terms, $\kappa A_D(\kappa) = 2 E k$, and the divergence from the even
law is $2 E k - S$.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.losses._slicing import gaussian, unit

KAPPA = (1e-3, 1e3)  # bounds of the concentration
_NODES = 2048  # of the table of angles
_REACH = 12.0  # standard deviations that the table covers
_HIDDEN = 16

Params = tuple[Tensor, ...]
Learnt = Literal["location", "kappa", "both"]


def _terms(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(K,) k and the logarithms of the terms of the series."""
    size, half = float(kappa.detach()), dim / 2
    peak = (math.sqrt((half - 1) ** 2 + size**2) - (half - 1)) / 2
    k = torch.arange(math.ceil(peak + 10 * math.sqrt(size + 1) + 30), dtype=torch.float64)
    start = torch.tensor(half, dtype=torch.float64)
    return k, 2 * k * (kappa / 2).log() - torch.lgamma(k + 1) - torch.lgamma(k + start) + torch.lgamma(start)


def vmf_ratio(kappa: Tensor, dim: int) -> Tensor:
    r"""() $A_D(\kappa) = I_{D/2}(\kappa) / I_{D/2-1}(\kappa)$, the mean of $m \cdot \theta$.

    >>> vmf_ratio(torch.tensor(1.0, dtype=torch.float64), 3)  # coth 1 - 1
    tensor(0.3130, dtype=torch.float64)
    """
    k, term = _terms(kappa, dim)
    return 2 * (torch.softmax(term, 0) * k).sum() / kappa


def vmf_kl(kappa: Tensor, dim: int) -> Tensor:
    """() divergence KL of the law from the even one, in nats; differentiable in kappa."""
    k, term = _terms(kappa, dim)
    return 2 * (torch.softmax(term, 0) * k).sum() - torch.logsumexp(term, 0)


def vmf_square(kappa: Tensor, dim: int) -> Tensor:
    r"""() mean of $(m \cdot \theta)^2$: what a shift along m costs under squared transport, over its squared length."""
    return 1 - (dim - 1) * vmf_ratio(kappa, dim) / kappa


def pac_penalty(
    kl: float, n: int, diameter: float, power: int, delta: float = 0.01, trust: float | None = None
) -> float:
    r"""$(KL + \log(1/\delta)) / \lambda + \lambda\, \Delta^{2p} / (4n)$: how far n samples in a diameter may mislead.

    $\lambda$ is `trust`, or the square root of n where it is not given.
    """
    trust = math.sqrt(n) if trust is None else trust
    return (kl + math.log(1 / delta)) / trust + trust * diameter ** (2 * power) / (4 * n)


def pac_trust(kl: float, n: int, diameter: float, power: int, delta: float = 0.01) -> float:
    """The lambda of the smallest penalty."""
    return math.sqrt(4 * n * (kl + math.log(1 / delta)) / diameter ** (2 * power))


def vmf_angles(kappa: Tensor, dim: int, level: Tensor) -> Tensor:
    r"""(L,) angles from m at these levels of their distribution function; differentiable in kappa.

    Their density is proportional to $\sin^{D-2}\varphi\, e^{\kappa \cos\varphi}$. It is tabled where it matters and
    inverted there, so one draw of levels gives angles that move smoothly with kappa: no sample is rejected.
    """
    size = float(kappa.detach())
    angle = _around_the_mode(size, dim)
    with torch.no_grad():
        log = size * angle.cos() + ((dim - 2) * angle.sin().clamp_min(1e-300).log() if dim > 2 else 0)
        density = (log - log.max()).exp()
        total, first = _running(torch.stack((density, density * angle.cos())), angle)
        drift = first - first[-1] / total[-1] * total  # derivative of the distribution function in kappa
        sought = level * total[-1]
        at = torch.searchsorted(total, sought).clamp(1, len(angle) - 1)
        share = (sought - total[at - 1]) / (total[at] - total[at - 1]).clamp_min(1e-300)
        columns = torch.stack((angle, drift, density))
        before = columns[:, at - 1]
        found, moved, dense = before + share * (columns[:, at] - before)
        slope = -moved / dense.clamp_min(1e-300)
    moving: Tensor = found + (kappa - kappa.detach()) * slope
    return moving


def _around_the_mode(kappa: float, dim: int) -> Tensor:
    """(K,) even angles over all of the density that counts."""
    free = dim - 2
    cosine = 2 * kappa / (free + math.sqrt(free**2 + 4 * kappa**2))
    mode = math.acos(min(cosine, 1.0))
    bend = kappa * cosine + (free / (1 - cosine**2) if free and cosine < 1 else free)
    width = _REACH / math.sqrt(bend)
    return torch.linspace(max(0.0, mode - width), min(math.pi, mode + width), _NODES, dtype=torch.float64)


def _running(rows: Tensor, at: Tensor) -> Tensor:
    """(R, K) integrals of rows from the start by the trapezoid rule."""
    total: Tensor = torch.nn.functional.pad(torch.cumulative_trapezoid(rows, at), (1, 0))
    return total


class Noise(NamedTuple):
    """Chance behind L directions, drawn once and kept while the law is learned."""

    level: Tensor  # (L,) in (0, 1), one in each of L equal parts
    normal: Tensor  # (L, D)


def noise(count: int, dim: int, rng: Generator) -> Noise:
    jitter = torch.rand(count, generator=rng, device=rng.device).to("cpu", torch.float64)
    return Noise((torch.arange(count) + jitter) / count, gaussian((count, dim), rng))


@dataclass(frozen=True)
class VonMisesFisher:
    """Directions about a location m; parameters: m, up to its length, and log kappa."""

    kappa: float
    learnt: Learnt
    trust: float  # lambda: the divergence from the even law is charged at 1 / lambda

    def start(self, dim: int, rng: Generator) -> Params:
        return unit(gaussian((1, dim), rng))[0], torch.tensor(math.log(self.kappa), dtype=torch.float64)

    def free(self) -> tuple[bool, ...]:
        return self.learnt != "kappa", self.learnt != "location"

    def directions(self, params: Params, drawn: Noise) -> Tensor:
        """(L, D) unit vectors, differentiable in the parameters."""
        m = unit(params[0][None])
        angle = vmf_angles(_concentration(params[1]), m.shape[1], drawn.level)[:, None]
        across = unit(drawn.normal - (drawn.normal * m).sum(1, keepdim=True) * m)
        return angle.cos() * m + angle.sin() * across

    def penalty(self, params: Params, theta: Tensor) -> Tensor:
        return vmf_kl(_concentration(params[1]), theta.shape[1]) / self.trust


def _concentration(log_kappa: Tensor) -> Tensor:
    return log_kappa.clamp(math.log(KAPPA[0]), math.log(KAPPA[1])).exp()


@dataclass(frozen=True)
class Pushforward:
    """Even directions bent by a small network: z + B leaky(A z + a), put back on the sphere; B starts at 0."""

    repel: float  # charge on the mean |cosine| between two directions, so that they stay apart

    def start(self, dim: int, rng: Generator) -> Params:
        inner = gaussian((_HIDDEN, dim), rng) / math.sqrt(dim)
        return inner, inner.new_zeros(_HIDDEN), inner.new_zeros(dim, _HIDDEN)

    def free(self) -> tuple[bool, ...]:
        return True, True, True

    def directions(self, params: Params, drawn: Noise) -> Tensor:
        """(L, D) unit vectors, differentiable in the parameters."""
        even = unit(drawn.normal)
        inner, shift, outer = params
        hidden = torch.nn.functional.leaky_relu(even @ inner.T + shift)
        return unit(even + hidden @ outer.T / math.sqrt(_HIDDEN))

    def penalty(self, params: Params, theta: Tensor) -> Tensor:
        return self.repel * (theta @ theta.T).abs().mean()


class Climber(NamedTuple):
    """Parameters on their way uphill, with Adam's running means of the slope and of its square."""

    params: Params
    slope: Params
    square: Params
    steps: int = 0

    @classmethod
    def at(cls, params: Params) -> "Climber":
        rest = tuple(torch.zeros_like(p) for p in params)
        return cls(params, rest, rest)

    def ahead(self, slopes: Params, free: tuple[bool, ...], rate: float) -> "Climber":
        """After one step of Adam; parameters that are not free stay."""
        count = self.steps + 1
        mean = tuple(0.9 * m + 0.1 * g for m, g in zip(self.slope, slopes, strict=True))
        square = tuple(0.999 * s + 0.001 * g.square() for s, g in zip(self.square, slopes, strict=True))
        params = tuple(
            p + rate * (m / (1 - 0.9**count)) / ((s / (1 - 0.999**count)).sqrt() + 1e-8) if moves else p
            for p, m, s, moves in zip(self.params, mean, square, free, strict=True)
        )
        return Climber(params, mean, square, count)
