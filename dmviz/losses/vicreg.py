"""VICReg's terms of one cloud: every coordinate keeps its spread, and no two say the same."""

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_FLOOR = 1e-4  # under the root, in units of the wanted deviation squared: its slope stays finite at collapse


@entry
class VicReg:
    r"""Keep the spread of every coordinate above a floor, and make coordinates uncorrelated.

    $$ F = \frac{w_v}{D} \sum_j \Bigl[\gamma - \sqrt{\mathrm{Var}_j + 10^{-4} \gamma^2}\,\Bigr]_+
         + \frac{w_c}{D} \sum_{j \ne k} \mathrm{Cov}_{jk}^2 $$

    with unbiased moments: divided by N - 1, or by 1 - sum a_i^2 in place of 1 where weights differ. The target is not
    read: VICReg's third term, the mean squared distance between two views, is the pull of a particle to its partner,
    which other losses here show. The weights 25 and 1 are those of the released code, which takes half of the hinges of
    two views and the sum of their covariances: two equal views have this loss with `covariance` 2.

    Unit: mixed, a length and a length to the fourth. `deviation` gamma is the spread that a coordinate must have.
    Fails: where all particles coincide there is no direction in which to spread, so that they stay together; noise at
    the start helps. It depends on the axes: turning the cloud changes it. Beyond gamma nothing holds the cloud.

    Bardes et al. 2022, equations 1 to 6.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    >>> round(VicReg()(x, Cloud(x), seeded(0)).item(), 4)  # hinges at rest; (4/3)^2 twice, over 2
    1.7778

    ```
    """

    title = "Variance and covariance (VICReg)"
    family = "regularizers"
    source = ("bardes2022vicreg",)
    needs = "nothing"
    cost = "N D^2 time, N D memory"
    laws = frozenset({"nonnegative", "shift_free", "deterministic"})
    degree = math.nan
    root = 1.0

    variance: Annotated[float, Range(0.0, 1000.0, help="Weight of keeping every coordinate spread out")] = 25.0
    covariance: Annotated[float, Range(0.0, 1000.0, help="Weight of making coordinates uncorrelated")] = 1.0
    deviation: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="Least standard deviation wanted of each coordinate")
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        z, a, size = _centred(x, weight)
        spread = ((a[:, None] * z.square()).sum(0) / size + _FLOOR * self.deviation**2).sqrt()
        hinge = (self.deviation - spread).clamp_min(0.0).mean()
        crossed = _crossed(z, a, size).square().sum() / x.shape[1]
        return (self.variance * hinge + self.covariance * crossed).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Away from the mean in coordinates that are too narrow, and against what coordinates share."""
        v = self.probe(x, x, target, rng, weight)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, self(x, target, rng, weight))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same at any points (K, D): only the moments of the particles count."""
        z, a, size = _centred(x, weight)
        here = at.to(z.dtype) - (x[0].to(z.dtype) - z[0])
        spread = ((a[:, None] * z.square()).sum(0) / size + _FLOOR * self.deviation**2).sqrt()
        narrow = torch.where(spread < self.deviation, self.variance / spread, 0.0)
        push = narrow * here - 4.0 * self.covariance * here @ _crossed(z, a, size)
        return (push / (size * x.shape[1])).to(at.dtype)


def _centred(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x less its mean, weights, and 1 - sum a_i^2 (1 for a single point, whose moments are 0), all float64."""
    a = mass_of(x, weight).to(accurate(x))
    z = x.to(a.dtype) - x.detach().to(a.dtype).mean(0)
    z = z - (a @ z) / a.sum()
    rest = 1.0 - a.square().sum()
    return z, a, torch.where(rest > 1e-12, rest, 1.0)


def _crossed(z: Tensor, a: Tensor, size: Tensor) -> Tensor:
    """(D, D) the covariance with zeros on its diagonal."""
    covariance = z.T @ (a[:, None] * z) / size
    return covariance - torch.diag(covariance.diagonal())
