r"""f-divergences as functions of a log ratio of densities, each in closed form and without overflow.

p is the law of the target, q that of the particles, r = p / q and u = log r:

$$ D_f(p \| q) = \int q\, f(r), \qquad f(1) = 0 $$

Three numbers of a divergence are needed where it is estimated: f; h(r) = r^2 f''(r), the weight under which a particle
follows the difference of the scores; and f counted once in the middle, phi(u) = 2 (f(r) - f'(1) (r - 1)) / (1 + r).
The last is the integrand over the mixture (p + q) / 2: never negative, and linear in u at most wherever f is in r.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

Divergence = Literal[
    "reverse_kl", "kl", "jensen_shannon", "hellinger", "jeffreys", "softened_reverse_kl", "softened_kl",
    "pearson_chi2", "neyman_chi2",
]  # fmt: skip

_STEEP = 50.0
"""r and 1 / r are held at e to this power; only the chi-squares, which grow as fast as r itself, ever meet it."""


class Ratio:
    """r = p / q seen through u = log r: what the formulas below are made of."""

    def __init__(self, u: Tensor) -> None:
        self.u = u

    @cached_property
    def r(self) -> Tensor:
        return self.u.clamp_max(_STEEP).exp()

    @cached_property
    def inverse(self) -> Tensor:
        return (-self.u).clamp_max(_STEEP).exp()

    @cached_property
    def above(self) -> Tensor:
        """r / (1 + r), the share of p in p + q."""
        return self.u.sigmoid()

    @cached_property
    def below(self) -> Tensor:
        """1 / (1 + r), the share of q."""
        return (-self.u).sigmoid()

    @cached_property
    def tilt(self) -> Tensor:
        """(r - 1) / (r + 1)."""
        return (0.5 * self.u).tanh()

    @cached_property
    def half(self) -> Tensor:
        """log((1 + r) / 2)."""
        return softplus(self.u) - math.log(2.0)

    @cached_property
    def root(self) -> Tensor:
        """sqrt(r) / (1 + r), at most 1/2, without a root whose slope is infinite at 0."""
        e = (-0.5 * self.u.abs()).exp()
        return e / (1.0 + e * e)

    @cached_property
    def free(self) -> Tensor:
        """1 where r is not held, 0 where it is."""
        return (self.u < _STEEP).to(self.u)

    @cached_property
    def free_inverse(self) -> Tensor:
        return (self.u > -_STEEP).to(self.u)


class Generator(NamedTuple):
    """One f-divergence; each field is a function of the ratio."""

    f: Callable[[Ratio], Tensor]
    change: Callable[[Ratio], Tensor]  # df / du = r f'(r)
    slope: Callable[[Ratio], Tensor]  # f'(r), the best critic
    dual: Callable[[Ratio], Tensor]  # f*(f'(r)) = r f'(r) - f(r)
    weight: Callable[[Ratio], Tensor]  # h = r^2 f''(r)
    middle: Callable[[Ratio], Tensor]  # phi
    middle_change: Callable[[Ratio], Tensor]  # dphi / du
    at_one: float  # f'(1)
    symmetric: bool = False


GENERATORS: dict[Divergence, Generator] = {
    "reverse_kl": Generator(  # -log r
        f=lambda s: -s.u,
        change=lambda s: -torch.ones_like(s.u),
        slope=lambda s: -s.inverse,
        dual=lambda s: s.u - 1.0,
        weight=lambda s: torch.ones_like(s.u),
        middle=lambda s: 2.0 * (s.tilt - s.u * s.below),
        middle_change=lambda s: 2.0 * s.below * (s.tilt + s.u * s.above),
        at_one=-1.0,
    ),
    "kl": Generator(  # r log r
        f=lambda s: s.r * s.u,
        change=lambda s: s.r * (s.u + 1.0),
        slope=lambda s: s.u + 1.0,
        dual=lambda s: s.r,
        weight=lambda s: s.r,
        middle=lambda s: 2.0 * (s.u * s.above - s.tilt),
        middle_change=lambda s: 2.0 * s.above * (s.tilt + s.u * s.below),
        at_one=1.0,
    ),
    "jensen_shannon": Generator(  # half of r log r - (r + 1) log((r + 1) / 2)
        f=lambda s: 0.5 * (s.r * (s.u - s.half) - s.half),
        change=lambda s: 0.5 * s.r * (s.u - s.half),
        slope=lambda s: 0.5 * (s.u - s.half),
        dual=lambda s: 0.5 * s.half,
        weight=lambda s: 0.5 * s.above,
        middle=lambda s: s.u * s.above - s.half,
        middle_change=lambda s: s.u * s.above * s.below,
        at_one=0.0,
        symmetric=True,
    ),
    "hellinger": Generator(  # 1 - sqrt r
        f=lambda s: -(0.5 * s.u).expm1(),
        change=lambda s: -0.5 * (0.5 * s.u).exp(),
        slope=lambda s: -0.5 * (-0.5 * s.u).exp(),
        dual=lambda s: 0.5 * (0.5 * s.u).exp() - 1.0,
        weight=lambda s: 0.25 * (0.5 * s.u).exp(),
        middle=lambda s: 1.0 - 2.0 * s.root,
        middle_change=lambda s: s.root * s.tilt,
        at_one=-0.5,
        symmetric=True,
    ),
    "jeffreys": Generator(  # (r - 1) log r
        f=lambda s: (s.r - 1.0) * s.u,
        change=lambda s: s.r - 1.0 + s.r * s.u,
        slope=lambda s: s.u + 1.0 - s.inverse,
        dual=lambda s: s.r - 1.0 + s.u,
        weight=lambda s: 1.0 + s.r,
        middle=lambda s: 2.0 * s.u * s.tilt,
        middle_change=lambda s: 2.0 * s.tilt + 4.0 * s.u * s.above * s.below,
        at_one=0.0,
        symmetric=True,
    ),
    "softened_reverse_kl": Generator(  # (r + 1) log((r + 1) / 2r)
        f=lambda s: (s.r + 1.0) * (s.half - s.u),
        change=lambda s: s.r * (s.half - s.u) - 1.0,
        slope=lambda s: s.half - s.u - s.inverse,
        dual=lambda s: s.u - s.half - 1.0,
        weight=lambda s: s.below,
        middle=lambda s: 2.0 * (s.half - s.u + s.tilt),
        middle_change=lambda s: 2.0 * s.below * s.tilt,
        at_one=-1.0,
    ),
    "softened_kl": Generator(  # (r + 1) log((r + 1) / 2)
        f=lambda s: (s.r + 1.0) * s.half,
        change=lambda s: s.r * (s.half + 1.0),
        slope=lambda s: s.half + 1.0,
        dual=lambda s: s.r - s.half,
        weight=lambda s: s.r * s.above,
        middle=lambda s: 2.0 * (s.half - s.tilt),
        middle_change=lambda s: 2.0 * s.above * s.tilt,
        at_one=1.0,
    ),
    "pearson_chi2": Generator(  # (r - 1)^2
        f=lambda s: (s.r - 1.0).square(),
        change=lambda s: s.free * 2.0 * s.r * (s.r - 1.0),
        slope=lambda s: 2.0 * (s.r - 1.0),
        dual=lambda s: s.r.square() - 1.0,
        weight=lambda s: 2.0 * s.r.square(),
        middle=lambda s: 2.0 * (s.r - 1.0) * s.tilt,
        middle_change=lambda s: s.free * 2.0 * s.r * s.tilt + 4.0 * (s.r - 1.0) * s.above * s.below,
        at_one=0.0,
    ),
    "neyman_chi2": Generator(  # (r - 1)^2 / r
        f=lambda s: s.r - 2.0 + s.inverse,
        change=lambda s: s.free * s.r - s.free_inverse * s.inverse,
        slope=lambda s: 1.0 - s.inverse.square(),
        dual=lambda s: 2.0 - 2.0 * s.inverse,
        weight=lambda s: 2.0 * s.inverse,
        middle=lambda s: 2.0 * (1.0 - s.inverse) * s.tilt,
        middle_change=lambda s: s.free_inverse * 2.0 * s.inverse * s.tilt + 4.0 * (1.0 - s.inverse) * s.above * s.below,
        at_one=0.0,
    ),
}  # fmt: skip


def never_negative(divergence: Divergence, u: Tensor) -> Tensor:
    """f(r) - f'(1) (r - 1): the same integral over q, since that of r - 1 is 0, and nowhere negative."""
    of, s = GENERATORS[divergence], Ratio(u)
    return of.f(s) - of.at_one * (s.r - 1.0)


def total_variation(u: Tensor) -> Tensor:
    """|r - 1| / 2, whose integral over q is the total variation; it has no weight h, so no flow follows it."""
    return 0.5 * (Ratio(u).r - 1.0).abs()
