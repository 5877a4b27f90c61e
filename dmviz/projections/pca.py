from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor

from dmviz.params import Help, entry
from dmviz.projections._linear import Linear


@entry
class Pca:
    r"""The flat picture that keeps as much of the spread as a flat picture can.

    $$ z = (x - \bar x)\, V, \qquad V = \text{the leading right singular vectors of } X - \bar x $$

    Axes say which share of the variance they show. Each axis points to where its largest entry is positive, so that
    the picture does not flip between runs. Distances in it are never larger than in the full space, and two points
    that lie together here may be far apart there.

    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 4.0]])
    >>> Pca().fit(x, seeded(0))(x).tolist()  # all spread is on the last axis
    [[-2.0, 0.0], [2.0, 0.0]]
    """

    title: ClassVar[str] = "Principal components"
    source: ClassVar[tuple[str, ...]] = ("pearson1901",)

    dims: Annotated[Literal["2", "3"], Help("flat or in space")] = "2"

    def fit(self, x: Tensor, rng: Generator) -> Linear:
        wide = x.double()
        center = wide.mean(0)
        size, way = _spread(wide - center)
        total = size.sum().clamp_min(1e-300)
        ways, axes = [], []
        for i in range(int(self.dims)):
            # Rounding alone must not be shown as spread: beyond the rank an axis stays at 0.
            real = i < len(size) and bool(size[i] > 1e-14 * total)
            ways.append(_signed(way[:, i]) if real else torch.zeros_like(center))
            axes.append(f"PC {i + 1} ({100 * float(size[i] / total):.3g} %)" if real else f"PC {i + 1} (0 %)")
        return Linear(center, torch.stack(ways, 1), tuple(axes))


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values of centred x (N, D), largest first, and the directions (D, min(N, D))."""
    if x.shape[0] < x.shape[1]:
        _, size, way = torch.linalg.svd(x, full_matrices=False)
        return size.square(), way.T
    size, way = torch.linalg.eigh(x.T @ x)
    return size.flip(0).clamp_min(0), way.flip(1)


def _signed(way: Tensor) -> Tensor:
    return way if way[way.abs().argmax()] >= 0 else -way
