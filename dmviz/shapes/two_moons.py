import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._curve import curve_law
from dmviz.shapes._law import gauss, uniform


@entry
class TwoMoons:
    r"""Two half circles that reach into each other: two parts that no straight line separates.

    The upper moon is $R(\cos\pi u - \tfrac12, \sin\pi u - \tfrac14)$, the lower one the same turned by half a turn
    about the origin; u is uniform on [0, 1], half of the mass lies on each, and round noise is added. Labels are the
    moons. The density is an integral over the moons, taken by quadrature to about 1e-6; without noise there is none.

    >>> from dmviz.cloud import seeded
    >>> cloud = TwoMoons(noise=0.0).sample(4, seeded(0))
    >>> upper, lower = cloud.x[cloud.label == 0], cloud.x[cloud.label == 1]
    >>> ((upper - torch.tensor([-0.75, -0.375])).norm(dim=1) - 1.5).abs().max().item() < 1e-6
    True
    """

    title: ClassVar[str] = "Two moons"
    source: ClassVar[tuple[str, ...]] = ("pedregosa2011",)

    radius: Annotated[float, Range(0.1, 10, unit="length", help="radius of each moon")] = 1.5
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.1

    @property
    def label_names(self) -> tuple[str, ...]:
        return ("upper moon", "lower moon")

    def sample(self, n: int, rng: Generator) -> Cloud:
        label = (uniform((n,), rng) >= 0.5).long()
        upper = self._upper(uniform((n,), rng))
        x = torch.where(label[:, None] == 0, upper, -upper) + self.noise * gauss((n, 2), rng)
        score, log_prob = curve_law((self._upper, lambda u: -self._upper(u)), math.pi * self.radius, self.noise)
        return Cloud(x.float(), label=label, score=score, log_prob=log_prob)

    def _upper(self, u: Tensor) -> Tensor:
        angle = math.pi * u
        return self.radius * torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], 1)
