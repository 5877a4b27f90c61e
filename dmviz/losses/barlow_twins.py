"""Barlow Twins: coordinates that agree with their partner's and with no other."""

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_FLOOR = 1e-5  # under the root of the variance, as in batch normalisation


@entry
class BarlowTwins:
    r"""Correlate every coordinate with the same one of the partners, and with no other.

    $$ F = \sum_j (1 - C_{jj})^2 + \lambda \sum_{j \ne k} C_{jk}^2, \qquad
       C = \sum_i a_i\, \hat x_i \hat y_i^\top, \qquad
       \hat z_j = \frac{z_j - E z_j}{\sqrt{\mathrm{Var}\,z_j + 10^{-5}}} $$

    Order matters: particle i belongs with target row i, from row 0 again where the target has fewer rows; rows beyond
    the last particle and the target's weights are not read. A pair counts with its particle's weight, in the target's
    moments too. Unit: none; C is the cross-correlation of the two clouds, so shifts and stretches of a coordinate
    change nothing as long as it varies by more than the 1e-5 under the root. The value is D where nothing is correlated
    and 4 D where the clouds are each other's negative.

    `redundancy` lambda is 0.0051 in the paper, for D = 8,192; about 1 / D suits few dimensions. Large: coordinates are
    made independent before they agree. Fails: with fewer than D particles, chance alone leaves about D^2 / N off the
    diagonal; particles move only as far as correlations ask, not to their partners.

    Zbontar et al. 2021, equations 1 and 2.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[10.0], [-10.0]])
    >>> round(BarlowTwins()(x, Cloud(-x), seeded(0)).item(), 3)  # (1 - (-1))^2
    4.0

    ```
    """

    title = "Barlow Twins"
    family = "regularizers"
    source = ("zbontar2021barlow",)
    needs = "samples"
    cost = "N D^2 time, N D memory"
    laws = frozenset({"nonnegative", "shift_free", "deterministic"})
    degree = math.nan
    root = 2.0
    ordered = True

    redundancy: Annotated[
        float, Range(1e-5, 10.0, log=True, help="Weight of correlations between different coordinates")
    ] = 0.0051

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a = mass_of(x, weight).to(accurate(x))
        gap = self._correlation(x, target, a)[2]
        return (gap.square() * self._weights(gap)).sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """What the gap to the unit matrix asks of each coordinate, less what only moves its mean and deviation."""
        a = mass_of(x, weight).to(accurate(x))
        z, partner, gap, deviation = self._correlation(x, target, a)
        asked = partner @ (2.0 * self._weights(gap) * gap).T  # (N, D)
        asked = asked - a @ asked - z * (a @ (asked * z))
        v = torch.where(a[:, None] > 0, -asked / deviation, 0.0)
        return Velocity(v.to(x.dtype), (gap.square() * self._weights(gap)).sum().to(x.dtype))

    def correlation(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """(D, D) float64 cross-correlation of particles (rows) and partners (columns), for drawing."""
        gap = self._correlation(x.detach(), target, mass_of(x, weight).to(accurate(x)))[2]
        return gap + torch.eye(len(gap), dtype=gap.dtype, device=gap.device)

    def _weights(self, gap: Tensor) -> Tensor:
        """1 on the diagonal, lambda off it."""
        unit = torch.eye(len(gap), dtype=gap.dtype, device=gap.device)
        return self.redundancy + (1.0 - self.redundancy) * unit

    def _correlation(self, x: Tensor, target: Cloud, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both clouds standardised, C less the unit matrix, and the particles' deviations, all float64."""
        rows = torch.arange(len(x), device=x.device) % len(target)
        z, deviation = _standardised(x, a)
        partner, _ = _standardised(target.x.detach()[rows], a)
        gap = z.T @ (a[:, None] * partner) - torch.eye(x.shape[1], dtype=a.dtype, device=a.device)
        return z, partner, gap, deviation


def _standardised(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    z = x.to(a.dtype) - x.detach().to(a.dtype).mean(0)
    z = z - (a @ z) / a.sum()
    deviation = (a @ z.square() + _FLOOR).sqrt()
    return z / deviation, deviation
