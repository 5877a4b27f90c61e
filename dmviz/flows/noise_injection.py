from typing import Annotated

from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.flows._stepping import Moving, started
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info


@entry
class NoiseInjection:
    r"""Each particle asks for directions at a randomly shifted place, which frees it where its own force is dead.

    $$ x_i \leftarrow x_i + \Delta t\; V(x_i + \beta_k u_i), \qquad u_i \sim N(0, I), \qquad
       \beta_k = \beta_0\, 2^{-\lfloor k / h \rfloor} $$

    $V$ is the pull made by the particles where they really are; only the place where it is read is noisy. `noise` is
    $\beta_0$, a length: start near the bandwidth. It halves every `half_life` steps ($h$), since particles can only
    settle once it has gone. The paper flows MMD^2 / 2; dmviz flows MMD^2, which is the same path at twice the pace.

    Fails when the loss has no pull to offer away from its particles (sliced and exact transport): the menu says so.
    """

    title = "Flow with noise injection"
    source = ("arbel2019maximum",)
    needs = "probe"

    dt: Annotated[
        float, Range(1e-4, 1e3, unit="time", log=True, help="small: faithful; large: fast, may overshoot")
    ] = 0.1
    noise: Annotated[float, Range(0.0, 100.0, unit="length", help="how far away a particle asks at the start")] = 1.0
    half_life: Annotated[
        int, Range(1, 100_000, unit="steps", log=True, help="steps until the noise is half as large")
    ] = 100

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        return started(x, field, rng, self.dt, 0)

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        beta = self.noise * 0.5 ** (state.memory // self.half_life)
        at = state.x + beta * normal(tuple(state.x.shape), state.x, rng)
        x = field.hold(state.x + self.dt * field.probe(at, state.x, rng))
        answer = field(x, rng, state.carry)
        moved = Moving(x, answer.v, answer.value, answer.carry, state.time + self.dt, self.dt, state.memory + 1)
        return moved, Info(self.dt, 2)
