import math
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, normal
from dmviz.flows._stepping import Moving
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


@entry
class Langevin:
    r"""Uphill on the target's density, shaken by noise: the particles end up spread like the target.

    $$ x_i \leftarrow x_i + \Delta t\, \nabla\log p(x_i) + \sqrt{2 T \Delta t}\;\xi_i, \qquad \xi_i \sim N(0, I) $$

    Unadjusted Langevin dynamics: no step is ever refused, so the law it settles in is off by a term of order `dt`.
    Temperature $T = 1$ aims at the target itself, below 1 at its peaks, 0 is plain ascent. It follows the score, not
    the loss; the loss is only watched. Arrows show the score.

    `start` *data* leaves the source and begins at points of the target: as many chains in each mode as its mass asks
    for. From noise a mode fills by how much of the source lies on its side, and far modes exchange particles only after
    a time that grows exponentially with the wall between them; from data a short run samples all modes rightly. The
    theorem is for a score learned from the same data, which is good where data are; dmviz has the exact one.

    Fails when `dt` is more than about 2 over the largest curvature of $-\log p$: particles are thrown out.

    Roberts and Tweedie 1996; from data, Koehler and Vuong 2024.
    """

    title = "Langevin"
    source = ("roberts1996exponential", "koehler2024sampling")
    needs = "score"

    dt: Annotated[
        float, Range(1e-5, 10.0, unit="time", log=True, help="small: exact and slow; large: biased, then unstable")
    ] = 0.02
    temperature: Annotated[float, Range(0.0, 10.0, help="0: climb to the peaks; 1: the target's own spread")] = 1.0
    start: Annotated[Literal["source", "data"], Help("data: chains begin at points of the target")] = "source"

    def begins(self, x: Tensor, field: Field, rng: Generator) -> Tensor:
        """Where a run starts: the source, or points of the target."""
        return x if self.start == "source" else drawn(field.target, len(x), rng)

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        x = field.hold(x)
        return Moving(x, field.score(x), x.new_tensor(math.nan), None, 0.0, self.dt)

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        noise = normal(tuple(state.x.shape), state.x, rng)
        x = field.hold(state.x + self.dt * state.v + math.sqrt(2 * self.temperature * self.dt) * noise)
        return state._replace(x=x, v=field.score(x), time=state.time + self.dt), Info(self.dt)


def drawn(target: Cloud, n: int, rng: Generator) -> Tensor:
    """(n, D) points of the target in random order, each as often as its weight asks for, to the next whole number."""
    ladder = target.mass().double().cumsum(0)
    level = torch.rand((), generator=rng, device=rng.device, dtype=torch.float64).to(ladder.device)
    rungs = (torch.arange(n, dtype=torch.float64, device=ladder.device) + level) / n
    rows = torch.searchsorted(ladder, rungs * ladder[-1], right=True).clamp_max(len(ladder) - 1)
    order = torch.randperm(n, generator=rng, device=rng.device).to(rows.device)
    return target.x[rows[order]].clone()
