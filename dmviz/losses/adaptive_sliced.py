"""Adaptive sliced Wasserstein distance: lines drawn from a law that is learned from the clouds."""

import math
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._slicing import Slices, sliced_power, sliced_slopes, sliced_velocity
from dmviz.losses._sphere_laws import KAPPA, Climber, Learnt, Noise, Params, Pushforward, VonMisesFisher, noise
from dmviz.losses._trees import mean_of
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free"})
_VMF = {"law": ("vmf",)}


class Adapted(NamedTuple):
    """A learned law, and the particles that it was learned at: those that did not move need no more of it."""

    climber: Climber
    x: Tensor


@entry
class AdaptiveSliced:
    r"""Learn which directions show the difference best, without giving up the others, and look along those.

    $$ F = E_{\theta \sim \rho}\, W_p^p(\theta \cdot \mu,\ \theta \cdot \nu),\qquad
       \rho = \arg\max_\rho\ \frac{1}{s^p} E_{\theta \sim \rho} W_p^p - \frac{KL(\rho\, |\, \text{even})}{\lambda} $$

    `law` "vmf": directions lie about a location, more closely the larger `kappa`. With both learned from the clouds
    and $\lambda$ = `trust` times the square root of the smaller of N and M, this follows PAC-SW, whose released code
    learns kappa alone ("kappa", about a random location); "location" alone, at the given kappa, is v-DSW. "net": a
    small network bends even directions, and the charge is `repel` times the mean |cosine| between two of them instead
    (DSW). Costs are counted in units of the length s = `scale` to the power p; the authors have s = 1.

    A law is learned by `iterations` of Adam from a random start, by `more` of them at each later step of a flow, on
    clouds held still; then it is held, and the value is the mean p-th power over `slices` lines, in length to the
    power p. Our choices: log kappa is learned and kept within 0.001 and 1000, angles come from their inverse
    distribution function and not by rejection, the network starts as the identity.

    Fails: a law learned from the clouds makes no metric, and values of two steps are under two laws, so curves may
    rise. Few iterations leave the law near its start; a large trust or a small scale ends in max-sliced.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> round(AdaptiveSliced()(here, Cloud(there), seeded(0)).item(), 4)  # on a line there is one direction: 3^2
    9.0

    ```
    """

    title = "Adaptive sliced Wasserstein (DSW, PAC-SW)"
    family = "slices"
    source = ("ohana2023shedding", "nguyen2021distributional")
    needs = "samples"
    cost = "iterations x L (N + M) (D + log) time, N + M memory"
    laws = _LAWS

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
    law: Annotated[
        Literal["vmf", "net"], Help("vmf: directions about one location; net: even directions bent by a small network")
    ] = "vmf"
    learn: Annotated[
        Learnt, Help("what of the law is learned: where directions lie, how closely, or both", when=_VMF)
    ] = "both"
    kappa: Annotated[
        float,
        Range(
            *KAPPA, log=True, help="how closely directions lie at the start: small is even, large one line", when=_VMF
        ),
    ] = 1.0
    trust: Annotated[
        float,
        Range(1e-3, 1e3, log=True, help="small: directions stay even; large: they gather where costs are", when=_VMF),
    ] = 1.0
    repel: Annotated[
        float, Range(0, 1e3, help="0: directions may all gather; large: they stay apart", when={"law": ("net",)})
    ] = 1.0
    scale: Annotated[
        float,
        Range(1e-4, 1e4, unit="length", log=True, help="the length at which costs count as 1 against the charge"),
    ] = 1.0
    slices: Annotated[
        int, Range(1, 512, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 32
    iterations: Annotated[int, Range(0, 500, help="steps of learning from the start: 0 keeps the law as it starts")] = (
        10
    )
    more: Annotated[int, Range(0, 100, help="steps of learning at each later step, from the law known then")] = 2
    rate: Annotated[float, Range(1e-4, 1, log=True, help="size of a learning step: large is fast and may jump")] = 0.1

    @property
    def degree(self) -> float:
        return float(self.power)

    @property
    def root(self) -> float:
        return float(self.power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        slices, _ = self._adapted(x.detach(), target, rng, weight, None)
        return sliced_power(x, target, slices, weight, self.power)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Adapted | None = None
    ) -> Velocity:
        """Closed form on the lines of the learned law, which is carried to the next step."""
        slices, adapted = self._adapted(x.detach(), target, rng, weight, carry)
        return Velocity(*sliced_velocity(x, target, slices, weight, self.power), adapted)

    def _adapted(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None, carry: Adapted | None
    ) -> tuple[Slices, Adapted | None]:
        """The lines to look along, and the law behind them."""
        if target.dim == 1:
            return Slices.even(torch.ones(1, 1, dtype=torch.float64)), None
        drawn = noise(self.slices, target.dim, rng)
        law = self._law(min(len(x), len(target)))
        climber = Climber.at(law.start(target.dim, rng)) if carry is None else carry.climber
        moved = carry is not None and not torch.equal(carry.x, x)
        steps = self.iterations if carry is None else self.more if moved else 0
        centre = mean_of(target)
        here = (x.to(centre) - centre).to(x.dtype)
        there = Cloud((target.x.detach().to(centre) - centre).to(x.dtype), target.weight)
        for _ in range(steps):
            climber = climber.ahead(
                self._uphill(law, climber.params, drawn, here, there, weight), law.free(), self.rate
            )
        with torch.no_grad():
            theta = law.directions(climber.params, drawn)
        return Slices.even(theta), Adapted(climber, x)

    def _law(self, n: int) -> VonMisesFisher | Pushforward:
        if self.law == "net":
            return Pushforward(self.repel)
        return VonMisesFisher(self.kappa, self.learn, self.trust * math.sqrt(n))

    def _uphill(
        self,
        law: VonMisesFisher | Pushforward,
        params: Params,
        drawn: Noise,
        x: Tensor,
        target: Cloud,
        weight: Tensor | None,
    ) -> Params:
        """Slopes of what is maximised in the law's parameters; through the lines in closed form."""
        with torch.enable_grad():
            leaves = tuple(p.detach().requires_grad_(True) for p in params)
            theta = law.directions(leaves, drawn)
            charge = law.penalty(leaves, theta)
            _, slopes = sliced_slopes(x, target, theta.detach().to(x), weight, self.power)
            gain = (theta * slopes.to(theta)).sum() / (len(theta) * self.scale**self.power)
            found = torch.autograd.grad(gain - charge, leaves, allow_unused=True)
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True))
