"""f-divergences between two clouds, each smoothed into a density by bumps of one width."""

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kde import Bumps, log_density, near, own_log, prepare_bumps, prepare_own_log, scott
from dmviz.losses._ratios import GENERATORS, Divergence, Ratio
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class KdeDivergence:
    r"""Put a soft bump on every point of both clouds, and compare the two landscapes by their ratio.

    $$ D_f(p \| q) = \int q\, f(r), \quad r = p / q,\qquad q(z) = \sum_i a_i\, \mathcal N(z; x_i, h^2 I),
       \quad p(z) = \sum_j b_j\, \mathcal N(z; y_j, h^2 I) $$

    with p of the target, q of the particles, and r log r for `kl` = KL(p | q), -log r for `reverse_kl` = KL(q | p),
    their sum for Jeffreys; Jensen-Shannon is half of KL(p | m) + KL(q | m), m = (p + q) / 2, and at most log 2;
    Hellinger is 1 - int sqrt(p q); Pearson's chi-square is int (p - q)^2 / q, Neyman's int (p - q)^2 / p; the softened
    ones are 2 KL(m | p) for the reverse and 2 KL(m | q) for the forward. Every divergence has its other direction on
    the menu. Unit: nats, or none for Hellinger and chi-square.

    The integral is a mean over points, each with its own bump counted in. `points` "both" takes half of the particles
    and half of the target, and divides by that mixture:

    $$ F = \tfrac12 \sum_i a_i\, \phi(x_i) + \tfrac12 \sum_j b_j\, \phi(y_j), \qquad
       \phi = 2\,\frac{f(r) - f'(1)(r - 1)}{1 + r}, $$

    never negative, bounded by the divergence's own bound, and symmetric where the divergence is. "particles" takes
    F = sum_i a_i f(r(x_i)), the usual plug-in mean, which can be negative and does not hear of target points that no
    particle is near. The gradient is that of F itself, in closed form: where the particle stands, and what its bump
    does to the density everywhere else.

    Small h: every point is alone and the value says only that the clouds differ; large h: only the means count. It is
    0 on equal clouds, while the smoothed laws, not the clouds, are what a flow makes equal. Fails far apart: Hellinger,
    Jensen-Shannon and the softened one whose weight fades give no pull there, while KL pulls the harder the further.
    For the two chi-squares a ratio of more than e^50 is held there. Scott's rule takes h from the target once, never
    from the moving particles.

    Ali and Silvey 1966 for the family; softened names as in f-distill.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = KdeDivergence(divergence="reverse_kl", bandwidth=5.0, points="particles")
    >>> loss(here, Cloud(there), seeded(0)).item()  # |(3, 4)|^2 / (2 * 5^2)
    0.5

    ```
    """

    title = "Divergence of smoothed clouds"
    family = "densities"
    source = ("ali1966general", "xu2025fdistill")
    needs = "samples"
    cost = "(N + M)^2 D time, N + M memory"
    degree = 0.0

    divergence: Annotated[
        Divergence,
        Help("How the ratio is judged: reverse ones seek a mode, forward ones cover all, the others lie between"),
    ] = "reverse_kl"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Width of a bump. Small: particles see only what they touch; large: only means are compared",
            when={"scott": (False,)},
        ),
    ] = 0.5
    scott: Annotated[bool, Help("Take the width from the target's spread and number of points, by Scott's rule")] = (
        False
    )
    points: Annotated[
        Literal["both", "particles"],
        Help("Where the two densities are compared: at the points of both clouds, or at the particles alone"),
    ] = "both"

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = {"zero_at_target", "shift_free", "rotation_free", "deterministic"}
        if self.points == "both":
            found |= {"nonnegative"}
            if GENERATORS[self.divergence].symmetric and not self.scott:
                found |= {"symmetric"}
        return frozenset(found)

    @property
    def root(self) -> float:
        return 2.0 if self.divergence in ("jensen_shannon", "hellinger") else 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self._at(x, target, weight, False)[0].to(x.dtype)
        h, a, b, of = self._width(target), mass_of(x, weight), target.mass(), GENERATORS[self.divergence]
        x_near, y = near(x, target)
        here = Ratio(log_density(x_near, y, b, h) - log_density(x_near, x_near, a, h))
        if self.points == "particles":
            return (a.double() @ of.f(here)).to(x.dtype)
        there = Ratio(log_density(y, y, b, h) - log_density(y, x_near, a, h))
        return (0.5 * (a.double() @ of.middle(here)) + 0.5 * (b.double() @ of.middle(there))).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The pull where a particle stands, and what its bump changes at all the points of comparison."""
        value, v = self._at(x, target, weight, True)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), value.to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """The target's log density at its own points."""
        h = self._width(target)
        return prepare_own_log(prepare_bumps(target, h, self.scott), h)

    def _width(self, target: Cloud) -> float:
        return scott(target, self.bandwidth) if self.scott else self.bandwidth

    @torch.no_grad()
    def _at(self, x: Tensor, target: Cloud, weight: Tensor | None, want_v: bool) -> tuple[Tensor, Tensor]:
        """The value, and the velocity where it is asked for, float64."""
        h, of, compiled = self._width(target), GENERATORS[self.divergence], chosen(target.memo, x)
        x, y = near(x, target)
        q, p = Bumps(x, mass_of(x, weight), h, compiled), Bumps(y, target.mass(), h, compiled)
        a, b = q.a.double(), p.a.double()
        if want_v:
            (log_q, score_q), (log_p, score_p) = q(x), p(x)
        else:
            log_q, log_p = q.log(x), p.log(x)
        here, at, c, log_at = Ratio(log_p - log_q), x, x, log_q
        if self.points == "particles":
            value, change = a @ of.f(here), of.change(here) if want_v else log_q
            c = a * change
        else:
            log_y = q.log(y)
            there = Ratio(own_log(target, p) - log_y)
            value = 0.5 * (a @ of.middle(here) + b @ of.middle(there))
            if want_v:
                change = 0.5 * of.middle_change(here)
                c = torch.cat((a * change, 0.5 * b * of.middle_change(there)))
                at, log_at = torch.cat((x, y)), torch.cat((log_q, log_y))
        if not want_v:
            return value, value
        return value, q.pull(c, log_at, at) - change[:, None] * (score_p - score_q)
