"""f-distill: the difference of two scores, weighted by how the density ratio stands."""

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kde import Bumps, Density, led, near, prepare_bumps, scott
from dmviz.losses._ratios import GENERATORS, Divergence, Ratio, never_negative
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_RELEASED = (0.1, 20.0)
"""Bounds of the ratio in the released code."""


@entry
class FDistill:
    r"""Go where the target grows faster than the crowd, and let the density ratio say how eagerly.

    $$ v(x) = h(r(x))\,\bigl(\nabla\log p(x) - \nabla\log q(x)\bigr), \qquad h(r) = r^2 f''(r), \quad r = p / q $$

    is the Wasserstein gradient flow of D_f(p | q) when p and q are the true laws of target and particles. h is 1 for
    reverse KL, r for KL, r / 2(1 + r) for Jensen-Shannon, sqrt(r) / 4 for Hellinger, 1 + r for Jeffreys, 1 / (1 + r)
    and r^2 / (1 + r) for softened reverse and forward KL, 2 r^2 and 2 / r for Pearson's and Neyman's chi-square. Where
    h falls with r, particles seek a mode; where it rises, those at places that the target likes more lead, and modes
    are covered.

    q is a sum of bumps of width h on the particles, each particle's own included. p is one on the target's points, or
    the target's own density, which no bump has blurred. Nothing of r, h or the scores is differentiated. So v is
    not the slope of the value, which is the plug-in mean of a form of f that is never negative,

    $$ F = \sum_i a_i\,\bigl[f(r(x_i)) - f'(1)(r(x_i) - 1)\bigr], $$

    and under autograd F is given the gradient -a v. Both belong to one functional only where points are many and h is
    small; F can rise at a step. Unit of F: nats, or none; of v: 1 / length. A step of about bandwidth^2 / 2 is safe.

    As released: r is held in [0.1, 20] and h is divided by its mean over the particles plus 1e-6, without the release's
    bins by noise level, which one level does not have. Otherwise log r is held in [-10, 10] and h is as written. Small
    bandwidth: particles fall onto target points; large: the crowd stays too narrow or too wide by the blur. Where the
    clouds do not touch, log r is at its bound everywhere and only the scores lead.

    Xu, Nie and Vahdat 2025; for fixed scores and reverse KL it is the distribution matching step of Yin et al. 2024.

    ```python
    >>> from dmviz.cloud import seeded
    >>> from dmviz.field import velocity_of
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = FDistill(divergence="reverse_kl", bandwidth=5.0, as_released=False)
    >>> velocity_of(loss, here, Cloud(there), seeded(0)).v.tolist()  # (3, 4) / 5^2
    [[0.11999999731779099, 0.1599999964237213]]

    ```
    """

    title = "F-distill"
    family = "densities"
    source = ("xu2025fdistill", "yin2024dmd")
    needs = "samples"
    descends = False
    cost = "(N + M) N D time, N + M memory"
    root = 1.0

    divergence: Annotated[
        Divergence,
        Help("How the ratio weighs the pull: reverse ones seek a mode, forward ones cover all, the others lie between"),
    ] = "jensen_shannon"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Width of a bump. Small: particles fall onto single points; large: the densities are blurred alike",
            when={"scott": (False,)},
        ),
    ] = 0.5
    scott: Annotated[bool, Help("Take the width from the target's spread and number of points, by Scott's rule")] = (
        False
    )
    target_law: Annotated[
        Literal["bumps", "density"],
        Help("What stands for the target: bumps on its points, or its own density where that is known"),
    ] = "bumps"
    as_released: Annotated[
        bool, Help("Hold the ratio between 0.1 and 20 and divide the weights by their mean, as the authors' code does")
    ] = True

    @property
    def laws(self) -> frozenset[Law]:
        if self.target_law == "density":
            return frozenset({"nonnegative", "deterministic"})
        return frozenset({"zero_at_target", "nonnegative", "shift_free", "rotation_free", "deterministic"})

    @property
    def degree(self) -> float:
        return 0.0 if self.target_law == "bumps" else float("nan")

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            answer = self.velocity(x.detach(), target, rng, weight)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return answer.value
        return led(x, answer.value, answer.v, mass_of(x, weight))

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The difference of the scores, times the weight of the ratio."""
        q, p = self._densities(x, x, target, weight)
        u, a = p.log - q.log, mass_of(x, weight).double()
        v = (self._weight(u) / self._mean(u, a))[:, None] * (p.score - q.score)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), (a @ never_negative(self.divergence, u)).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        mean: float | Tensor = 1.0
        if self.as_released:
            q, p = self._densities(x, x, target, weight)
            mean = self._mean(p.log - q.log, mass_of(x, weight).double())
        q, p = self._densities(at, x, target, weight)
        return ((self._weight(p.log - q.log) / mean)[:, None] * (p.score - q.score)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """Scott's width, and which kernels the run will use."""
        return prepare_bumps(target, self._width(target), self.scott)

    def _width(self, target: Cloud) -> float:
        return scott(target, self.bandwidth) if self.scott else self.bandwidth

    def _weight(self, u: Tensor) -> Tensor:
        """h at the ratio, within its bounds."""
        u = u.clamp(*(torch.tensor(_RELEASED).log().tolist() if self.as_released else (-10.0, 10.0)))
        return GENERATORS[self.divergence].weight(Ratio(u))

    def _mean(self, u: Tensor, a: Tensor) -> float | Tensor:
        return a @ self._weight(u) + 1e-6 if self.as_released else 1.0

    @torch.no_grad()
    def _densities(self, at: Tensor, x: Tensor, target: Cloud, weight: Tensor | None) -> tuple[Density, Density]:
        """Log density and score of the particles, and of the target, at any points."""
        h, compiled = self._width(target), chosen(target.memo, x)
        (x_near, y), (at_near, _) = near(x, target), near(at, target)
        q = Bumps(x_near, mass_of(x, weight), h, compiled)(at_near)
        if self.target_law == "bumps":
            return q, Bumps(y, target.mass(), h, compiled)(at_near)
        if target.log_prob is None or target.score is None:
            raise ValueError(
                "FDistill: target law 'density' needs a target whose density and score are known; take 'bumps', "
                "or pick a shape with a known density."
            )
        return q, Density(target.log_prob(at).double(), target.score(at).double())
