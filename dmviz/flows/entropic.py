import math
from typing import Annotated

from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.flows._stepping import Moving, started
from dmviz.params import Range, entry
from dmviz.protocols import Field, Info


@entry
class Entropic:
    r"""Particles follow the loss and diffuse at once, so that they spread around the target and never settle on points.

    $$ x_i \leftarrow x_i + \Delta t\, v_i + \sqrt{2 \lambda \Delta t}\;\xi_i, \qquad \xi_i \sim N(0, I), \qquad
       \text{a flow of } F(\mu) + \lambda \int \mu \log \mu $$

    The gradient flow of the loss minus `entropy` ($\lambda$) times the entropy of the cloud. With sliced Wasserstein it
    is the sliced-Wasserstein flow with entropy, whose paper flows SW^2 / 2: dmviz flows SW^2, which is the same at half
    the time and twice its lambda. Under W2 squared a Gaussian target of deviation $s$ on a line is met with deviation
    $(s + \sqrt{s^2 + 2 \lambda}) / 2$. The curve is the loss alone, which noise keeps above 0; steps are as asked.

    0 is the Euler flow; large lambda washes the target out. Unit of lambda: that of the loss. Fails when `dt` is more
    than the loss can bear, and in many dimensions, where noise adds up: the squared distance it adds is 2 D lambda dt.

    Liutkus et al. 2019; the entropy as noise, Jordan, Kinderlehrer and Otto 1998.
    """

    title = "Flow with entropy"
    source = ("liutkus2019sliced", "jordan1998variational")
    needs = "loss"

    dt: Annotated[float, Range(1e-4, 1e3, unit="time", log=True, help="small: faithful; large: may overshoot")] = 0.1
    entropy: Annotated[float, Range(0.0, 100.0, help="0: none; large: the cloud is wider than its target")] = 0.01

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        return started(x, field, rng, self.dt)

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        noise = math.sqrt(2 * self.entropy * self.dt) * normal(tuple(state.x.shape), state.x, rng)
        x = field.hold(state.x + self.dt * state.v + field.tangent(state.x, noise))
        v, value, carry = field(x, rng, state.carry)
        return Moving(x, v, value, carry, state.time + self.dt, self.dt), Info(self.dt)
