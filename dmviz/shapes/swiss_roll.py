import math
from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Help, Range, entry
from dmviz.shapes._box import box_law
from dmviz.shapes._curve import curve_law
from dmviz.shapes._law import gauss, uniform


@entry
class SwissRoll:
    r"""A sheet rolled up: flat when followed along the sheet, curled up when seen from outside.

    $$ \gamma(u) = \frac{R}{4.5\pi}\, t\,(\cos t, \sin t), \qquad t = 1.5\pi\,(1 + 2u), \quad u \sim U[0, 1] $$

    In 3-D the sheet also has a height, uniform on [-height/2, height/2], as the second coordinate. Round noise is
    added. Labels are the four quarters of the sheet, from the inside out. The density is an integral along the roll,
    taken by quadrature to about 1e-6; without noise there is none.

    >>> from dmviz.cloud import seeded
    >>> SwissRoll(dims="3").sample(10, seeded(0)).x.shape
    torch.Size([10, 3])
    """

    title: ClassVar[str] = "Swiss roll"
    source: ClassVar[tuple[str, ...]] = ("roweis2000",)

    dims: Annotated[Literal["2", "3"], Help("the edge of the sheet, or all of it")] = "2"
    radius: Annotated[float, Range(0.1, 10, unit="length", help="distance of the outer end")] = 2.5
    height: Annotated[
        float, Range(0.1, 20, unit="length", help="height of the sheet in 3-D", when={"dims": ("3",)})
    ] = 3.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.1

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("innermost quarter", "second quarter", "third quarter", "outermost quarter")

    def sample(self, n: int, rng: Generator) -> Cloud:
        u = uniform((n,), rng)
        x = self._roll(u)
        if self.dims == "3":
            rise = self.height * (uniform((n,), rng) - 0.5)
            x = torch.stack([x[:, 0], rise, x[:, 1]], 1)
        x = x + self.noise * gauss(tuple(x.shape), rng)
        cloud = Cloud(x.float(), label=(u * 4).long())
        return self._with_law(cloud)

    def _roll(self, u: Tensor) -> Tensor:
        t = 1.5 * math.pi * (1 + 2 * u)
        return self.radius / (4.5 * math.pi) * t[:, None] * torch.stack([t.cos(), t.sin()], 1)

    def _with_law(self, cloud: Cloud) -> Cloud:
        speed = self.radius / 4.5 * 3 * math.hypot(1, 4.5 * math.pi)  # at the outer end
        flat_score, flat_log_prob = curve_law([self._roll], speed, self.noise)
        if flat_score is None or flat_log_prob is None:
            return cloud
        if self.dims == "2":
            return Cloud(cloud.x, label=cloud.label, score=flat_score, log_prob=flat_log_prob)

        def score(x: Tensor) -> Tensor:
            plane, (_, rise) = flat_score(x[:, [0, 2]]), box_law(x[:, 1], self.height / 2, self.noise)
            return torch.stack([plane[:, 0], rise, plane[:, 1]], 1)

        def log_prob(x: Tensor) -> Tensor:
            return flat_log_prob(x[:, [0, 2]]) + box_law(x[:, 1], self.height / 2, self.noise)[0]

        return Cloud(cloud.x, label=cloud.label, score=score, log_prob=log_prob)
