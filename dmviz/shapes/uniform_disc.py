import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss, has_density, uniform


@entry
class UniformDisc:
    r"""Every place in a disc is equally likely, and nothing lies outside; a ball in more dimensions.

    $$ p(x) = \frac{\Gamma(D/2 + 1)}{\pi^{D/2} R^D} \quad \text{where } |x| \le R $$

    The density is flat, so its score says nothing and is not given; with noise the density has no closed form either.
    In many dimensions nearly all of the ball lies close to its surface.

    >>> from dmviz.cloud import seeded
    >>> law = UniformDisc(radius=2.0).sample(4, seeded(0))
    >>> round(law.log_prob(law.x[:1]).exp().item() * math.pi * 4, 6)
    1.0
    """

    title: ClassVar[str] = "Uniform disc"
    source: ClassVar[tuple[str, ...]] = ()

    radius: Annotated[float, Range(0.1, 10, unit="length", help="radius of the disc or ball")] = 2.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 2

    def sample(self, n: int, rng: Generator) -> Cloud:
        way = gauss((n, self.dim), rng)
        way = way / way.norm(dim=1, keepdim=True).clamp_min(1e-300)
        x = self.radius * uniform((n, 1), rng) ** (1 / self.dim) * way
        if not has_density(self.noise):
            return Cloud(x.float(), log_prob=self._log_prob)
        return Cloud((x + self.noise * gauss((n, self.dim), rng)).float())

    def _log_prob(self, x: Tensor) -> Tensor:
        d = self.dim
        volume = 0.5 * d * math.log(math.pi) + d * math.log(self.radius) - math.lgamma(d / 2 + 1)
        # A drawn point on the rim may lie outside by its own rounding.
        inside = x.norm(dim=1) <= self.radius * (1 + 4 * torch.finfo(x.dtype).eps)
        return torch.where(inside, x.new_tensor(-volume), -math.inf)
