import math
from typing import Annotated, NamedTuple

import torch
from scipy.spatial import cKDTree
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.flows._mechanics import accepted, leapfrog, momenta
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info

_BLOCK = 1 << 21  # distances held at once
_TREE = 10  # up to this dimension a tree looks at few of the points


class Part(NamedTuple):
    """The points of one class."""

    points: Tensor  # (M_c, D)
    tree: cKDTree | None  # in few dimensions


class Classes(NamedTuple):
    """The target's points by label, the balls that hold k and all but k of them, and how far apart they usually are."""

    parts: tuple[Part, ...]
    middle: Tensor  # (C, D)
    inner: Tensor  # (C,) radius about the middle that holds k points
    outer: Tensor  # (C,) radius that all but k - 1 points are within
    spacing: Tensor  # (C,) median distance of a point to its own k-th neighbour


class Seen(NamedTuple):
    """What a chain sees where it is."""

    force: Tensor  # (N, D) slope of the log density
    depth: Tensor  # (N,) log density, float64
    clear: Tensor  # (N,) whether it is outside every class


class Roaming(NamedTuple):
    x: Tensor  # (N, D)
    v: Tensor  # (N, D)
    value: Tensor  # () nan: the loss is only watched
    time: float
    seen: Seen
    classes: Classes


@entry
class OutlierSynthesis:
    r"""Chains leave from halfway between labelled clusters and roam where no data are: made-up points of no class.

    $$ \pi(z) \propto \Bigl(\frac{r_a(z) + r_b(z)}{2}\Bigr)^{\alpha}, \qquad
       r_c(z) = \text{distance from } z \text{ to its } k\text{-th nearest point of class } c $$

    with a and b the two classes nearest to z. A run starts at the middles between the mean of each class and those of
    its `near` nearest classes, not at the source. Every step is a Hamiltonian proposal on $\pi$ of `leaps` leapfrog
    steps of `dt`, tested by Metropolis' rule, and refused where it is closer to a class than `margin` times the usual
    distance of that class's points to their own k-th neighbour; a chain that starts inside may leave. On the sphere
    chains follow great circles, as the authors' do; in a box they bounce.

    `pull` is $\alpha$: 1 as released, D makes $\pi$ the inverse of a nearest-neighbour density, 0 is free motion. The
    released code keeps for each chain the two classes that it started between; here they are the nearest ones, so that
    the next step depends on the place alone. Its margin compares a softmax of kernel sums with that at the start;
    here it is a length of the data. Weights of target points do not count, except 0. Arrows show the slope of log pi.

    Fails in free space if run for long: $\pi$ has no finite total there, and chains leave for good. Keep them on a
    sphere or in a box, or stop after a few steps, as the released script does after two. It needs labels.

    Li and Zhang 2025; great circles as in Byrne and Girolami 2013.
    """

    title = "Outlier synthesis"
    source = ("li2025hamos", "byrne2013geodesic")
    needs = "samples"

    dt: Annotated[
        float, Range(1e-4, 10.0, unit="time", log=True, help="one leap: small stays near, large goes far")
    ] = 0.1
    leaps: Annotated[int, Range(1, 100, log=True, help="leaps in a proposal")] = 3
    k: Annotated[
        int, Range(1, 1_000, log=True, help="which neighbour counts: 1 sees single points, many see shapes")
    ] = 10
    near: Annotated[int, Range(1, 50, help="how many classes next to each one chains start between")] = 4
    pull: Annotated[float, Range(0.0, 1e3, help="0: wander freely; large: flee all data")] = 1.0
    margin: Annotated[float, Range(0.0, 100.0, help="0: may enter a class; large: must stay far outside")] = 1.0

    def unfit(self, target: Cloud) -> str:
        """Why it cannot serve a target, or nothing."""
        if target.label is not None and len(torch.unique(target.label)) > 1:
            return ""
        return "needs a target with labels of two classes or more. Pick one such as a Gaussian mixture or Digits."

    def begins(self, x: Tensor, field: Field, rng: Generator) -> Tensor:
        """(N, D) the middles between neighbouring classes, in turn."""
        means = torch.stack([part.mean(0) for part in by_class(field.target)])
        if len(means) < 2:
            return x
        apart = torch.cdist(means, means).fill_diagonal_(math.inf)
        others = apart.topk(min(self.near, len(means) - 1), 1, largest=False).indices  # (C, near)
        middles = (0.5 * (means[:, None] + means[others])).flatten(0, 1)
        rows = torch.arange(len(x), device=x.device) % len(middles)
        return middles[rows].to(x.dtype)

    def init(self, x: Tensor, field: Field, rng: Generator) -> Roaming:
        x, classes = field.hold(x), classes_of(field.target, self.k)
        seen = self._look(x, field, classes)
        return Roaming(x, seen.force, x.new_tensor(math.nan), 0.0, seen, classes)

    def step(self, state: Roaming, field: Field, rng: Generator) -> tuple[Roaming, Info]:
        old, p = state.seen, momenta(state.x, field, rng)
        looks: list[Seen] = []

        def pull(z: Tensor) -> Tensor:
            looks.append(self._look(z, field, state.classes))
            return looks[-1].force

        x, p_end, _ = leapfrog(state.x, p, old.force, pull, self.dt, self.leaps, field)
        new = looks[-1]
        rise = 0.5 * (p_end.double().square() - p.double().square()).sum(1) + old.depth - new.depth
        taken = accepted(rise, rng) & (new.clear | ~old.clear)
        seen = Seen(*(torch.where(taken.view(-1, *[1] * (b.ndim - 1)), b, a) for a, b in zip(old, new, strict=True)))
        x, note, share = torch.where(taken[:, None], x, state.x), "", float(taken.double().mean())
        if share < 0.3:
            note = f"Only {share:.0%} of the proposals were taken: dt or margin is too large between these classes."
        time = self.dt * self.leaps
        moved = state._replace(x=x, v=seen.force, time=state.time + time, seen=seen)
        return moved, Info(time, self.leaps, note)

    def _look(self, x: Tensor, field: Field, classes: Classes) -> Seen:
        count, least = min(2, len(classes.parts)), self.margin * classes.spacing
        from_middle = torch.cdist(x, classes.middle)
        nearest = from_middle - classes.outer  # a k-th neighbour is no nearer, and no farther than:
        enough = (from_middle + classes.inner).topk(count, 1, largest=False).values[:, -1:]
        asked = (nearest <= enough * (1 + 1e-5)) | (nearest <= least)
        r = x.new_full(asked.shape, math.inf, dtype=torch.float64)
        ways = x.new_zeros(*asked.shape, x.shape[1])  # (N, C, D) away from the k-th neighbour, where it matters
        for c, part in enumerate(classes.parts):
            rows = asked[:, c].nonzero()[:, 0]
            ways[rows, c] = kth(x[rows], part, self.k)
            r[rows, c] = ways[rows, c].double().norm(dim=1)
        both = r.topk(count, 1, largest=False)
        total = both.values.sum(1).clamp_min(1e-30)
        near = ways.gather(1, both.indices[..., None].expand(-1, -1, x.shape[1])).double()
        out = (near / both.values.clamp_min(1e-30)[..., None]).sum(1)
        force = ((self.pull / total)[:, None] * out).to(x.dtype)
        return Seen(field.tangent(x, force), self.pull * (total / count).log(), (r >= least).all(1))


def by_class(target: Cloud) -> tuple[Tensor, ...]:
    """The target's points that have weight, one part a label; one in all where there are no labels."""
    some = target.mass() > 0
    x = target.x[some]
    if target.label is None:
        return (x,)
    label = target.label[some]
    return tuple(x[label == one] for one in torch.unique(label))


def classes_of(target: Cloud, k: int) -> Classes:
    """What the chains need to know of the target, once a run."""
    few = target.dim <= _TREE and target.x.device.type == "cpu"
    parts = tuple(Part(x, cKDTree(x.double().numpy()) if few else None) for x in by_class(target))
    middle = torch.stack([part.points.mean(0) for part in parts])
    radii = [(part.points - m).norm(dim=1).sort().values for part, m in zip(parts, middle, strict=True)]
    inner = torch.stack([r[min(k, len(r)) - 1] for r in radii])
    outer = torch.stack([r[-min(k, len(r))] for r in radii])
    # A point is its own nearest neighbour, so that the one after k is asked for.
    spacing = torch.stack([kth(part.points, part, k + 1).norm(dim=1).median() for part in parts])
    return Classes(parts, middle, inner, outer, spacing)


def kth(x: Tensor, part: Part, k: int) -> Tensor:
    """(N, D) the way to each x from its k-th nearest point, or from the farthest of fewer points; never N x M."""
    k = min(k, len(part.points))
    if part.tree is not None:
        _, index = part.tree.query(x.double().numpy(), [k])
        found = torch.as_tensor(index)[:, 0]
    else:
        rows = max(1, _BLOCK // len(part.points))
        apart = (torch.cdist(some, part.points) for some in torch.split(x, rows))
        found = torch.cat([r.kthvalue(k, 1).indices for r in apart])
    return x - part.points[found]
