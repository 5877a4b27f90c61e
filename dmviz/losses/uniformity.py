"""Uniformity: particles on a sphere that spread until no two are close."""

import math
from dataclasses import replace
from typing import Annotated

import torch
from scipy.special import ive
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._own_pairs import directions, pair_mass, pair_slopes, pair_sum, slopes_at, turned
from dmviz.losses._pairs import own_sums
from dmviz.params import Range, entry
from dmviz.protocols import Velocity


@entry
class Uniformity:
    r"""Spread directions over the sphere: every two particles push each other apart, close ones hardest.

    $$ F = \log \frac{\sum_{i \ne j} a_i a_j\, e^{-t\,|u_i - u_j|^2}}{\sum_{i \ne j} a_i a_j}, \qquad u = x / |x| $$

    The log of the mean over different pairs of a bump on the sphere; the target is not read. Unit: none; at most 0,
    where all directions are the same, and at least -4t. Only directions count: on the sphere or free, a particle moves
    across its own radius, at a speed that falls as 1 / |x|. For up to D + 1 particles the least value is that of the
    regular simplex, -2 t N / (N - 1). For many it comes near that of the uniform law, which on the circle is
    log(exp(-2t) I_0(2t)) and in three dimensions log((1 - exp(-4t)) / (4t)); `spread` gives it.

    Fails: directions that fill only part of the dimensions score nearly the same, so that collapse of a dimension goes
    unseen, and in high dimension all values lie near -2t, where a difference of 0.01 matters. A single particle has no
    pair: its value is 0. A row of zeros has no direction and does not move.

    Wang and Isola 2020, section 4; the alignment that goes with it is a loss of its own.

    ```python
    >>> from dmviz.cloud import seeded
    >>> square = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [0.0, -1.0]])
    >>> round(Uniformity()(square, Cloud(square), seeded(0)).item(), 4)  # log((4 exp(-4) + 2 exp(-8)) / 6)
    -4.3963

    ```
    """

    title = "Uniformity on the sphere"
    family = "regularizers"
    source = ("wang2020understanding",)
    needs = "nothing"
    cost = "N^2 D time, N memory"
    laws = frozenset({"rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0

    t: Annotated[
        float,
        Range(0.05, 20.0, log=True, help="How sharp the push is. Small: all pairs push alike; large: only close ones"),
    ] = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a = mass_of(x, weight)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        total = pair_sum(directions(x), a, lambda r2: (-self.t * r2).exp(), alone=False)
        return _log_mean(total, pair_mass(a)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Away from the others' mean, each weighed by its bump, along the sphere."""
        a, u = mass_of(x, weight), directions(x)
        total, grad = self._others(u, a, chosen(target.memo, x))
        v = torch.where(total > 0, -2.0 * turned(x, u, grad.to(x.dtype)) / _safe(total).to(x.dtype), 0.0)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, _log_mean(total, pair_mass(a)).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The push felt at any points (K, D) among particles x."""
        with torch.no_grad():
            a, u, here = mass_of(x, weight), directions(x), directions(at)
            total, _ = self._others(u, a, chosen(target.memo, x))
            grad = slopes_at(here, u, a, self._bump)
            return torch.where(total > 0, -2.0 * turned(at, here, grad.to(at.dtype)) / _safe(total).to(at.dtype), 0.0)

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing but the choice of kernels, so that a run keeps one."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    def spread(self, dim: int) -> float:
        """The value of the uniform law on the sphere in `dim` dimensions, which particles can only come near."""
        return _uniform_law(self.t, dim)

    def _others(self, u: Tensor, a: Tensor, compiled: bool) -> tuple[Tensor, Tensor]:
        """sum_{i != j} a_i a_j k and the gradient of sum_j a_j k at every i."""
        if compiled:
            total, grad = own_sums(u, a, Kernel("gaussian", (1.0 / math.sqrt(2.0 * self.t),)), True)
            alone = a.double().square().sum()  # each point's pair with itself, where k = 1
            if float(total - alone) > 0.1 * float(alone):  # else the difference would lose digits
                return total - alone, grad
        return pair_slopes(u, a, self._bump, alone=False)

    def _bump(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        k = r2.mul_(-self.t).exp_()
        return k, k * (-2.0 * self.t)


def _uniform_law(t: float, dim: int) -> float:
    r"""$\log(e^{-2t}\,{}_0F_1(; d/2; t^2))$, by $\Gamma(d/2)\, t^{1 - d/2} I_{d/2 - 1}(2t)\, e^{-2t}$."""
    order = dim / 2.0 - 1.0
    return math.lgamma(order + 1.0) - order * math.log(t) + math.log(float(ive(order, 2.0 * t)))


def _safe(total: Tensor) -> Tensor:
    return torch.where(total > 0, total, 1.0)


def _log_mean(total: Tensor, mass: Tensor) -> Tensor:
    """The log of the mean over pairs, and 0 where there is no pair."""
    return torch.where(total > 0, (_safe(total) / torch.where(mass > 0, mass, 1.0)).log(), 0.0)
