"""Sliced Wasserstein ratio: how far particles are from the target, in units of how far real data are from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._slicing import Slices, fixed_unit_vectors, sliced_power
from dmviz.params import Range, entry

CAP = 1e6
"""Largest ratio: what a target gives whose halves are equal point for point, as if they were one repeated point."""


@entry
class SlicedRatio:
    r"""Measure the distance to one half of the target, and divide it by the distance of the other half.

    $$ F = \frac{SW_2(x,\ \text{train})}{SW_2(\text{val},\ \text{train})} $$

    train and val are two halves of the target, split by a seed; SW_2 is the root of the sliced Wasserstein distance
    squared, over the same fixed directions above and below. Two finite samples of one law are never 0 apart, so a bare
    distance does not say what is good: here about 1 means as close as real data, 1.3 a third further, and below 1 is a
    sign of copied points. All three clouds are cut to the same number of points, min(N, M / 2), since the distance of
    real data falls with it; a weighted cloud keeps its weights among those. No unit; at most a million.

    This is the SW r14 of representation distribution matching for one feature space; `sw_ratio` averages over several.
    It only judges: a measure that is trained against stops measuring. It fails on few points, where the ratio jumps
    with the split, and on a target whose halves are equal, which gives a million.

    Feng et al. 2026 (1,024 normal directions and rooted distances as in the authors' released code).

    ```python
    >>> from dmviz.cloud import seeded
    >>> target = Cloud(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    >>> far = torch.tensor([[3.0, 0.0]])  # 2 or 3 away from either half, which are 1 apart
    >>> round(SlicedRatio()(far, target, seeded(0)).item(), 4) in (2.0, 3.0)
    True

    ```
    """

    title = "Sliced Wasserstein ratio"
    family = "evaluation"
    source = ("feng2026rdm", "bonneel2015")
    needs = "samples"
    cost = "L N (D + log N) time, N + M memory"
    laws = frozenset({"nonnegative", "shift_free", "deterministic"})
    degree = 0.0
    root = 1.0
    drives = False

    slices: Annotated[
        int, Range(1, 4096, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 1024
    direction_seed: Annotated[int, Range(0, 2**31 - 1, help="another number, other lines")] = 0
    split_seed: Annotated[int, Range(0, 2**31 - 1, help="another number, other halves of the target")] = 0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        count = max(1, min(len(x), len(target) // 2))
        ruler = self._ruler(target, count)
        cut = _part(Cloud(x, weight), seeded(self.split_seed, 55), count) if len(x) > count else Cloud(x, weight)
        far = _distance(cut, ruler.train, self._lines(target.dim))
        return _ratio(far, ruler.real).to(x.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The halves and the distance between them, for as many particles as half the target."""
        ruler = self._ruler(target, max(1, len(target) // 2))
        return replace(target, memo={"of": target.x, "loss": self, "ruler": ruler})

    def _ruler(self, target: Cloud, count: int) -> "_Ruler":
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self and len(memo["ruler"].train) == count:
            return memo["ruler"]  # type: ignore[no-any-return]
        both = _part(target, seeded(self.split_seed, 54), 2 * count)
        train, val = _rows(both, slice(0, count)), _rows(both, slice(-count, None))
        return _Ruler(train, _distance(val, train, self._lines(target.dim)))

    def _lines(self, dim: int) -> Slices:
        return Slices.even(fixed_unit_vectors("random", self.slices, dim, self.direction_seed))


class _Ruler(NamedTuple):
    train: Cloud
    real: Tensor  # () distance of the other half


def sw_ratio(
    gens: Sequence[Tensor], trains: Sequence[Tensor], vals: Sequence[Tensor], slices: int = 1024, seed: int = 0
) -> float:
    """Mean over feature spaces of SW_2(gen, train) / SW_2(val, train): SW r14 where there are 14 of them.

    Each space has its three arrays (N, D), cut to the shortest; spaces of equal dimension share their directions.

    >>> real, moved = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    >>> sw_ratio([moved + 2, moved], [real, real], [moved, moved])
    2.0
    """
    ratios = []
    for gen, train, val in zip(gens, trains, vals, strict=True):
        count = min(len(gen), len(train), len(val))
        lines = Slices.even(fixed_unit_vectors("random", slices, train.shape[1], seed))
        far, real = (_distance(Cloud(z[:count]), Cloud(train[:count]), lines) for z in (gen, val))
        ratios.append(float(_ratio(far, real)))
    return sum(ratios) / len(ratios)


def _distance(x: Cloud, y: Cloud, lines: Slices) -> Tensor:
    return sliced_power(x.x.double(), Cloud(y.x.double(), y.weight), lines, x.weight, 2).sqrt()


def _ratio(far: Tensor, real: Tensor) -> Tensor:
    """far / real, at most `CAP`; 1 where both are 0."""
    return torch.where(far > 0, far / torch.maximum(real, far / CAP).clamp_min(1e-300), (real <= 0).to(far))


def _part(cloud: Cloud, rng: Generator, count: int) -> Cloud:
    """`count` different points by chance, or all of them in another order."""
    rows = torch.randperm(len(cloud), generator=rng, device=rng.device).to(cloud.x.device)
    return _rows(cloud, rows[:count])


def _rows(cloud: Cloud, rows: Tensor | slice) -> Cloud:
    if cloud.weight is None:
        return Cloud(cloud.x[rows])
    weight = cloud.weight[rows].double()
    return Cloud(cloud.x[rows], weight / weight.sum().clamp_min(1e-300))
