import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from dmviz.cloud import mass_of
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info

SIDE = 512  # of a block of kernel values: about 1 MB, which stays near the processor


class Spreading(NamedTuple):
    x: Tensor  # (N, D)
    v: Tensor  # (N, D)
    value: Tensor  # () nan: SVGD descends KL, which it never evaluates
    time: float
    history: Tensor  # (N, D) running mean of v^2, used by the Adagrad rule alone
    taken: int  # steps so far


@entry
class Svgd:
    r"""Particles climb the target's density together and push each other apart, with no noise at all.

    $$ v_i = \sum_j a_j \left[ k(x_j, x_i)\, s(x_j) + \nabla_{x_j} k(x_j, x_i) \right], \qquad
       k(x, y) = e^{-|x - y|^2 / 2 \ell^2} $$

    Stein variational gradient descent: the flow of KL(particles, target) seen through a kernel. `bandwidth` is $\ell$.
    *median* takes $\ell^2 = \mathrm{med}(r^2) / (2 \log(n + 1))$ of the particles at each step, as the authors' code
    does. *adagrad* divides each coordinate by its running size (decay 0.9), as the authors do; *plain* is the flow.

    Fails in high dimension: the repulsion fades and the cloud comes out too narrow. One particle alone climbs a peak.
    """

    title = "SVGD"
    source = ("liu2016stein",)
    needs = "score"

    dt: Annotated[
        float, Range(1e-4, 100.0, unit="time", log=True, help="small: faithful; large: fast, then unstable")
    ] = 0.1
    kernel: Annotated[Literal["median", "fixed"], Help("how the bandwidth is chosen")] = "median"
    bandwidth: Annotated[
        float,
        Range(
            0.01, 100.0, unit="length", log=True, help="how far particles feel each other", when={"kernel": ("fixed",)}
        ),
    ] = 1.0
    rule: Annotated[Literal["plain", "adagrad"], Help("plain: the flow itself; adagrad: the authors' step rule")] = (
        "plain"
    )

    def init(self, x: Tensor, field: Field, rng: Generator) -> Spreading:
        x = field.hold(x)
        return Spreading(x, self._velocity(x, field), x.new_tensor(math.nan), 0.0, torch.zeros_like(x), 0)

    def step(self, state: Spreading, field: Field, rng: Generator) -> tuple[Spreading, Info]:
        direction, history = state.v, state.history
        if self.rule == "adagrad":
            square = state.v.square()
            history = square if state.taken == 0 else 0.9 * history + 0.1 * square
            direction = state.v / (1e-6 + history.sqrt())
        x = field.hold(state.x + self.dt * direction)
        v = self._velocity(x, field)
        return Spreading(x, v, state.value, state.time + self.dt, history, state.taken + 1), Info(self.dt)

    def _velocity(self, x: Tensor, field: Field) -> Tensor:
        length = median_bandwidth(x) if self.kernel == "median" else self.bandwidth
        return field.tangent(x, stein_direction(x, field.score(x), length, field.weight))


def median_bandwidth(x: Tensor, most: int = 500) -> float:
    """The authors' bandwidth: sqrt(med / (2 log(n + 1))), med over all n^2 squared distances, the zero ones included.

    Clouds of more than `most` particles are measured on evenly spaced ones.
    """
    few = x[:: -(-len(x) // most)]
    n, pairs = len(few), torch.pdist(few.double()).square().cpu().numpy()
    # In the full matrix n zeros come first, then every pair twice.
    ranks = [max(rank - n, -1) // 2 for rank in ((n * n - 1) // 2, n * n // 2)]
    ordered = np.partition(pairs, [max(rank, 0) for rank in ranks]) if len(pairs) else pairs
    middle = [ordered[rank] if rank >= 0 else 0.0 for rank in ranks]
    return math.sqrt(max(float(np.mean(middle)), 1e-12) / (2 * math.log(len(x) + 1)))


def stein_direction(x: Tensor, score: Tensor, length: float, weight: Tensor | None = None) -> Tensor:
    """(N, D) SVGD velocity, in blocks of about 1 MB, each pair once; never N x N."""
    x = x - x.mean(0)  # |x|^2 + |y|^2 - 2 x.y loses digits far from the origin
    n, d = x.shape
    scaled, side = x / length, SIDE if x.device.type == "cpu" else 8 * SIDE
    half = 0.5 * scaled.square().sum(1)  # (N,)
    columns = torch.cat([score - x / length**2, torch.ones_like(x[:, :1])], 1) * mass_of(x, weight)[:, None]
    sums, buffer = x.new_zeros(n, d + 1), x.new_empty(min(side, n) ** 2)
    for i, j in _blocks(n, side):
        shape = i.stop - i.start, j.stop - j.start
        k = buffer[: shape[0] * shape[1]].view(shape)
        torch.addmm(half[None, j], scaled[i], scaled[j].T, beta=-1, out=k)
        # exp is many times slower where it underflows, and rounding can leave an exponent above 0.
        k.sub_(half[i, None]).clamp_(-80, 0).exp_()
        sums[i] += _times(k, columns[j])
        if i != j:
            sums[j] += _times(k.T, columns[i])
    return sums[:, :d] + x * (sums[:, d:] / length**2)


def _blocks(n: int, side: int) -> Iterator[tuple[slice, slice]]:
    """Blocks on and above the diagonal: the kernel is symmetric."""
    for i in range(0, n, side):
        for j in range(i, n, side):
            yield slice(i, min(i + side, n)), slice(j, min(j + side, n))


def _times(k: Tensor, columns: Tensor) -> Tensor:
    """k @ columns; few columns go one at a time, which is many times faster than as a narrow matrix."""
    if columns.shape[1] > 8:
        return k @ columns
    return torch.stack([k @ column for column in columns.T.contiguous()], 1)
