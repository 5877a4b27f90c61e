"""Precision, recall, density and coverage: who lies within whose neighbourhood."""

import math
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._neighbours import held, neighbours, rounding
from dmviz.losses._pairs import squares, tiles
from dmviz.params import Help, Range, entry


@entry
class PrecisionRecall:
    r"""Draw a ball around every point, out to its k-th neighbour, and see who of the other cloud is inside.

    $$ \text{precision} = \operatorname{mean}_j [\exists i: |y_i - x_j| < r_i], \qquad
       \text{density} = \frac1k \operatorname{mean}_j \#\{i: |y_i - x_j| < r_i\} $$
    $$ \text{recall} = \operatorname{mean}_i [\exists j: |y_i - x_j| < r'_j], \qquad
       \text{coverage} = \operatorname{mean}_i [\min_j |y_i - x_j| < r_i] $$

    with target points y, particles x, and r (r') the distance of a point to its k-th nearest other point of the same
    cloud. Precision: the particles that are likely under the target; recall: the target points that are likely under
    the particles. Density counts balls instead of asking for one, so that a single outlier of the target does not
    vouch for many particles; coverage asks for a particle near every target point.

    The value is 1 less the measure, so that less is better: in [0, 1], but for density, which can exceed 1 and then
    gives a value below 0. `measure_of` is the measure itself. `null` is what it is on average where both clouds
    have one continuous law: exactly 1 for density, and for N target points and M particles

    $$ E\,\text{coverage} = 1 - \prod_{t=1}^{k} \frac{N - t}{N + M - t}; $$

    precision and recall have no such formula. k small: strict balls and much noise; large: all is inside. Take k so
    that the null coverage is above 0.95. Balls are open; a point at the very rim, to within rounding, is outside.
    Weights count as shares of points. Fails on copies, whose balls have radius 0, and it only judges: each answer is
    yes or no.

    Kynkaanniemi et al. 2019; Naeem et al. 2020.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.5], [9.0]]), torch.tensor([[0.0], [1.0], [2.0]])
    >>> PrecisionRecall("precision", neighbours=1)(here, Cloud(there), seeded(0)).item()  # 9 is in no ball of radius 1
    0.5

    ```
    """

    title = "Precision, recall, density, coverage"
    family = "evaluation"
    source = ("kynkaanniemi2019improved", "naeem2020reliable")
    needs = "samples"
    drives = False
    cost = "(N + M)^2 D time, N + M memory"
    laws = frozenset({"shift_free", "rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0

    measure: Annotated[
        Literal["precision", "recall", "density", "coverage"],
        Help("precision and density ask whether particles are likely; recall and coverage whether the target is met"),
    ] = "coverage"
    neighbours: Annotated[
        int, Range(1, 50, help="How far a ball reaches: to the first neighbour, strict and noisy, or to the 50th")
    ] = 5

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return (1.0 - self.measure_of(x, target, weight)).to(x.dtype)

    @torch.no_grad()
    def measure_of(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """The measure as its authors give it: larger is better."""
        (x, a), (y, b) = held(x, mass_of(x, weight)), held(target.x, target.mass())
        if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
            return a.new_tensor(math.nan)
        rim = rounding(x, y)
        if self.measure == "recall":
            return b @ (_balls(y, x, _radii(x, self.neighbours) - rim, a) > 0).double()
        reach = _radii(y, self.neighbours) - rim
        if self.measure == "coverage":
            return b @ (neighbours(y, x, 1)[0][:, 0] < reach).double()
        inside = _balls(x, y, reach, b)
        if self.measure == "precision":
            return a @ (inside > 0).double()
        return a @ inside * (len(y) / self.neighbours)

    def null(self, n: int, m: int) -> float:
        """The measure's mean where n target points and m particles have one continuous law; nan where none is known."""
        if self.measure == "density":
            return 1.0
        if self.measure != "coverage":
            return math.nan
        missed = math.prod((n - t) / (n + m - t) for t in range(1, min(self.neighbours, n) + 1))
        return 1.0 - missed


def _radii(y: Tensor, k: int) -> Tensor:
    """(M,) distance to the k-th nearest other point, or to the farthest where there are fewer; 0 for one alone."""
    k = min(k, len(y) - 1)
    return neighbours(y, y, k, own=True)[0][:, -1] if k else y.new_zeros(len(y), dtype=torch.float64)


def _balls(x: Tensor, y: Tensor, reach: Tensor, b: Tensor) -> Tensor:
    """(N,) mass of the y whose ball of radius `reach` holds x."""
    middle, total = y.double().mean(0), x.new_zeros(len(x), dtype=torch.float64)
    x, y, within = x.double() - middle, y.double() - middle, reach.clamp_min(0.0).square()
    for i, j in tiles(len(x), len(y), x):
        total[i] += (squares(x[i], y[j]) < within[j]).double() @ b[j]
    return total
