from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.flows._stepping import Moving, guarded, plain, started
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


class Moments(NamedTuple):
    first: Tensor  # (N, D) running mean of the velocity
    second: Tensor  # (N, D) running mean of its square
    taken: int  # steps so far


@entry
class Adam:
    r"""The optimiser of deep learning, applied to particles: every coordinate moves about one `lr` a step.

    $$ m \leftarrow \beta_1 m + (1-\beta_1) v, \quad s \leftarrow \beta_2 s + (1-\beta_2) v^2, \quad
       x \leftarrow x + \mathrm{lr}\, \frac{m / (1-\beta_1^t)}{\sqrt{s / (1-\beta_2^t)} + \epsilon} $$

    It rescales each coordinate of each particle on its own, so weak forces look strong: good when a loss has faint
    gradients, but the path is no gradient flow, depends on the axes, and time is only a count of `lr`.
    """

    title = "Adam"
    source = ("kingma2015adam",)
    needs = "loss"

    lr: Annotated[float, Range(1e-5, 10.0, log=True, help="how far a coordinate moves in a step, at most about")] = 0.05
    beta1: Annotated[float, Range(0.0, 0.999, help="memory of the direction")] = 0.9
    beta2: Annotated[float, Range(0.0, 0.9999, help="memory of the size")] = 0.999
    steps: Annotated[Literal["adaptive", "fixed"], Help("adaptive steps never let the loss explode unnoticed")] = (
        "adaptive"
    )

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        zero = torch.zeros_like(x)
        return started(x, field, rng, self.lr, Moments(zero, zero, 0))

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        old: Moments = state.memory
        count = old.taken + 1
        first = self.beta1 * old.first + (1 - self.beta1) * state.v
        second = self.beta2 * old.second + (1 - self.beta2) * state.v.square()
        mean, spread = first / (1 - self.beta1**count), (second / (1 - self.beta2**count)).sqrt()
        direction = mean / (spread + 1e-8)

        def propose(dt: float) -> Tensor:
            return state.x + dt * direction

        if self.steps == "fixed":
            x, answer, info, dt = plain(state, field, rng, propose)
        else:
            x, answer, info, dt = guarded(state, field, rng, propose, 0.5, self.lr)
        moments = Moments(first, second, count)
        return Moving(x, answer.v, answer.value, answer.carry, state.time + info.dt, dt, moments), info
