"""Nearest neighbours: a k-d tree in few dimensions, tiles in many; a point is never its own neighbour."""

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from dmviz.losses._pairs import squares, tiles

_TREE = 10
"""Up to this dimension a tree looks at few of the points."""


@torch.no_grad()
def neighbours(x: Tensor, y: Tensor, k: int, own: bool = False) -> tuple[Tensor, Tensor]:
    """(N, k) distances to the k nearest y, ascending and float64, and their rows. At least k points must be there.

    With `own` y is x, and no point is its own neighbour.
    """
    wanted = k + int(own)
    if x.shape[1] <= _TREE and x.device.type == "cpu":
        _, found = cKDTree(y.double().numpy()).query(x.double().numpy(), range(1, wanted + 1))
        index = torch.as_tensor(found)
    else:
        index = _in_tiles(x, y, wanted)
    if own:
        index = _without_self(index)
    return _exact(x, y, index), index


def _in_tiles(x: Tensor, y: Tensor, k: int) -> Tensor:
    middle = y.mean(0)
    x, y = x - middle, y - middle
    best = x.new_full((len(x), k), torch.inf)
    index = torch.zeros((len(x), k), dtype=torch.int64, device=x.device)
    for i, j in tiles(len(x), len(y), x):
        r2 = squares(x[i], y[j])
        rows = torch.arange(j.start, j.stop, device=x.device).expand(len(r2), -1)
        near, at = torch.cat((best[i], r2), 1).topk(k, 1, largest=False)
        best[i], index[i] = near, torch.cat((index[i], rows), 1).gather(1, at)
    return index


def _without_self(index: Tensor) -> Tensor:
    """Each row without its own number; without its last where many copies of a point have crowded it out."""
    mine = index == torch.arange(len(index), device=index.device)[:, None]
    mine[:, -1] |= ~mine.any(1)
    return index[~mine].view(len(index), -1)


def _exact(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """Distances from differences, a block of rows at a time, in order."""
    rows = max(1, (1 << 20) // max(1, index.shape[1] * x.shape[1]))
    parts = [
        (x[i : i + rows, None].double() - y[index[i : i + rows]].double()).square().sum(2).sqrt()
        for i in range(0, len(x), rows)
    ]
    return torch.cat(parts)


def size_of(x: Tensor, y: Tensor) -> float:
    """Root mean square distance from the common middle, the length against which rounding is judged."""
    both = torch.cat((x, y)).double()
    return float((both - both.mean(0)).square().sum(1).mean().sqrt())


def rounding(x: Tensor, y: Tensor) -> float:
    """A length below which two points of these clouds are one."""
    return size_of(x, y) * (1e-9 if x.dtype == torch.float64 else 1e-6)


def held(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """The points that have weight, and their weights in float64."""
    some = a > 0
    return x.detach()[some], a[some].double() / a[some].double().sum()
