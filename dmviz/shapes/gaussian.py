from typing import Annotated, ClassVar

import torch
from torch import Generator

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss, mixture_law


@entry
class Gaussian:
    r"""A round cloud, thickest in the middle: the bell curve in any number of dimensions.

    $$ \log p(x) = -\frac{|x - c|^2}{2 s^2} - \frac D2 \log(2\pi s^2), \qquad \nabla\log p(x) = (c - x) / s^2 $$

    c has the entry `center` on every axis. In many dimensions nearly all points lie close to the distance
    $s\sqrt D$ from the middle, and none in it.

    >>> from dmviz.cloud import seeded
    >>> law = Gaussian(center=1.0, scale=2.0).sample(5, seeded(0))
    >>> law.score(torch.tensor([[3.0, 1.0]])).tolist()  # (1 - 3) / 2^2
    [[-0.5, 0.0]]
    """

    title: ClassVar[str] = "Gaussian"
    source: ClassVar[tuple[str, ...]] = ()

    center: Annotated[float, Range(-10, 10, unit="length", help="mean on every axis")] = 0.0
    scale: Annotated[float, Range(0.01, 10, unit="length", log=True, help="standard deviation on every axis")] = 1.0
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 2

    def sample(self, n: int, rng: Generator) -> Cloud:
        x = self.center + self.scale * gauss((n, self.dim), rng)
        mean = torch.full((1, self.dim), self.center, dtype=torch.float64)
        score, log_prob = mixture_law(mean, torch.ones(1), self.scale)
        return Cloud(x.float(), score=score, log_prob=log_prob)
