"""Distance-based tree-sliced Wasserstein distance: transport on bundles of lines that share each point."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._trees import Tree, Trees, concurrent_trees, kept_feet, tree_value, tree_velocity
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "shift_free"})


@entry
class DbTsw:
    r"""Share each point among lines that meet in a root, nearer lines getting more, and transport along the lines.

    $$ F = \frac1T \sum_{\text{trees}} \sum_{e} \ell_e\, |\mu_e - \nu_e|^p,\qquad
       \alpha_l(x) = \operatorname{softmax}_l(-\delta\, \operatorname{dist}(x, l)) $$

    A tree is k lines through one root. Point x leaves the mass $\alpha_l(x)$ at its foot on line l; $\ell_e$ is the
    length of an edge between neighbouring feet and $\mu_e - \nu_e$ what must cross it. For p = 1 this is exactly W1 on
    the tree; unit: length. The pull acts along the lines, with bounded speed, and across them, since moving sideways
    changes the shares; so a tree sees more than its lines do. Any weights, N and M.

    Roots are normal about the target's mean, so both clouds may move together, but swapping them moves the roots:
    symmetry and the triangle inequality hold for the same trees only. `gaussian_orthogonal` takes lines at right
    angles, which needs as many dimensions as lines; with fewer, several frames are stacked (the authors refuse that).
    p = 2 is the released code's other choice, before its root: smoother near the target, but no Wasserstein distance.

    Fails: delta is in 1/length, so it must suit the data. 0 makes it sliced W1; far above 1/spread each point has one
    line to itself, and the pull across vanishes. For p = 1 particles jitter about the target by the step size.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> round(DbTsw()(here, Cloud(there), seeded(0)).item(), 4)  # on a line every tree is that line
    3.0

    ```
    """

    title = "Tree-sliced Wasserstein (Db-TSW)"
    family = "slices"
    source = ("tran2025dbtsw",)
    needs = "samples"
    cost = "T k (N + M) (D + log) time, N + M memory"
    degree = 1.0

    trees: Annotated[int, Range(1, 1024, log=True, help="more trees: smoother and slower")] = 16
    lines: Annotated[int, Range(1, 32, help="lines of a tree; 1 makes it sliced W1")] = 4
    delta: Annotated[
        float, Range(0, 100, unit="1/length", help="0 shares a point evenly among lines; large: the nearest has it all")
    ] = 2.0
    root_std: Annotated[float, Range(0, 10, unit="length", help="how far roots lie from the target's mean")] = 0.1
    sampler: Annotated[
        Literal["gaussian_raw", "gaussian_orthogonal"], Help("lines of a tree independent, or at right angles")
    ] = "gaussian_raw"
    edge_power: Annotated[int, Range(1, 2, help="1: transport on the tree; 2: the authors' smoother variant")] = 1
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new trees at every step, right on average; fixed: the same all along")
    ] = "fresh"
    tree_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed trees", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    @property
    def root(self) -> float:
        return float(self.edge_power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return tree_value(x, target, self._trees(target, rng), self._rule, weight)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: along each line by what crosses on either side, across it by the prices of the feet."""
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
        return Tree(self.delta, self.edge_power)

    def _trees(self, target: Cloud, rng: Generator) -> Trees:
        return self._fixed(target) if self.draw == "fixed" else self._drawn(target, rng)

    def _fixed(self, target: Cloud) -> Trees:
        return self._drawn(target, seeded(self.tree_seed, 52))

    def _drawn(self, target: Cloud, rng: Generator) -> Trees:
        orthogonal = self.sampler == "gaussian_orthogonal"
        return concurrent_trees(self.trees, self.lines, target.dim, self.root_std, orthogonal, rng)

    def _key(self, target: Cloud) -> str:
        return f"{self!r} {tuple(target.x.shape)} {target.x.dtype} {target.x.device}"
