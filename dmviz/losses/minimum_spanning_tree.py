"""Length of the minimum spanning tree: particles that spread along the edges of the shortest tree that joins them."""

from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay, QhullError
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

LARGEST = 3000  # points above three dimensions: a tree through them takes up to a second
_FEW = 128  # up to here Prim's algorithm is quicker than a triangulation
_LARGEST_FLAT = 200_000  # points in two and three dimensions: several seconds

Edges = NDArray[np.int64]


@entry
class MinimumSpanningTree:
    r"""Join all particles by the shortest tree, and let every edge of it push its two ends apart.

    $$ F = -\frac{\gamma}{N} \sum_{(i,j) \in T} |x_i - x_j| + \lambda \sum_i a_i\, (|x_i| - R)^2 $$

    T is the minimum spanning tree of the N particles that have weight, by Euclidean length; how much weight does not
    matter to it, so that a light particle moves faster. The second sum holds particles to a sphere. The target is not
    read. Unit: length. Which points an edge joins counts as constant: with equal weights a particle moves with gamma
    times the sum of unit vectors away from its neighbours on the tree, at a speed that does not depend on distance.

    `spread` 0 leaves the sphere alone; `sphere` 0 lets the cloud grow for ever unless a box or sphere holds it. For up
    to D + 1 particles on a sphere the longest tree is that of the regular simplex. The length of N points grows like
    N^(1 - 1/D), so values for different N do not compare. The paper's own weights gamma and lambda were not available.

    Fails: the tree jumps as particles move, so they jitter unless a step is shorter than the gaps. Points that
    coincide are joined by an edge without direction and stay together. Above three dimensions at most 3,000 particles,
    since time grows with N squared; below, the tree is found among the edges of a triangulation, and at most 200,000
    are allowed (30,000 where they can not be triangulated, as on a line).

    Mordacq et al. 2025. `edges` gives the tree for drawing.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    >>> MinimumSpanningTree(sphere=0.0)(x, Cloud(x), seeded(0)).item()  # -(5 + 1) / 3
    -2.0

    ```
    """

    title = "Minimum spanning tree"
    family = "regularizers"
    source = ("mordacq2025tregs",)
    needs = "nothing"
    cost = "N log N time in up to three dimensions, N^2 D above (at most 3,000 points); N memory"
    laws = frozenset({"rotation_free", "deterministic"})
    degree = 1.0
    root = 1.0

    spread: Annotated[float, Range(0.0, 100.0, help="Push along the tree. 0: none; large: the sphere hardly holds")] = (
        1.0
    )
    sphere: Annotated[
        float,
        Range(0.0, 1e6, unit="1/length", help="Pull to the sphere. 0: none, and a free cloud grows for ever"),
    ] = 1.0
    radius: Annotated[
        float, Range(1e-4, 1e4, unit="length", log=True, help="Radius of the sphere that particles are held to")
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a = mass_of(x, weight)
        i, j = self._ends(x, a)
        share = _share(a)
        square = (x[i] - x[j]).square().sum(1)
        apart = square > 0  # an edge without length has no direction: no gradient there
        length = torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)
        tree = share * length.sum(dtype=accurate(x))
        norm2 = x.square().sum(1)
        some = norm2 > 0
        norm = torch.where(some, torch.where(some, norm2, 1.0).sqrt(), 0.0)
        off = (a * (norm - self.radius).square()).sum(dtype=accurate(x))
        return (self.sphere * off - self.spread * tree).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Unit vectors away from the neighbours on the tree, and the way to the sphere."""
        a = mass_of(x, weight)
        i, j = self._ends(x, a)
        gap = x[i] - x[j]
        length = gap.square().sum(1).sqrt()
        share = _share(a)
        push = share * torch.where(length > 0, 1.0 / length, 0.0)[:, None] * gap
        moved = torch.zeros_like(x).index_add_(0, i, push).index_add_(0, j, -push)
        norm = x.square().sum(1, keepdim=True).sqrt()
        inward = torch.where(norm > 0, 2.0 * (self.radius / torch.where(norm > 0, norm, 1.0) - 1.0) * x, 0.0)
        v = self.spread * moved / torch.where(a > 0, a, 1.0)[:, None] + self.sphere * inward
        off = (a * (norm[:, 0] - self.radius).square()).sum(dtype=accurate(x))
        value = self.sphere * off - self.spread * share * length.sum(dtype=accurate(x))
        return Velocity(torch.where(a[:, None] > 0, v, 0.0), value.to(x.dtype))

    def edges(self, x: Tensor) -> Tensor:
        """(N - 1, 2) int64: the pairs of rows that the tree joins."""
        points = x.detach().double().cpu().numpy()
        return torch.from_numpy(tree_of(points)).to(x.device)

    def _ends(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """The two ends of every edge, among particles that have weight."""
        present = a.detach() > 0
        if bool(present.all()):
            found = self.edges(x)
            return found[:, 0], found[:, 1]
        rows = present.nonzero()[:, 0]
        found = rows[self.edges(x[rows])]
        return found[:, 0], found[:, 1]


def _share(a: Tensor) -> Tensor:
    """() 1 / N over the particles that have weight."""
    return 1.0 / (a > 0).sum().clamp_min(1).to(a.dtype)


def tree_of(x: NDArray[np.float64]) -> Edges:
    """(N - 1, 2) edges of a minimum spanning tree of points x (N, D); of equal ones it takes any."""
    n, d = x.shape
    if d == 1:
        order = np.argsort(x[:, 0], kind="stable")
        return np.stack((order[:-1], order[1:]), axis=1)
    if n <= _FEW:
        return _prim(x)
    if d > 3 and n > LARGEST:
        raise ValueError(
            f"MinimumSpanningTree: above three dimensions at most {LARGEST:,} particles, got {n:,} in {d}. Take fewer."
        )
    if n > _LARGEST_FLAT:
        raise ValueError(f"MinimumSpanningTree: at most {_LARGEST_FLAT:,} particles, got {n:,}. Take fewer.")
    return _among_neighbours(x) if d <= 3 else _prim(x)


def _prim(x: NDArray[np.float64]) -> Edges:
    """Grow the tree by the nearest point outside, N times: N^2 D time, N memory."""
    n = len(x)
    outside, rows = x[1:].T.copy(), np.arange(1, n)  # coordinates one by one: differences stay exact
    nearest = ((outside - x[0][:, None]) ** 2).sum(0)
    inside = np.zeros(n - 1, np.int64)
    found = np.empty((n - 1, 2), np.int64)
    for k in range(n - 1):
        best, last = int(nearest[: n - 1 - k].argmin()), n - 2 - k
        new = rows[best]
        found[k] = inside[best], new
        point = outside[:, best].copy()
        for column in (rows, inside, nearest):  # the last one takes its place
            column[best] = column[last]
        outside[:, best] = outside[:, last]
        square = ((outside[:, :last] - point[:, None]) ** 2).sum(0)
        closer = square < nearest[:last]
        np.minimum(nearest[:last], square, out=nearest[:last])
        inside[:last][closer] = new
    return found


def _among_neighbours(x: NDArray[np.float64]) -> Edges:
    """In two and three dimensions the tree is part of the Delaunay triangulation, which has few edges."""
    different, first, same = np.unique(x, axis=0, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    twins = np.flatnonzero(first[same] != np.arange(len(x)))  # joined to their first by an edge of length 0
    joined = np.stack((first[same[twins]], twins), axis=1)
    pairs = _neighbours(different)
    if pairs is None:
        return _bounded_prim(x)
    length = np.sqrt(((different[pairs[:, 0]] - different[pairs[:, 1]]) ** 2).sum(1))
    graph = coo_array((length, (pairs[:, 0], pairs[:, 1])), shape=(len(different),) * 2).tocsr()
    tree = minimum_spanning_tree(graph).tocoo()
    if tree.nnz != len(different) - 1:  # an edge so short that its length is 0 in floating point
        return _bounded_prim(x)
    return np.concatenate((np.stack((first[tree.row], first[tree.col]), axis=1), joined))


def _neighbours(x: NDArray[np.float64]) -> Edges | None:
    """(E, 2) each pair that a triangulation joins, once; None where points lie too close to a line or plane for one."""
    try:
        corners = Delaunay(x - x.mean(0))
    except (QhullError, ValueError):
        return None
    if len(corners.coplanar):  # points left out for being too close to others
        return None
    k = x.shape[1] + 1
    sides = [corners.simplices[:, [i, j]] for i in range(k) for j in range(i + 1, k)]
    flat = np.sort(np.concatenate(sides).astype(np.int64), axis=1)
    codes = np.unique(flat[:, 0] * len(x) + flat[:, 1])
    return np.stack((codes // len(x), codes % len(x)), axis=1)


def _bounded_prim(x: NDArray[np.float64]) -> Edges:
    if len(x) > 10 * LARGEST:
        raise ValueError(
            f"MinimumSpanningTree: {len(x):,} particles lie on a line, a plane or in clumps too tight to triangulate; "
            f"at most {10 * LARGEST:,} then. Take fewer or add noise."
        )
    return _prim(x)
