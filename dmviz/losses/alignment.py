"""Alignment and uniformity: each particle to its own partner, and all of them apart."""

from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._own_pairs import directions, turned
from dmviz.losses.uniformity import Uniformity
from dmviz.params import Range, entry
from dmviz.protocols import Velocity


@entry
class Alignment:
    r"""Pull every particle to the target row with its own number, while all particles push each other apart.

    $$ F = \sum_i a_i\, |u_i - v_i|^\alpha + \lambda\, \log \frac{\sum_{i \ne j} a_i a_j\, e^{-t\,|u_i - u_j|^2}}
       {\sum_{i \ne j} a_i a_j}, \qquad u = x / |x|,\ v = y / |y| $$

    Order matters: particle i belongs with target row i, and begins again at row 0 where the target has fewer rows. Rows
    beyond the last particle and the target's weights are not read. Unit: none. Only directions count: particles turn
    about the origin. The paper trains both views and adds the mean of their uniformities; here the target stands still,
    so its own uniformity, a constant, is left out.

    `uniformity` 0 is alignment alone, whose least value 0 is also reached by a target that has collapsed; a large one
    spreads particles evenly and forgets the partners. Fails: with alpha = 1 particles jitter about their partners, at
    a speed that does not fade.

    Wang and Isola 2020, section 4.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[1.0, 0.0], [-2.0, 0.0]]), torch.tensor([[0.0, 3.0], [-1.0, 0.0]])
    >>> Alignment(uniformity=0.0)(here, Cloud(there), seeded(0)).item()  # (|(1, -1)|^2 + 0) / 2
    1.0

    ```
    """

    title = "Alignment and uniformity"
    family = "regularizers"
    source = ("wang2020understanding",)
    needs = "samples"
    cost = "N^2 D time, N memory"
    laws = frozenset({"rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0
    ordered = True

    alpha: Annotated[float, Range(1.0, 4.0, help="1 pulls with a steady hand, more pulls harder from further away")] = (
        2.0
    )
    uniformity: Annotated[float, Range(0.0, 100.0, help="Weight of the push apart: 0 leaves only the partners")] = 1.0
    t: Annotated[
        float,
        Range(0.05, 20.0, log=True, help="How sharp the push is. Small: all pairs push alike; large: only close ones"),
    ] = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        gap2 = (directions(x) - _partners(target, len(x))).square().sum(1)
        apart = gap2 > 0
        length = torch.where(apart, torch.where(apart, gap2, 1.0).pow(0.5 * self.alpha), 0.0)
        pulled = (mass_of(x, weight) * length).sum(dtype=accurate(x)).to(x.dtype)
        return pulled + self.uniformity * self._push(x, target, rng, weight)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Along the sphere to the partner, and away from the others."""
        u = directions(x)
        gap = u - _partners(target, len(x))
        gap2 = gap.square().sum(1, keepdim=True)
        apart = gap2 > 0
        slope = torch.where(apart, self.alpha * torch.where(apart, gap2, 1.0).pow(0.5 * self.alpha - 1.0), 0.0)
        pulled = (mass_of(x, weight) * torch.where(apart, slope * gap2 / self.alpha, 0.0)[:, 0]).sum(dtype=accurate(x))
        v, value = -turned(x, u, slope * gap), pulled.to(x.dtype)
        if self.uniformity:
            push = Uniformity(self.t).velocity(x, target, rng, weight)
            v, value = v + self.uniformity * push.v, value + self.uniformity * push.value
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value)

    def _push(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None) -> Tensor:
        return Uniformity(self.t)(x, target, rng, weight) if self.uniformity else x.new_zeros(())


def _partners(target: Cloud, n: int) -> Tensor:
    """(N, D) directions of the target rows that belong with the particles."""
    rows = torch.arange(n, device=target.x.device) % len(target)
    return directions(target.x.detach())[rows]
