"""iFSQ's map: coordinates whose squashed values fill the bins of a quantiser evenly."""

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate, even_levels, levels
from dmviz.losses._sorting import ranked
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity

Map = Literal["ifsq", "tanh"]


@entry
class Ifsq:
    r"""Squash every coordinate into (-1, 1), and ask that the squashed values fill it evenly.

    $$ F = \frac1D \sum_{j=1}^{D} W_2^2\bigl(\text{law of } y_{ij},\ \text{uniform on } (-1, 1)\bigr), \qquad
       y = 2\,\sigma(1.6\, x / s) - 1\ \text{(ifsq)}\quad\text{or}\quad y = \tanh(x / s) $$

    Finite scalar quantisation rounds y to a few equally wide bins, and wastes those that are seldom hit. The paper
    changes only the map: 2 sigmoid(1.6 x) - 1 = tanh(0.8 x) makes a standard normal coordinate nearly uniform (its
    distribution function is nowhere further than 0.0173 from the uniform one, its variance 0.3150 against 1/3; after
    tanh it is 0.3943). This loss is ours: it measures how far from uniform the squashed particles are, exactly and by
    sorting, so that either map can be seen at work, and flown under until the bins are full. The target is not read.

    Unit: none, since y has none; between 1 / (3 N^2), for N evenly spaced values, and 4/3, where all sit at one end.
    `scale` is the length that counts as one standard deviation: a small one pushes everything into the end bins, a
    large one into the middle. Fails: far out, where the map is flat, a coordinate hardly moves. Each coordinate is seen
    alone, so that two equal ones cost nothing.

    Lin et al. 2026; Mentzer et al. 2024 for the quantiser, `quantise`.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[0.0]])
    >>> round(Ifsq()(x, Cloud(x), seeded(0)).item(), 4)  # all at 0: the variance of the uniform law, 1/3
    0.3333

    ```
    """

    title = "Uniform bins (iFSQ)"
    family = "regularizers"
    source = ("lin2026ifsq", "mentzer2023finite")
    needs = "nothing"
    cost = "D N log N time, N D memory"
    laws = frozenset({"nonnegative", "deterministic"})
    degree = 0.0
    root = 2.0

    map: Annotated[Map, Help("How a coordinate is squashed: iFSQ's gentle sigmoid, or the older tanh")] = "ifsq"
    scale: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Length that counts as one standard deviation. Small: ends fill; large: the middle",
        ),
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        y = activation(x / self.scale, self.map).T  # (D, N)
        gap, spread, order, a = _to_uniform(y, weight)
        moved = (a[order] * (y.gather(1, order).to(a.dtype) - gap).square()).sum(1)
        return (moved + spread).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The way of each squashed value to the place of its rank, through the slope of the map."""
        y = activation(x / self.scale, self.map).T
        goal, spread, order, a = _to_uniform(y, weight)
        gap = torch.empty_like(goal).scatter_(1, order, goal) - y.to(goal.dtype)
        slope = (1.0 - y.square()) * ((0.8 if self.map == "ifsq" else 1.0) / self.scale)
        v = (2.0 / x.shape[1]) * (gap.to(x.dtype) * slope).T
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, ((a * gap.square()).sum(1) + spread).mean().to(x.dtype))


def _to_uniform(y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(D, N) mean of the uniform quantile 2u - 1 over each rank's mass, (D,) what that leaves out, order, masses."""
    wide, order = accurate(y), ranked(y.detach())
    a = mass_of(y.T, weight).to(wide)
    u = even_levels(y.shape[1], y).expand(len(y), -1) if weight is None else levels(a[order])
    return u[:, 1:] + u[:, :-1] - 1.0, u.diff(dim=1).pow(3).sum(1) / 3.0, order, a


def activation(x: Tensor, map: Map = "ifsq") -> Tensor:
    """Values in (-1, 1): 2 sigmoid(1.6 x) - 1, or tanh(x).

    >>> activation(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.6640])
    """
    return torch.tanh(0.8 * x if map == "ifsq" else x)


def quantise(y: Tensor, levels: int) -> Tensor:
    """y in (-1, 1) rounded to an odd number of evenly spaced values, as FSQ does; gradients pass straight through.

    The two end bins are half as wide as the others.

    >>> quantise(torch.tensor([-0.9, 0.2, 0.3]), 5)
    tensor([-1.0000,  0.0000,  0.5000])
    """
    if levels < 3 or levels % 2 == 0:
        raise ValueError(f"quantise: levels must be odd and at least 3, got {levels}")
    half = (levels - 1) // 2
    return y + ((y * half).round() / half - y).detach()


def bin_entropy(y: Tensor, levels: int) -> Tensor:
    """(D,) bits that each coordinate's bins carry, at most log2(levels) where all are hit alike."""
    half = (levels - 1) // 2
    bins = (quantise(y.detach(), levels) * half).round().long() + half  # (N, D)
    share = torch.nn.functional.one_hot(bins, levels).to(y.dtype).mean(0)  # (D, levels)
    return -(share * share.clamp_min(torch.finfo(y.dtype).tiny).log2()).sum(1)
