import math
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.flows._mechanics import accepted, leapfrog, momenta
from dmviz.flows._stepping import Moving
from dmviz.params import Help, Range, entry
from dmviz.protocols import Field, Info


@entry
class Hamiltonian:
    r"""Each particle is kicked at random, rolls without friction over the landscape of the density, and stops.

    $$ \dot x = p, \quad \dot p = \nabla\log p_{\mathrm{target}}(x), \qquad p(0) \sim N(0, I), \qquad
       \text{accept with } \min(1, e^{H - H'}), \quad H = \tfrac12 |p|^2 - \log p_{\mathrm{target}}(x) $$

    Hamiltonian Monte Carlo: `leaps` leapfrog steps of `dt` make a proposal far away, which *metropolis* takes or leaves
    so that the law in which particles settle is the target exactly. *always* takes all: on a Gaussian of variance 1
    the particles then settle with variance 1 / (1 - dt^2 / 4). A target whose log density is not known, only its slope,
    can only be sampled so, and the step says it. `jitter` draws the length of a leap anew each step: without it, a path
    as long as a swing of the target (2 pi deviations) brings particles back to where they began.

    In the box particles bounce off the walls, on the sphere they roll along great circles, so that both are exact for
    the target restricted there. It follows the score, not the loss. One frame covers the time dt times `leaps`.

    Fails when `dt` is more than 2 over the square root of the largest curvature of $-\log p$: few proposals are taken.
    Modes with nothing between them are rarely crossed: a kick carries over a gap of a few units of log density.

    Duane et al. 1987; Neal 2011; great circles as in Byrne and Girolami 2013.
    """

    title = "Hamiltonian Monte Carlo"
    source = ("duane1987hybrid", "neal2011mcmc", "byrne2013geodesic")
    needs = "score"

    dt: Annotated[
        float, Range(1e-4, 10.0, unit="time", log=True, help="one leap: small is taken for sure, large is refused")
    ] = 0.1
    leaps: Annotated[int, Range(1, 200, log=True, help="leaps in a proposal: 1 wanders, 20 crosses a cloud")] = 10
    accept: Annotated[Literal["metropolis", "always"], Help("metropolis: exact; always: off by a term of dt^2")] = (
        "metropolis"
    )
    jitter: Annotated[float, Range(0.0, 0.9, help="share by which dt is drawn anew each step")] = 0.1

    def init(self, x: Tensor, field: Field, rng: Generator) -> Moving:
        x = field.hold(x)
        return Moving(x, field.score(x), x.new_tensor(math.nan), None, 0.0, self.dt, self._depth(x, field))

    def step(self, state: Moving, field: Field, rng: Generator) -> tuple[Moving, Info]:
        dt = self.dt * (1 + self.jitter * (2 * float(torch.rand((), generator=rng, device=rng.device)) - 1))
        p = momenta(state.x, field, rng)
        x, p_end, force = leapfrog(state.x, p, state.v, field.score, dt, self.leaps, field)
        depth, note = self._depth(x, field), ""
        if depth is not None:
            rise = 0.5 * (p_end.double().square() - p.double().square()).sum(1) + state.memory - depth
            taken = accepted(rise, rng)
            x, force = (torch.where(taken[:, None], new, old) for new, old in ((x, state.x), (force, state.v)))
            depth = torch.where(taken, depth, state.memory)
            if (share := float(taken.double().mean())) < 0.3:
                note = f"Only {share:.0%} of the proposals were taken: dt is too large for this density."
        elif self.accept == "metropolis" and state.time == 0:
            note = "All proposals are taken, none is tested: of this target only the slope of the density is known."
        moved = state._replace(x=x, v=force, time=state.time + dt * self.leaps, memory=depth)
        return moved, Info(dt * self.leaps, self.leaps, note)

    def _depth(self, x: Tensor, field: Field) -> Tensor | None:
        """(N,) log density, where proposals are tested by it."""
        log_prob = field.target.log_prob
        if self.accept == "always" or log_prob is None:
            return None
        return log_prob(x).detach().double()
