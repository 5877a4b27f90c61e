import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import mixture


@entry
class EightGaussians:
    r"""Eight small clouds on a circle: the classic test of whether a method finds every mode.

    $$ p(x) = \tfrac18 \sum_{j=0}^{7} \mathcal N\big(x;\, R(\cos\tfrac{\pi j}4, \sin\tfrac{\pi j}4),\, s^2 I\big) $$

    Labels are the clouds, counted from the right, against the clock.

    >>> from dmviz.cloud import seeded
    >>> law = EightGaussians(radius=2.0, noise=0.1).sample(100, seeded(0))
    >>> law.score(torch.tensor([[2.1, 0.0]])).round().tolist()  # 0.1 outside the right one, over 0.1^2
    [[-10.0, 0.0]]
    """

    title: ClassVar[str] = "Eight Gaussians"
    source: ClassVar[tuple[str, ...]] = ()

    radius: Annotated[float, Range(0.1, 10, unit="length", help="distance of each cloud from the origin")] = 2.0
    noise: Annotated[float, Range(0.01, 3, unit="length", log=True, help="standard deviation of each cloud")] = 0.1

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"cloud {i + 1}" for i in range(8))

    def sample(self, n: int, rng: Generator) -> Cloud:
        return mixture(self.middles(), torch.ones(8), self.noise, n, rng)

    def middles(self) -> Tensor:
        """(8, 2) centres of the clouds."""
        angle = 2 * math.pi * torch.arange(8, dtype=torch.float64) / 8
        return self.radius * torch.stack([angle.cos(), angle.sin()], 1)
