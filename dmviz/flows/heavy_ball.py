from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.flows._stepping import Moving, guarded, plain, started
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


@entry
class HeavyBall:
    r"""Particles with inertia: they roll through flat places and past small bumps.

    $$ m_i \leftarrow \beta\, m_i + \Delta t\, v_i, \qquad x_i \leftarrow x_i + m_i $$

    `momentum` is $\beta$: 0 is the Euler flow, near 1 the cloud swings around the target before it rests. No longer a
    gradient flow: the loss may rise while the cloud swings. *Adaptive* halves a step after which the loss would be
    more than half again as large, and drops the momentum then.

    Fails when dt / (1 - momentum) is more than the plain flow could bear.
    """

    title = "Heavy ball (momentum)"
    source = ("polyak1964some",)
    needs = "loss"

    dt: Annotated[float, Range(1e-4, 1e3, unit="time", log=True, help="small: faithful; large: may overshoot")] = 0.02
    momentum: Annotated[float, Range(0.0, 0.99, help="0: no inertia; near 1: swings for long")] = 0.9
    steps: Annotated[Literal["adaptive", "fixed"], Help("adaptive steps never let the loss explode unnoticed")] = (
        "adaptive"
    )

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        return started(x, field, rng, self.dt, torch.zeros_like(x))

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        def propose(dt: float) -> Tensor:
            # A shorter try carries less of the old momentum too, so that enough halvings always reach rest.
            moved: Tensor = state.x + (dt / state.dt) * self.momentum * state.memory + dt * state.v
            return moved

        if self.steps == "fixed":
            x, answer, info, dt = plain(state, field, rng, propose)
        else:
            x, answer, info, dt = guarded(state, field, rng, propose, 0.5, self.dt)
        move = torch.zeros_like(x) if info.note else x - state.x
        return Moving(x, answer.v, answer.value, answer.carry, state.time + info.dt, dt, move), info
