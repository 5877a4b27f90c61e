"""f-divergences between two clouds, each smoothed into a density by bumps of one width."""

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kde import Bumps, Density, log_density, near, own_log, prepare_bumps, prepare_own_log, scott
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
        h, a, b = self._width(target), mass_of(x, weight), target.mass()
        x_near, y = near(x, target)
        if not (torch.is_grad_enabled() and x.requires_grad):
            q, p = self._bumps(x_near, a, target), self._bumps(y, b, target)
            here, there = p.log(x_near) - q.log(x_near), own_log(target, p) - q.log(y) if self._both else None
        else:
            here = log_density(x_near, y, b, h) - log_density(x_near, x_near, a, h)
            there = log_density(y, y, b, h) - log_density(y, x_near, a, h) if self._both else None
        return self._mean(here, a, there, b).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The pull where a particle stands, and what its bump changes at all the points of comparison."""
        seen = self._seen(x, target, weight)
        v = self._pull(seen.q, seen.q_here, seen.p_here, seen)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), seen.value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        seen, (at_near, _) = self._seen(x, target, weight), near(at, target)
        return self._pull(seen.q._replace(x=at_near), seen.q(at_near), seen.p(at_near), seen).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's log density at its own points."""
        h = self._width(target)
        return prepare_own_log(prepare_bumps(target, h, self.scott), h)

    @property
    def _both(self) -> bool:
        return self.points == "both"

    def _width(self, target: Cloud) -> float:
        return scott(target, self.bandwidth) if self.scott else self.bandwidth

    def _bumps(self, z: Tensor, weight: Tensor, target: Cloud) -> Bumps:
        return Bumps(z, weight, self._width(target), chosen(target.memo, z))

    def _mean(self, here: Tensor, a: Tensor, there: Tensor | None, b: Tensor) -> Tensor:
        """F from the log ratios at the particles and at the target's points."""
        of = GENERATORS[self.divergence]
        if there is None:
            return a.double() @ of.f(Ratio(here))
        return 0.5 * (a.double() @ of.middle(Ratio(here))) + 0.5 * (b.double() @ of.middle(Ratio(there)))

    def _change(self, log_ratio: Tensor) -> Tensor:
        """What F counts at one point, differentiated in the log ratio there."""
        of = GENERATORS[self.divergence]
        return 0.5 * of.middle_change(Ratio(log_ratio)) if self._both else of.change(Ratio(log_ratio))

    @torch.no_grad()
    def _seen(self, x: Tensor, target: Cloud, weight: Tensor | None) -> "_Seen":
        a, b = mass_of(x, weight), target.mass()
        x, y = near(x, target)
        q, p = self._bumps(x, a, target), self._bumps(y, b, target)
        q_here, p_here = q(x), p(x)
        here, there = p_here.log - q_here.log, None
        c, points, log_q = a.double() * self._change(here), x, q_here.log
        if self._both:
            log_y = q.log(y)
            there = own_log(target, p) - log_y
            c, points = torch.cat((c, b.double() * self._change(there))), torch.cat((x, y))
            log_q = torch.cat((q_here.log, log_y))
        return _Seen(self._mean(here, a, there, b), q, p, q_here, p_here, c, points, log_q)

    @torch.no_grad()
    def _pull(self, at: Bumps, q: Density, p: Density, seen: "_Seen") -> Tensor:
        """Velocity of bumps `at`, where the two densities are q and p."""
        return at.pull(seen.c, seen.log_q, seen.points) - self._change(p.log - q.log)[:, None] * (p.score - q.score)


class _Seen(NamedTuple):
    """The clouds as densities, compared."""

    value: Tensor  # ()
    q: Bumps
    p: Bumps
    q_here: Density  # at the particles
    p_here: Density
    c: Tensor  # (K,) weight and change of every point of comparison
    points: Tensor  # (K, D)
    log_q: Tensor  # (K,) log density of the particles there
