"""Max-sliced Wasserstein distance: transport on the one line where the clouds differ most."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._slicing import Slices, sliced_power, sliced_slopes, sliced_velocity, unit, unit_vectors
from dmviz.losses._trees import mean_of
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
_SCREENED = 4  # lines looked at for each start
_SETTLED = 1e-8  # relative gain that a step promises below which the top is reached
_CLEAR = 1e-6  # relative gain for which the line of the last step is given up
_EIGEN = 512  # dimensions up to which a D x D covariance is cheap


@entry
class MaxSlicedWasserstein:
    r"""Find the line on which the two clouds look most different, and transport along that line alone.

    $$ F = \max_{|\theta| = 1} W_p^p(\theta \cdot \mu,\ \theta \cdot \nu) $$

    The value is the p-th power, without a factor 1/2; unit: length to the power p. The line is searched for: from the
    difference of means, from the directions in which the covariances differ most (up to 512 dimensions) and from
    `restarts` further lines, the best of four times as many, steps follow great circles uphill, longer after a gain
    and shorter after none. The maximum often lies on a ridge, where two points change order; steps then go along it.
    In a flow the line is carried from step to step, and left for another that gains more than a millionth. The gradient
    treats the line as given (Danskin).

    Every particle moves along one line at a time, so a cloud is first matched where it is most wrong; with p = 1
    each moves with speed 1 or not at all. A particle flow turns to another line whenever the first one is repaired.

    Fails: the problem is not concave, so what is found is a lower bound of the maximum, and it depends on chance where
    several lines are nearly as good; symmetry holds for the same starts, the triangle inequality only for the exact
    maximum. In many dimensions few points look different along some line by chance alone.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> round(MaxSlicedWasserstein()(here, Cloud(there), seeded(0)).item(), 4)  # |(3, 4)|^2, on the line through both
    25.0

    ```
    """

    title = "Max-sliced Wasserstein"
    family = "slices"
    source = ("deshpande2019max", "kolouri2019generalized")
    needs = "samples"
    cost = "steps x (N + M) (D + log) time, restarts x (N + M) memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free"})

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
    restarts: Annotated[
        int, Range(1, 64, log=True, help="places to search from: one may end on a lower hill, many take time")
    ] = 4
    steps: Annotated[
        int, Range(1, 500, log=True, help="steps uphill at most: few stop short of the top, many find it exactly")
    ] = 40

    @property
    def degree(self) -> float:
        return float(self.power)

    @property
    def root(self) -> float:
        return float(self.power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there, line = self._seen(x, target, rng, weight, None)
        return sliced_power(here, there, line, weight, self.power).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Tensor | None = None
    ) -> Velocity:
        """Closed form: along the line, to the mean target quantile (p = 2) or its sign (p = 1); carries the line."""
        here, there, line = self._seen(x, target, rng, weight, carry)
        v, value = sliced_velocity(here, there, line, weight, self.power)
        return Velocity(v.to(x.dtype), value.to(x.dtype), line.theta[0])

    def _seen(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None, carry: Tensor | None
    ) -> tuple[Tensor, Cloud, Slices]:
        """Both clouds in float64 about the target's mean, and the line. Float32 would blur who is first on a ridge."""
        centre = mean_of(target)
        here = x.to(centre) - centre
        there = replace(target, x=target.x.detach().to(centre) - centre, memo=None)
        with torch.no_grad():
            theta = self._line(here.detach(), there, rng, weight, carry)
        return here, there, Slices.even(theta)

    def _line(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None, carry: Tensor | None) -> Tensor:
        """(1, D) the best line found."""
        if target.dim == 1:
            return x.new_ones(1, 1)

        def slopes(theta: Tensor) -> tuple[Tensor, Tensor]:
            return sliced_slopes(x, target, theta, weight, self.power)

        # A carried line is near the top already: one further start a step is enough to notice a higher hill in time.
        count, first = (_SCREENED * self.restarts, 0.3) if carry is None else (self.restarts, 0.03)
        some = unit_vectors("auto", count, target.dim, rng).to(x)
        screened = some[slopes(some)[0].sort(descending=True, stable=True).indices]
        if carry is None:
            starts = torch.cat((likely_lines(x, target, weight), screened[: self.restarts]))
        else:
            starts = torch.cat((carry.to(x)[None], likely_lines(x, target, weight), screened[:1]))
        hills, heights = climb(starts, slopes, max(1, self.steps // (4 if carry is None else 10)), first)
        best, height = climb(hills[heights.argmax()][None], slopes, self.steps, first)
        if carry is not None and height[0] <= slopes(starts[:1])[0][0] * (1 + _CLEAR):
            return starts[:1]
        return best


def likely_lines(x: Tensor, target: Cloud, weight: Tensor | None) -> Tensor:
    """(K, D) the difference of means, and the two directions in which the covariances differ most."""
    here, there = Cloud(x, weight), target
    found = (mean_of(here) - mean_of(there)).to(x)
    if found.abs().max() == 0:
        found[0, 0] = 1
    if target.dim <= _EIGEN:
        sizes, axes = torch.linalg.eigh(_covariance(here) - _covariance(there))
        found = torch.cat((found, axes.T[sizes.abs().argsort(descending=True)[:2]]))
    return unit(found)


def _covariance(cloud: Cloud) -> Tensor:
    z = cloud.x - mean_of(cloud).to(cloud.x)
    return (z * cloud.mass()[:, None].to(z)).T @ z


def climb(theta: Tensor, slopes: Slopes, steps: int, first: float = 0.3) -> tuple[Tensor, Tensor]:
    """(R, D) lines higher up than those given, and (R,) their values; each climbs on its own.

    A step turns by an angle, at first `first`, towards the gradient. After a failed one the angle is halved, and where
    the gradient beyond points back across a ridge, the next heading is the shortest vector between both: it runs along
    the ridge.
    """
    height, slope = slopes(theta)
    heading = fresh = _tangent(theta, slope)
    angle = torch.full_like(height, first)
    for _ in range(steps):
        ahead = _turned(theta, heading, angle)
        height_ahead, slope_ahead = slopes(ahead)
        gain = height_ahead > height
        along = _shortest(heading, _tangent(theta, slope_ahead))
        along = torch.where(_norm(along) > 0.1 * _norm(fresh), along, fresh)
        fresh = torch.where(gain[:, None], _tangent(ahead, slope_ahead), fresh)
        heading = torch.where(gain[:, None], fresh, along)
        theta, height = torch.where(gain[:, None], ahead, theta), torch.where(gain, height_ahead, height)
        angle = torch.where(gain, 1.5 * angle, 0.5 * angle).clamp_max(0.5)
        if (angle * _norm(heading)[:, 0]).max() <= _SETTLED * height.max():
            break
    return theta, height


def _tangent(theta: Tensor, slope: Tensor) -> Tensor:
    return slope - (slope * theta).sum(-1, keepdim=True) * theta


def _norm(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return length


def _turned(theta: Tensor, heading: Tensor, angle: Tensor) -> Tensor:
    """(R, D) lines after a turn by (R,) angles along great circles; none where the heading is 0."""
    ahead = angle.cos()[:, None] * theta + angle.sin()[:, None] * unit(heading)
    return unit(ahead)


def _shortest(a: Tensor, b: Tensor) -> Tensor:
    """(R, D) the point nearest to 0 on the segment from a to b."""
    way = b - a
    share = -(a * way).sum(-1, keepdim=True) / way.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return a + share.clamp(0, 1) * way
