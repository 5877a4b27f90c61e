from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import mixture


@entry
class TwentyFiveGaussians:
    r"""Twenty-five small clouds on a square grid: easy to lose a few of them.

    $$ p(x) = \tfrac1{25} \sum_{i, j = -2}^{2} \mathcal N\big(x;\, g\,(i, j),\, s^2 I\big) $$

    Labels are the clouds, column by column from the lower left.

    >>> TwentyFiveGaussians(gap=1.0).middles()[[0, 12, 24]].tolist()
    [[-2.0, -2.0], [0.0, 0.0], [2.0, 2.0]]
    """

    title: ClassVar[str] = "Twenty-five Gaussians"
    source: ClassVar[tuple[str, ...]] = ()

    gap: Annotated[float, Range(0.1, 5, unit="length", help="distance between neighbours")] = 1.0
    noise: Annotated[float, Range(0.01, 3, unit="length", log=True, help="standard deviation of each cloud")] = 0.06

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"cloud {i + 1}" for i in range(25))

    def sample(self, n: int, rng: Generator) -> Cloud:
        return mixture(self.middles(), torch.ones(25), self.noise, n, rng)

    def middles(self) -> Tensor:
        """(25, 2) centres of the clouds."""
        line = torch.arange(-2, 3, dtype=torch.float64)
        return self.gap * torch.cartesian_prod(line, line)
