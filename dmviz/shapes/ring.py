import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, LogProb, Score
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss, has_density, length, uniform


@entry
class Ring:
    r"""A circle, blurred a little: all mass around a hole.

    Uniform on the circle of radius R, plus round noise of standard deviation s:

    $$ \log p(x) = -\frac{(r - R)^2}{2s^2} + \log\big(e^{-z} I_0(z)\big) - \log 2\pi s^2, \quad r = |x|,\ z = rR/s^2 $$

    Without noise there is no density in the plane, and so neither score nor log density.

    >>> from dmviz.cloud import seeded
    >>> law = Ring(radius=2.0, noise=0.1).sample(10, seeded(0))
    >>> law.score(torch.zeros(1, 2)).tolist()  # the middle is a balance point
    [[0.0, 0.0]]
    """

    title: ClassVar[str] = "Ring"
    source: ClassVar[tuple[str, ...]] = ()

    radius: Annotated[float, Range(0.1, 10, unit="length", help="radius of the circle")] = 2.0
    noise: Annotated[float, Range(0, 3, unit="length", help="standard deviation of the blur")] = 0.1

    def sample(self, n: int, rng: Generator) -> Cloud:
        angle = 2 * math.pi * uniform((n,), rng)
        x = self.radius * torch.stack([angle.cos(), angle.sin()], 1) + self.noise * gauss((n, 2), rng)
        score, log_prob = self.law()
        return Cloud(x.float(), score=score, log_prob=log_prob)

    def law(self) -> tuple[Score | None, LogProb | None]:
        """Score and log density, where there are any."""
        return (None, None) if not has_density(self.noise) else (self._score, self._log_prob)

    def _log_prob(self, x: Tensor) -> Tensor:
        r = length(x)
        z = r * (self.radius / self.noise**2)
        bell = ((r - self.radius) / self.noise).square() / 2
        return torch.log(torch.special.i0e(z)) - bell - math.log(2 * math.pi * self.noise**2)

    def _score(self, x: Tensor) -> Tensor:
        r = length(x)
        z = r * (self.radius / self.noise**2)
        pull: Tensor = torch.special.i1e(z) / torch.special.i0e(z)  # in [0, 1): the mean cosine to the circle's points
        return (x / r[:, None] * (self.radius * pull[:, None]) - x) / self.noise**2
