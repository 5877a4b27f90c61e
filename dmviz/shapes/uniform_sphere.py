import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss, has_density, length, mixture_law, score_of
from dmviz.shapes.ring import Ring


@entry
class UniformSphere:
    r"""The skin of a ball, every place on it equally likely; in two dimensions a circle.

    Points of norm R, plus round noise of standard deviation s. In 3-D, with $r = |x|$:

    $$ p(x) = (2\pi s^2)^{-3/2}\, e^{-(r^2 + R^2) / 2s^2}\, \frac{\sinh z}{z}, \qquad z = rR / s^2 $$

    In 1-D the law is two Gaussians at R and -R, in 2-D it is the ring's. Without noise, or above three dimensions,
    neither score nor density is given.

    >>> from dmviz.cloud import seeded
    >>> UniformSphere(dim=4, radius=2.0).sample(3, seeded(0)).x.norm(dim=1).round(decimals=5).tolist()
    [2.0, 2.0, 2.0]
    """

    title: ClassVar[str] = "Uniform sphere"
    source: ClassVar[tuple[str, ...]] = ()

    radius: Annotated[float, Range(0.1, 10, unit="length", help="radius of the sphere")] = 2.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.0
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 3

    def sample(self, n: int, rng: Generator) -> Cloud:
        way = gauss((n, self.dim), rng)
        x = self.radius * way / way.norm(dim=1, keepdim=True).clamp_min(1e-300)
        x = (x + self.noise * gauss((n, self.dim), rng)).float()
        if not has_density(self.noise) or self.dim > 3:
            return Cloud(x)
        if self.dim == 2:
            score, log_prob = Ring(radius=self.radius, noise=self.noise).law()
            return Cloud(x, score=score, log_prob=log_prob)
        if self.dim == 1:
            score, log_prob = mixture_law(torch.tensor([[self.radius], [-self.radius]]), torch.ones(2), self.noise)
            return Cloud(x, score=score, log_prob=log_prob)
        return Cloud(x, score=score_of(self._log_prob), log_prob=self._log_prob)

    def _log_prob(self, x: Tensor) -> Tensor:
        r = length(x)
        z = r * (self.radius / self.noise**2)
        small = z < 1e-2  # there sinh z / z = 1 + z^2 / 6 to all digits, and the other form divides 0 by 0
        safe = torch.where(small, 1.0, z)
        large = torch.log(-torch.expm1(-2 * safe) / (2 * safe))  # log(sinh z / z) - z
        bell = ((r - self.radius) / self.noise).square() / 2  # takes up that z: no cancellation
        return torch.where(small, z.square() / 6 - z, large) - bell - 1.5 * math.log(2 * math.pi * self.noise**2)
