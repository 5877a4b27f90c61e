import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.params import Range, entry
from dmviz.shapes._law import gauss


@entry
class AnisotropicGaussian:
    r"""A long, flat cloud: a bell curve stretched by a different amount along each of its axes.

    $$ \log p(x) = -\tfrac12 (x - c)^\top \Sigma^{-1} (x - c) - \tfrac12 \log\det 2\pi\Sigma, \quad
       \Sigma = Q\, \mathrm{diag}(s_i^2)\, Q^\top, \quad s_i = s\, q^{-i / (D - 1)} $$

    The standard deviations fall in equal ratios from `scale` to `scale / ratio`. Q turns the first two axes by
    `angle`, against the clock. Step sizes that suit the long axis are too long for the short one: a hard case for
    plain gradient steps.

    >>> from dmviz.cloud import seeded
    >>> law = AnisotropicGaussian(scale=2.0, ratio=4.0, angle=90.0).sample(3, seeded(0))
    >>> law.score(torch.tensor([[0.5, 2.0]])).round(decimals=4).tolist()  # the long axis stands upright
    [[-2.0, -0.5]]
    """

    title: ClassVar[str] = "Stretched Gaussian"
    source: ClassVar[tuple[str, ...]] = ()

    center: Annotated[float, Range(-10, 10, unit="length", help="mean on every axis")] = 0.0
    scale: Annotated[float, Range(0.01, 10, unit="length", log=True, help="largest standard deviation")] = 1.5
    ratio: Annotated[float, Range(1, 100, log=True, help="largest over smallest standard deviation")] = 4.0
    angle: Annotated[float, Range(-180, 180, unit="degrees", help="turn of the first two axes")] = 30.0
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 2

    def sample(self, n: int, rng: Generator) -> Cloud:
        x = self.center + (gauss((n, self.dim), rng) * self.deviations()) @ self.turn().T
        return Cloud(x.float(), score=self._score, log_prob=self._log_prob)

    def deviations(self) -> Tensor:
        """(D,) standard deviations along the axes of the cloud."""
        place = torch.linspace(0, 1, self.dim, dtype=torch.float64)
        return self.scale * self.ratio**-place

    def turn(self) -> Tensor:
        """(D, D) rotation Q; its columns are the axes of the cloud."""
        q = torch.eye(self.dim, dtype=torch.float64)
        if self.dim > 1:
            c, s = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
            q[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
        return q

    def _log_prob(self, x: Tensor) -> Tensor:
        deviations = self.deviations()
        z = (x - self.center) @ (self.turn() / deviations).to(x)
        volume = float(deviations.log().sum()) + 0.5 * self.dim * math.log(2 * math.pi)
        return -0.5 * z.square().sum(1) - volume

    def _score(self, x: Tensor) -> Tensor:
        whiten = self.turn() / self.deviations()
        return (self.center - x) @ (whiten @ whiten.T).to(x)
