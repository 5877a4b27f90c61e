"""Spherical sliced Wasserstein distance: transport on great circles."""

import math
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._circle import power_on_circles, pull_on_circles
from dmviz.losses._lines import accurate
from dmviz.losses._slicing import frames
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "triangle"})
_BLOCK = 1 << 18  # numbers handled at once
_OFF = 1e-10  # a point whose shadow on a plane is shorter than this share of it has no angle there


@entry
class SphericalSliced:
    r"""Compare directions alone: cast both clouds on many great circles and match them around each.

    $$ F = \frac1L \sum_{l=1}^{L} W_p^p(t_l \# \mu,\ t_l \# \nu),\qquad
       t_l(x) = \tfrac{1}{2\pi} \operatorname{angle}(U_l^\top x) $$

    Points count by their direction from the origin, as if first put on the unit sphere: x / |x|. U_l are two
    orthonormal vectors, even among all such, and W_p is exact transport around a circle of circumference 1, by the
    level median for p = 1 and by the best shift for p = 2 (held while the gradient is taken). The value is the mean
    p-th power, in turns to the power p; no two points are more than 1/2 apart. In 2-D the one circle there is needs
    no chance; with one point only its direction matters.

    The pull is along the sphere (at distance |x| from the origin, 1 / |x| times as strong), so the flow stays near it;
    hold particles on the sphere to stay on it exactly. Steps are in turns: W2 moves (2 pi)^2 times slower than in
    radians, so take a step size of about 10 D.

    Fails: in 3-D and above a point across a plane has no angle there, and one that is nearly so is pulled very hard;
    at the origin no point has a direction, and it stays. It is known to be a pseudo-metric; distances along lengths
    are not seen at all.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    >>> SphericalSliced()(here, Cloud(there), seeded(0)).item()  # a quarter of a turn, squared
    0.0625

    ```
    """

    title = "Spherical sliced Wasserstein"
    family = "slices"
    source = ("bonet2023spherical", "delon2010fast")
    needs = "samples"
    cost = "L (N + M) (D + log) time, N + M memory"
    degree = 0.0
    dims = (2, None)

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
    circles: Annotated[
        int, Range(1, 1024, log=True, help="great circles to look at: few are fast and rough, many slow and smooth")
    ] = 32
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new circles at every step, right on average; fixed: the same all along")
    ] = "fresh"
    circle_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed circles", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    @property
    def root(self) -> float:
        return float(self.power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there, planes = self._seen(x, target, rng)
        value = torch.zeros((), dtype=here.dtype, device=x.device)
        for part in _parts(len(planes), len(x) + len(target)):
            t, s = turns(here, planes[part])[0], turns(there, planes[part])[0]
            value = value + power_on_circles(t, weight, s, target.weight, self.power).sum()
        return (value / len(planes)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: around each circle, to the mean goal (p = 2) or in the direction of less flow (p = 1)."""
        here, there, planes = self._seen(x, target, rng)
        v, value = torch.zeros_like(here), torch.zeros((), dtype=here.dtype, device=x.device)
        for part in _parts(len(planes), len(x) + len(target)):
            t, along = turns(here, planes[part])
            s, _ = turns(there, planes[part])
            pull = pull_on_circles(t, weight, s, target.weight, self.power)
            value += pull.value.sum()
            v.addmm_((pull.v * along[0]).T, planes[part, :, 0]).addmm_((pull.v * along[1]).T, planes[part, :, 1])
        v = torch.where(mass_of(x, weight)[:, None] > 0, v / len(planes), 0.0)
        return Velocity(v.to(x.dtype), (value / len(planes)).to(x.dtype))

    def _seen(self, x: Tensor, target: Cloud, rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Both clouds in float64, and (L, D, 2) planes."""
        if target.dim < 2:
            raise ValueError("SphericalSliced: directions need 2 dimensions or more, got 1. Choose sliced Wasserstein.")
        y = target.x.detach().to(accurate(x))
        return x.to(y), y, self._planes(target.dim, rng).to(y)

    def _planes(self, dim: int, rng: Generator) -> Tensor:
        if dim == 2:
            return torch.eye(2, dtype=torch.float64)[None]
        return frames(self.circles, dim, 2, seeded(self.circle_seed, 55) if self.draw == "fixed" else rng)


def turns(x: Tensor, planes: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(L, N) angles in turns, in [0, 1], differentiable, and their derivatives along both vectors of each plane."""
    a, b = planes[:, :, 0] @ x.T, planes[:, :, 1] @ x.T
    square = a.detach().square() + b.detach().square()
    seen = square > _OFF**2 * x.detach().square().sum(1)
    # An angle has no slope where both sides are 0: such points stand at 0 and are not pulled.
    angle = torch.atan2(torch.where(seen, b, 0.0), torch.where(seen, a, 1.0)) / (2 * math.pi)
    slope = torch.where(seen, 1 / (2 * math.pi * square.clamp_min(torch.finfo(x.dtype).tiny)), 0.0)
    return torch.where(angle < 0, angle + 1, angle), (-b.detach() * slope, a.detach() * slope)


def _parts(count: int, width: int) -> list[slice]:
    """Blocks of circles."""
    size = max(1, _BLOCK // max(width, 1))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
