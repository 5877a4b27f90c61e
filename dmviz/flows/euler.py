from typing import Annotated, Literal

from torch import Generator, Tensor

from dmviz.flows._stepping import Moving, guarded, plain, slack_of, started
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


@entry
class Euler:
    r"""Each particle walks along its velocity for a short time, then looks again.

    $$ x_i \leftarrow x_i + \Delta t \, v_i $$

    The explicit Euler scheme of the Wasserstein gradient flow. `dt` is time: small is faithful and slow, large is fast
    until it overshoots. *Adaptive* halves a step that would make the loss rise and grows back to `dt`; *fixed* takes
    every step as asked. A loss with freshly drawn directions wavers, so there only a rise by half counts.

    Fails when the loss has kinks (energy distance, exact W1): near the target fixed steps rattle by `dt` times speed.
    """

    title = "Gradient flow (Euler)"
    source = ("ambrosio2008gradient",)
    needs = "loss"

    dt: Annotated[float, Range(1e-4, 1e3, unit="time", log=True, help="small: faithful; large: may overshoot")] = 0.1
    steps: Annotated[Literal["adaptive", "fixed"], Help("adaptive steps never let the loss rise unnoticed")] = (
        "adaptive"
    )

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        return started(x, field, rng, self.dt)

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        def propose(dt: float) -> Tensor:
            return state.x + dt * state.v

        if self.steps == "fixed":
            x, answer, info, dt = plain(state, field, rng, propose)
        else:
            x, answer, info, dt = guarded(state, field, rng, propose, slack_of(field), self.dt)
        return Moving(x, answer.v, answer.value, answer.carry, state.time + info.dt, dt), info
