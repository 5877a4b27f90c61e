"""Tree-sliced Wasserstein on systems of lines, with constant splitting: a weighted sliced W1."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._slicing import Slices, gaussian, sliced_power, sliced_velocity, sorted_target, unit
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle"})


@entry
class TswSl:
    r"""Split every point among the lines of a chain in fixed shares, and transport along the chain.

    $$ F = \frac1T \sum_{\text{trees}} W_1(\text{tree}) = \frac1T \sum_{\text{trees}} \sum_{l=1}^{k} \alpha_l\,
       W_1(\theta_l \cdot \mu,\ \theta_l \cdot \nu) $$

    A tree is a chain of k lines with uniform directions, each starting on the one before; the share $\alpha_l$ of
    every point goes to line l. With shares that do not depend on the point, both clouds put the same mass on each
    line, nothing crosses from line to line, and the sum on the right is exact: **with constant splitting this loss is
    a weighted sliced W1**, wherever the lines meet. (That is why starting points are not drawn here.) What a tree can
    see beyond its lines takes shares that depend on the place: see Db-TSW. Unit: length; any weights, N and M, D.

    `splitting`: "uniform" gives every line 1/k; "random" draws shares evenly from the simplex for each tree. Training
    the shares, as the paper also does, is not offered.

    Fails: as sliced W1 does. Every line pulls with a steady hand or not at all, so particles jitter about the target
    by the step size, and few fixed lines leave directions in which nothing moves.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> round(TswSl()(here, Cloud(there), seeded(0)).item(), 4)  # on a line every chain is that line
    3.0

    ```
    """

    title = "Tree-sliced Wasserstein (TSW-SL)"
    family = "slices"
    source = ("tran2025tswsl",)
    needs = "samples"
    cost = "T k (N + M) (D + log) time; T k M memory with fixed trees, else N + M"
    degree = 1.0
    root = 1.0

    trees: Annotated[int, Range(1, 1024, log=True, help="more trees: smoother and slower")] = 16
    lines: Annotated[int, Range(1, 32, help="lines of a chain")] = 4
    splitting: Annotated[
        Literal["uniform", "random"],
        Help("how a point is split: evenly, or in shares drawn for each tree"),
    ] = "uniform"
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new trees at every step, right on average; fixed: the same all along")
    ] = "fresh"
    tree_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed trees", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return sliced_power(x, target, self._slices(target, rng), weight, 1)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: on each line, towards where more of the target than of the particles lies."""
        return Velocity(*sliced_velocity(x, target, self._slices(target, rng), weight, 1))

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed trees: the target in order on each line."""
        if self.draw == "fresh":
            return target
        kept = sorted_target(self._fixed(target), target)
        return replace(target, memo={**(target.memo or {}), self._key(target): kept})

    def _slices(self, target: Cloud, rng: Generator) -> Slices:
        if self.draw == "fresh":
            return self._drawn(target, rng)
        kept = (target.memo or {}).get(self._key(target))
        return self._fixed(target) if kept is None else kept

    def _fixed(self, target: Cloud) -> Slices:
        return self._drawn(target, seeded(self.tree_seed, 53))

    def _drawn(self, target: Cloud, rng: Generator) -> Slices:
        theta = unit(gaussian((self.trees * self.lines, target.dim), rng))
        return Slices(theta, self._shares(rng).reshape(-1) / self.trees)

    def _shares(self, rng: Generator) -> Tensor:
        """(T, k) shares of the lines of each tree."""
        if self.splitting == "uniform":
            return torch.full((self.trees, self.lines), 1.0 / self.lines, dtype=torch.float64)
        # Exponential numbers over their sum are uniform on the simplex; the sum of two squared normals is exponential.
        waits = gaussian((2, self.trees, self.lines), rng).square().sum(0)
        return waits / waits.sum(1, keepdim=True)

    def _key(self, target: Cloud) -> str:
        return f"{self!r} {tuple(target.x.shape)} {target.x.dtype} {target.x.device}"
