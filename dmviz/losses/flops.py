"""FLOPs regularizer: coordinates that are seldom and evenly in use."""

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity


@entry
class Flops:
    r"""Shrink every coordinate towards 0, most of all those that many particles use.

    $$ F = \sum_{j=1}^{D} \Bigl(\sum_i a_i\, |z_{ij}|\Bigr)^2 $$

    with z = x, max(0, x) or x pulled towards 0 by the threshold. It stands for the number of multiplications that a dot
    product of two sparse embeddings takes, $\sum_j p_j^2$ with $p_j$ the share of particles whose coordinate j is not
    0; `expected_products` counts that. The target is not read. Unit: length squared. A coordinate moves towards 0 at
    twice its column's mean, the same for all particles: columns in use shrink fastest, so that none carries all. (The
    mean of |z| alone shrinks all columns alike and lets most die.)

    Fails: alone its only rest is z = 0; it belongs beside a loss that needs the coordinates. Exact zeros come about
    only with `relu` or `soft_threshold`, where a coordinate that has reached 0 has no gradient and stays; with `none`
    particles jitter about 0 by a step. It depends on the axes: turning the cloud changes it.

    Paria et al. 2020.

    ```python
    >>> from dmviz.cloud import seeded
    >>> spread, crowded = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> Flops()(spread, Cloud(spread), seeded(0)).item(), Flops()(crowded, Cloud(crowded), seeded(0)).item()
    (0.5, 1.0)

    ```
    """

    title = "FLOPs sparsity"
    family = "regularizers"
    source = ("paria2020minimizing",)
    needs = "nothing"
    cost = "N D time, N D memory"
    laws = frozenset({"nonnegative", "deterministic"})
    degree = 2.0
    root = 2.0

    activation: Annotated[
        Literal["none", "relu", "soft_threshold"],
        Help("What turns a particle into a sparse embedding: nothing, negative parts cut, or small values cut"),
    ] = "none"
    threshold: Annotated[
        float,
        Range(
            0.0,
            1e3,
            unit="length",
            help="Values up to here become 0: 0 cuts nothing, a large one everything",
            when={"activation": ("soft_threshold",)},
        ),
    ] = 0.1

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return self._columns(self.embedding(x), mass_of(x, weight)).square().sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Twice the column's mean, towards 0."""
        columns = self._columns(self.embedding(x), mass_of(x, weight))
        v = -2.0 * columns.to(x.dtype) * self.embedding(x).sign()
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, columns.square().sum().to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same at any points (K, D): only the columns' means count."""
        columns = self._columns(self.embedding(x), mass_of(x, weight))
        return -2.0 * columns.to(at.dtype) * self.embedding(at).sign()

    def embedding(self, x: Tensor) -> Tensor:
        """(N, D) what the activation makes of particles."""
        if self.activation == "relu":
            return x.clamp_min(0.0)
        if self.activation == "soft_threshold":
            return x - x.clamp(-self.threshold, self.threshold)
        return x

    def _columns(self, z: Tensor, a: Tensor) -> Tensor:
        """(D,) mean of |z| in each column, float64."""
        wide = accurate(z)
        return a.to(wide) @ z.to(wide).abs()


def activity(z: Tensor) -> Tensor:
    """(D,) share of rows in which each column is not 0."""
    return (z != 0).to(z.dtype).mean(0)


def expected_products(z: Tensor) -> float:
    """Multiplications that the dot product of two rows, drawn by chance, takes on average: sum_j p_j^2.

    >>> expected_products(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    0.5
    """
    return float(activity(z).square().sum())


def unevenness(z: Tensor) -> float:
    """D sum_j p_j^2 / (sum_j p_j)^2: 1 where all columns are in use alike, D where one carries all; nan where none is.

    >>> unevenness(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    2.0
    """
    p = activity(z)
    return float(len(p) * p.square().sum() / p.sum().square())
