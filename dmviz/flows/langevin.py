import math
from typing import Annotated

from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.flows._stepping import Moving
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info


@entry
class Langevin:
    r"""Uphill on the target's density, shaken by noise: the particles end up spread like the target.

    $$ x_i \leftarrow x_i + \Delta t\, \nabla\log p(x_i) + \sqrt{2 T \Delta t}\;\xi_i, \qquad \xi_i \sim N(0, I) $$

    Unadjusted Langevin dynamics: no step is ever refused, so the law it settles in is off by a term of order `dt`.
    Temperature $T = 1$ aims at the target itself, below 1 at its peaks, 0 is plain ascent. It follows the score, not
    the loss; the loss is only watched. Arrows show the score.

    Fails when `dt` is more than about 2 over the largest curvature of $-\log p$: particles are thrown out.
    """

    title = "Langevin"
    source = ("roberts1996exponential",)
    needs = "score"

    dt: Annotated[
        float, Range(1e-5, 10.0, unit="time", log=True, help="small: exact and slow; large: biased, then unstable")
    ] = 0.02
    temperature: Annotated[float, Range(0.0, 10.0, help="0: climb to the peaks; 1: the target's own spread")] = 1.0

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        x = field.hold(x)
        return Moving(x, field.score(x), x.new_tensor(math.nan), None, 0.0, self.dt)

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        noise = normal(tuple(state.x.shape), state.x, rng)
        x = field.hold(state.x + self.dt * state.v + math.sqrt(2 * self.temperature * self.dt) * noise)
        return state._replace(x=x, v=field.score(x), time=state.time + self.dt), Info(self.dt)
