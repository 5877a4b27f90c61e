import math
from typing import Annotated, Literal, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import normal
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


class Coupled(NamedTuple):
    x: Tensor  # (N, D) the chains that are watched
    v: Tensor  # (N, D) their drift
    value: Tensor  # () nan: the loss is only watched
    time: float
    chain: Tensor  # (N, D)
    guide: Tensor  # (N, D)


@entry
class EntropyMcmc:
    r"""Every particle is tied to a guide: the particle samples the target, the guide samples it blurred.

    $$ p(\theta, \theta_a) \propto p(\theta)\, e^{-|\theta - \theta_a|^2 / 2\eta}, \qquad
       \theta \leftarrow \theta + \Delta t\,\bigl(\nabla\log p(\theta) - (\theta - \theta_a)/\eta\bigr)
       + \sqrt{2\Delta t}\,\xi, \qquad
       \theta_a \leftarrow \theta_a + \Delta t\,(\theta - \theta_a)/\eta + \sqrt{2\Delta t}\,\xi_a $$

    Summed over guides the chains have the target's own law; the guides have that law blurred by a Gaussian of deviation
    `smoothing` ($\sqrt\eta$): narrow peaks lose their height to it and wide ones keep theirs, so that guides prefer
    flat basins, and pull their particles there. A Gaussian target of variance $s^2$ is met with variance $s^2$ by the
    chains and $s^2 + \eta$ by the guides. `watch` chooses which of the two is shown; both start at the source.

    Unadjusted, as in the paper, with the exact score where the paper has that of a batch: off by a term of order `dt`.
    Small smoothing: the guide is the particle itself; large: the tie is slack and the guide wanders alone. Arrows show
    the drift. A run that goes on from a kept frame begins with both at the place that was shown.

    Fails when `dt` is above about eta, where the tie throws both out, or 2 over the largest curvature of $-\log p$.

    Li and Zhang 2024.
    """

    title = "Entropy-MCMC"
    source = ("li2024entropy",)
    needs = "score"

    dt: Annotated[
        float, Range(1e-5, 10.0, unit="time", log=True, help="small: exact and slow; large: biased, then unstable")
    ] = 0.02
    smoothing: Annotated[
        float, Range(0.01, 100.0, unit="length", log=True, help="how far a guide may be from its particle")
    ] = 0.5
    watch: Annotated[Literal["chain", "guide"], Help("chain: the target itself; guide: the target blurred")] = "chain"

    def init(self, x: Tensor, field: Field, rng: Generator) -> Coupled:
        x = field.hold(x)
        return self._seen(x, x, 0.0, field)

    def step(self, state: Coupled, field: Field, rng: Generator) -> tuple[Coupled, Info]:
        shape, spread = tuple(state.x.shape), math.sqrt(2 * self.dt)
        drift, tie = self._drifts(state.chain, state.guide, field)
        chain = field.hold(state.chain + self.dt * drift + spread * normal(shape, state.x, rng))
        guide = field.hold(state.guide + self.dt * tie + spread * normal(shape, state.x, rng))
        return self._seen(chain, guide, state.time + self.dt, field), Info(self.dt)

    def _drifts(self, chain: Tensor, guide: Tensor, field: Field) -> tuple[Tensor, Tensor]:
        tie = (chain - guide) / self.smoothing**2
        return field.score(chain) - field.tangent(chain, tie), field.tangent(guide, tie)

    def _seen(self, chain: Tensor, guide: Tensor, time: float, field: Field) -> Coupled:
        drift, tie = self._drifts(chain, guide, field)
        x, v = (chain, drift) if self.watch == "chain" else (guide, tie)
        return Coupled(x, v, x.new_tensor(math.nan), time, chain, guide)
