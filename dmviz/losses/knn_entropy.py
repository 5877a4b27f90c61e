"""kNN entropy: particles that move away from their k-th neighbours, so that their law spreads."""

import math
from typing import Annotated

import torch
from scipy.spatial import cKDTree
from scipy.special import digamma
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._pairs import squares, tiles
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_CLOSEST = 1e-12  # distances below count as this one: points that coincide would have an entropy of -infinity
_TREE = 10  # up to this dimension a k-d tree finds neighbours faster than looking at all pairs


@entry
class KnnEntropy:
    r"""Spread the particles until their law has as much entropy as it can: the loss is minus the entropy.

    $$ F = -H, \qquad H = \psi(N) - \psi(k) + \log c_D + D \sum_i a_i \log \epsilon_i $$

    the estimator of Kozachenko and Leonenko: $\epsilon_i$ is the distance of particle i to its k-th nearest other one,
    $c_D$ the volume of the unit ball, $\psi$ the digamma function. Unit: nats; a change of unit of length adds a
    constant. The target is not read. Which particle is whose neighbour counts as constant: a particle flees its k-th
    neighbour, and is fled by those whose k-th neighbour it is, at a speed of D / distance.

    Free particles fly apart for ever, since entropy has no bound: hold them in a box, where they become uniform, or on
    a sphere (where D is still the dimension of the space around it, and the value is no entropy). `k` 1 has the least
    bias and the most noise; a large one is smooth and blind to detail. With fewer than k other particles, all others
    count. Weights average the logarithms but not who is a neighbour; particles without weight are left out. Distances
    below 1e-12 count as 1e-12 and push no one: particles that coincide stay together.

    Fails: neighbours change at every step, so particles jitter unless steps are short against the gaps; in high
    dimension the estimate is far too low for any affordable N.

    Kozachenko and Leonenko 1987.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[0.0], [3.0]])
    >>> round(KnnEntropy(k=1)(x, Cloud(x), seeded(0)).item(), 4)  # -(psi(2) - psi(1) + log(2) + log(3))
    -2.7918

    ```
    """

    title = "Nearest-neighbour entropy"
    family = "regularizers"
    source = ("kozachenko1987sample",)
    needs = "nothing"
    cost = "N log N time in low dimension, N^2 D above 10; k N memory"
    laws = frozenset({"shift_free", "rotation_free", "deterministic"})
    degree = math.nan
    root = 1.0

    k: Annotated[int, Range(1, 50, log=True, help="Which neighbour counts. Small: exact and noisy; large: smooth")] = 3

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, a, _ = _with_weight(x, weight)
        if len(here) < 2:
            return (x * 0.0).sum()
        square = (here - here[self._neighbour(here)]).square().sum(1)
        some = square > _CLOSEST**2
        logs = 0.5 * torch.where(some, torch.where(some, square, 1.0).log(), 2.0 * math.log(_CLOSEST))
        return (self._constant(here) - x.shape[1] * (a * logs).sum(dtype=accurate(x))).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Away from the k-th neighbour, by D over the distance; and the same away from those who flee."""
        here, a, rows = _with_weight(x, weight)
        if len(here) < 2:
            return Velocity(torch.zeros_like(x), x.new_zeros(()))
        j = self._neighbour(here)
        gap = here - here[j]
        square = gap.square().sum(1, keepdim=True)
        some = square > _CLOSEST**2
        push = a[:, None] * torch.where(some, gap / torch.where(some, square, 1.0), 0.0)  # a_i grad log eps_i
        moved = x.shape[1] * (push.index_add(0, j, -push)) / a[:, None]
        logs = 0.5 * torch.where(some, torch.where(some, square, 1.0).log(), 2.0 * math.log(_CLOSEST))[:, 0]
        value = self._constant(here) - x.shape[1] * (a * logs).sum(dtype=accurate(x))
        v = moved if rows is None else torch.zeros_like(x).index_copy_(0, rows, moved)
        return Velocity(v, value.to(x.dtype))

    def _neighbour(self, x: Tensor) -> Tensor:
        return kth_neighbour(x.detach(), min(self.k, len(x) - 1))

    def _constant(self, x: Tensor) -> float:
        """-(psi(N) - psi(k) + log c_D)."""
        n, d = x.shape
        ball = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1.0)
        return -float(digamma(n) - digamma(min(self.k, n - 1))) - ball


def _with_weight(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Particles that have weight, their weights, and their rows (None: all)."""
    if weight is None:
        return x, mass_of(x, None), None
    rows = (weight > 0).nonzero()[:, 0]
    return x[rows], weight[rows], rows


def kth_neighbour(x: Tensor, k: int) -> Tensor:
    """(N,) int64: the row of the k-th nearest other point; a point is left out by its row, not by its distance."""
    if x.device.type == "cpu" and x.shape[1] <= _TREE:
        points = x.double().numpy()
        _, found = cKDTree(points).query(points, k + 1)
        others = torch.from_numpy(found)
        kept = others != torch.arange(len(x))[:, None]  # among many equal points a point may not find itself
        place = (kept.cumsum(1) == k).to(torch.int8).argmax(1, keepdim=True)
        return others.gather(1, place)[:, 0]
    x = x - x.mean(0)
    nearest = x.new_full((len(x), k), math.inf)
    rows = torch.zeros(len(x), k, dtype=torch.int64, device=x.device)
    for i, j in tiles(len(x), len(x), x):
        r2 = squares(x[i], x[j])
        if i == j:
            r2.fill_diagonal_(math.inf)
        best = r2.topk(min(k, r2.shape[1]), dim=1, largest=False)
        both = torch.cat((nearest[i], best.values), 1), torch.cat((rows[i], best.indices + j.start), 1)
        chosen = both[0].topk(k, dim=1, largest=False)
        nearest[i], rows[i] = chosen.values, both[1].gather(1, chosen.indices)
    return rows[torch.arange(len(x), device=x.device), nearest.argmax(1)]
