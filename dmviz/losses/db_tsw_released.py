"""Db-TSW as its authors released it with p = 2: squared masses on the edges of trees."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._trees import Tree, Trees, concurrent_trees, kept_feet, tree_value, tree_velocity
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "shift_free"})
_POWER = 2


@entry
class DbTswReleased:
    r"""Share each point among lines that meet in a root, and square the mass that must cross each stretch of a line.

    $$ F = \frac1T \sum_{\text{trees}} \sum_{e} \ell_e\, |\mu_e - \nu_e|^2,\qquad
       \alpha_l(x) = \operatorname{softmax}_l(-\delta\, \operatorname{dist}(x, l)) $$

    This is what the class released with Db-TSW computes by default (p = 2, delta = 2), before its square root: we keep
    powers, and `root` says 2. **It is no Wasserstein distance** on the tree, for there the masses are not squared and
    p acts on the lengths; the paper's distance is p = 1, the entry Tree-sliced Wasserstein (Db-TSW). As a sum of
    squares it is a Cramér distance on each tree, so the pull fades near the target, where that of p = 1 stays.

    A tree is k lines through one root; point x leaves the mass $\alpha_l(x)$ at its foot on line l, $\ell_e$ is the
    length between neighbouring feet and $\mu_e - \nu_e$ the mass beyond it. Unit: length. Unlike the released code it
    takes any weights, N and M, puts roots about the target's mean (the released sampler's default is 128, for pixels)
    and stacks frames where `gaussian_orthogonal` has more lines than dimensions (the authors refuse that).

    Fails: masses are squared after they were split, so k lines that share alike make the value k times smaller, and a
    small group left behind is hardly pulled at all. delta is in 1/length and must suit the data, as for Db-TSW.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [3.0]])
    >>> round(DbTswReleased(lines=1)(here, Cloud(there), seeded(0)).item(), 4)  # half the mass over 3: 3 / 4
    0.75

    ```
    """

    title = "Tree-sliced, released p = 2 (Db-TSW)"
    family = "slices"
    source = ("tran2025dbtsw",)
    needs = "samples"
    cost = "T k (N + M) (D + log) time, N + M memory"
    degree = 1.0
    root = 2.0

    trees: Annotated[int, Range(1, 1024, log=True, help="more trees: smoother and slower")] = 16
    lines: Annotated[int, Range(1, 32, help="lines of a tree")] = 4
    delta: Annotated[
        float, Range(0, 100, unit="1/length", help="0 shares a point evenly among lines; large: the nearest has it all")
    ] = 2.0
    root_std: Annotated[float, Range(0, 10, unit="length", help="how far roots lie from the target's mean")] = 0.1
    sampler: Annotated[
        Literal["gaussian_raw", "gaussian_orthogonal"], Help("lines of a tree independent, or at right angles")
    ] = "gaussian_raw"
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
        return tree_value(x, target, self._trees(target, rng), self._rule, weight)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: along each line by the squares of what crosses on either side, across it by prices."""
        kept = (target.memo or {}).get(self._key(target))
        return Velocity(*tree_velocity(x, target, self._trees(target, rng), self._rule, weight, kept))

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed trees: where the target stands on them, and how it is shared."""
        if self.draw == "fresh":
            return target
        kept = kept_feet(target, self._fixed(target), self._rule)
        return target if kept is None else replace(target, memo={**(target.memo or {}), self._key(target): kept})

    @property
    def _rule(self) -> Tree:
        return Tree(self.delta, _POWER)

    def _trees(self, target: Cloud, rng: Generator) -> Trees:
        return self._fixed(target) if self.draw == "fixed" else self._drawn(target, rng)

    def _fixed(self, target: Cloud) -> Trees:
        return self._drawn(target, seeded(self.tree_seed, 52))

    def _drawn(self, target: Cloud, rng: Generator) -> Trees:
        orthogonal = self.sampler == "gaussian_orthogonal"
        return concurrent_trees(self.trees, self.lines, target.dim, self.root_std, orthogonal, rng)

    def _key(self, target: Cloud) -> str:
        return f"{self!r} {tuple(target.x.shape)} {target.x.dtype} {target.x.device}"
