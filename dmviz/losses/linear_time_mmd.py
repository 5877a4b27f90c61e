"""Linear-time MMD: every point meets one partner instead of all."""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._kernels import Kernel, kernel_and_slope, kernel_of
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity


@entry
class LinearTimeMmd:
    r"""Shuffle both clouds, compare each point with a single partner, and trust chance to even it out.

    With points taken in a random order, two by two,

    $$ F = \frac{2}{n} \sum_{i=1}^{n/2} k(x_{2i-1},x_{2i}) + k(y_{2i-1},y_{2i})
           - k(x_{2i-1},y_{2i}) - k(x_{2i},y_{2i-1}) $$

    for the kernels of MMD, r = |x - y| and bandwidth l: gaussian e^{-r^2/2l^2}, laplacian e^{-r/l}, imq
    (1 + r^2/l^2)^{-1/2}, and distance -r, whose MMD is the energy distance. On average over the shuffles this is the
    unbiased MMD, whose velocity it also has on average; one draw is noisy and often negative. Unit: none, or length for
    the distance. `rounds` averages over several shuffles.

    Clouds of different size, and weights, are our extension: points of the smaller cloud are used again in turn for the
    last two terms, a pair counts a_i a_j, and sums are scaled so that the mean over shuffles is still the weighted
    unbiased MMD. A last point without partner waits for another shuffle.

    It fails as a judge of small differences: its standard error falls with the root of n, that of all pairs with n.
    Which points meet depends on their order and on the seed. Followed as a flow, particles jitter like molecules in a
    gas and spread around the target; short steps average the noise.

    Gretton et al. 2012.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.zeros(2, 2), torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    >>> round(LinearTimeMmd(bandwidth=5.0)(here, Cloud(there), seeded(0)).item(), 4)  # 2 - 2 exp(-1/2)
    0.7869

    ```
    """

    title = "Linear-time MMD"
    family = "kernels"
    source = ("gretton2012kernel",)
    needs = "samples"
    cost = "(N + M) D time and N + M memory a round"
    laws = frozenset({"shift_free", "rotation_free"})
    root = 2.0
    ordered = True

    kernel: Annotated[
        Literal["gaussian", "laplacian", "imq", "distance"],
        Help("Shape of the pull: a bump, a spike with a longer tail, a long tail, or the same at every distance"),
    ] = "gaussian"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: its partner is hardly ever in reach; large: only means",
            when={"kernel": ("gaussian", "laplacian", "imq")},
        ),
    ] = 0.5
    rounds: Annotated[
        int, Range(1, 256, log=True, help="Shuffles to average over: 1 is a dice game, many are calm")
    ] = 1

    @property
    def degree(self) -> float:
        return 1.0 if self.kernel == "distance" else 0.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a, b, kernel = mass_of(x, weight).double(), target.mass().double(), self._kernel

        def between(u: Tensor, v: Tensor) -> Tensor:
            return kernel_of(kernel, (u - v).double().square().sum(1))

        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for _ in range(self.rounds):
            i, j = shuffled(len(x), x, rng), shuffled(len(target), x, rng)
            total = total + linear_mmd(between, x, target.x, a, b, i, j)
        return (total / self.rounds).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """From each partner alone: the way to it times k'(r) / r."""
        a, b = mass_of(x, weight).double(), target.mass().double()
        v, value = torch.zeros_like(x, dtype=torch.float64), torch.zeros((), dtype=torch.float64, device=x.device)
        for _ in range(self.rounds):
            i, j = shuffled(len(x), x, rng), shuffled(len(target), x, rng)
            for moves, (u, w, z, q, met) in zip(_MOVES, _terms(x, target.x, a, b, i, j), strict=True):
                apart = (u[met.first] - z[met.second]).double()
                k, slope = kernel_and_slope(self._kernel, apart.square().sum(1))
                value += met.scale * (w[met.first] * q[met.second] @ k)
                pull = met.scale * slope[:, None] * apart
                if moves[0]:
                    v.index_add_(0, met.first, -q[met.second, None] * pull)
                if moves[1]:
                    v.index_add_(0, met.second, w[met.first, None] * pull)
        v = torch.where(a[:, None] > 0, v / self.rounds, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), (value / self.rounds).to(x.dtype))

    @property
    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, (self.bandwidth,))


class Met(NamedTuple):
    """Which points meet, and by how much a sum over these pairs is scaled to stand for all pairs."""

    first: Tensor
    second: Tensor
    scale: float


def linear_mmd(
    k: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, a: Tensor, b: Tensor, i: Tensor, j: Tensor
) -> Tensor:
    """() the estimate for points taken in the orders i and j; k(u, v) compares row with row."""
    terms = _terms(x, y, a, b, i, j)
    return torch.stack(
        [m.scale * (w[m.first] * q[m.second] @ k(u[m.first], z[m.second])) for u, w, z, q, m in terms]
    ).sum()


def shuffled(n: int, like: Tensor, rng: Generator) -> Tensor:
    """(n,) a random order."""
    return torch.randperm(n, generator=rng, device=rng.device).to(like.device)


_MOVES = ((True, True), (False, False), (True, False))
"""Which side of each term are particles, which move."""

_Term = tuple[Tensor, Tensor, Tensor, Tensor, Met]


def _terms(x: Tensor, y: Tensor, a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> tuple[_Term, _Term, _Term]:
    """Points and weights on both sides, and who meets: within x, within y, and across."""
    return (x, a, x, a, _within(i, a)), (y, b, y, b, _within(j, b)), (x, a, y, b, _across(i, j))


def _within(order: Tensor, a: Tensor) -> Met:
    """Neighbours two by two; the mean over orders of the scaled sum is that over all pairs of different points."""
    n, pairs, rest = len(order), len(order) // 2, 1.0 - float(a.square().sum())
    scale = n * (n - 1) / (pairs * rest) if pairs and rest > 1e-12 else 0.0
    return Met(order[0 : 2 * pairs : 2], order[1 : 2 * pairs : 2], scale)


def _across(i: Tensor, j: Tensor) -> Met:
    """The first of two x with the second of two y and the other way round; the smaller cloud is gone through again."""
    count = max(len(i), len(j))
    step = torch.arange(count, device=i.device)
    return Met(i[step % len(i)], j[(step ^ 1) % len(j)], -2.0 * len(i) * len(j) / count)
