"""f-divergences by a critic that is trained to tell the two clouds apart."""

from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._critic import Critic, Features, fitted, frame_of
from dmviz.losses._ratios import GENERATORS, Divergence, Ratio
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_MOST = 10.0
"""The log ratio is held within this, as in the code that f-distill released."""


@entry
class ClassifierDivergence:
    r"""Train a critic to tell particles from target, and move the particles so that it is fooled.

    $$ F = \sum_j b_j\, f'(r(y_j)) - \sum_i a_i\, f^*\bigl(f'(r(x_i))\bigr), \qquad \log r = T $$

    where T is the logit of a logistic regression, 1 on the target and 0 on the particles, each cloud with half of the
    mass, so that T estimates log p / q. For the best T of all functions F is D_f(p | q); for any other it lies below,
    and for Jensen-Shannon it is log 2 less the logistic loss. Particles follow the critic, which is held fixed:

    $$ v(x) = h(r(x))\,\nabla T(x), \qquad h(r) = r^2 f''(r). $$

    The critic sees the coordinates (`linear`: means only), their products too (`quadratic`: exact for Gaussians), or
    random waves beside the coordinates (`waves`: any shape down to the bandwidth). The problem is convex and is solved
    to the end at every step by Newton's method, from the last step's weights: there is no training to wait for, and a
    warm start changes nothing. Unit: nats, or none for Hellinger and chi-square.

    F is measured on the points that the critic was trained on, so with many features it is too large: half the points
    against the other half are not 0. `held_out` gives the honest number: trained on one half, read on the other,
    with the accuracy and the share of points where T was clipped. T is held in [-10, 10] in r (not in its slope);
    KL and chi-square, which take e^T, are noisy long before. A small ridge lets the critic separate clouds without
    bound, a large one makes it blind; a ridge of 1e-3 keeps clouds that do not touch below the clip.

    Nguyen, Wainwright and Jordan 2010 for the bound; as a test, Lopez-Paz and Oquab 2017.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    >>> shares, mirrored = torch.tensor([0.25, 0.75]), torch.tensor([0.75, 0.25])
    >>> loss = ClassifierDivergence("kl", features="linear", ridge=1e-15)
    >>> round(loss(x, Cloud(y, mirrored), seeded(0), shares).item(), 4)  # KL = 3/4 log 3 - 1/4 log 3
    0.5493

    ```
    """

    title = "Classifier divergence"
    family = "densities"
    source = ("nguyen2010estimating", "lopezpaz2017revisiting")
    needs = "samples"
    cost = "(N + M) F^2 time a Newton step and (N + M) F memory for F features"
    degree = 0.0

    divergence: Annotated[
        Divergence,
        Help("How the ratio weighs the pull: reverse ones seek a mode, forward ones cover all, the others lie between"),
    ] = "jensen_shannon"
    features: Annotated[
        Features, Help("What the critic sees: coordinates, their products, or random waves beside the coordinates")
    ] = "waves"
    waves: Annotated[
        int,
        Range(4, 512, log=True, help="Few: a coarse critic, fast; many: a sharp one", when={"features": ("waves",)}),
    ] = 32
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Finest detail that the waves see. Small: noise between points; large: only means and spreads",
            when={"features": ("waves",)},
        ),
    ] = 1.0
    wave_seed: Annotated[
        int, Range(0, 2**31 - 1, help="Another number, other waves", when={"features": ("waves",)})
    ] = 0
    ridge: Annotated[
        float, Range(1e-15, 1.0, log=True, help="Small: the critic may be certain; large: it hardly dares to judge")
    ] = 1e-3

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = {"zero_at_target", "shift_free", "deterministic"}
        if self.features != "waves":
            found |= {"rotation_free"}
        if GENERATORS[self.divergence].symmetric:
            found |= {"symmetric"}
        return frozenset(found)

    @property
    def root(self) -> float:
        return 2.0 if self.divergence in ("jensen_shannon", "hellinger") else 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        critic = self.critic(x, target, weight)
        return self._value(critic, x, mass_of(x, weight), target.x, target.mass()).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Critic | None = None
    ) -> Velocity:
        """Up the critic, as eagerly as the ratio says."""
        critic, a = self.critic(x, target, weight, carry), mass_of(x, weight)
        v = self._eagerness(critic.log_ratio(x))[:, None] * critic.slope(x)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), self._value(critic, x, a, target.x, target.mass()).to(x.dtype), critic)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        critic = self.critic(x, target, weight)
        return (self._eagerness(critic.log_ratio(at))[:, None] * critic.slope(at)).to(at.dtype)

    @torch.no_grad()
    def critic(self, x: Tensor, target: Cloud, weight: Tensor | None = None, carry: Critic | None = None) -> Critic:
        """The best critic between the clouds; `log_ratio` is its logit anywhere."""
        clouds = (x.detach(), mass_of(x, weight)), (target.x.detach(), target.mass())
        frame = frame_of(clouds, self.features, self.waves, self.bandwidth, self.wave_seed)
        return fitted(*clouds[0], *clouds[1], frame, self.ridge, None if carry is None else carry.w)

    @torch.no_grad()
    def held_out(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> "HeldOut":
        """Value and accuracy on points that the critic has not seen: two halves by chance, each judged by the other."""
        if min(len(x), len(target)) < 2:
            raise ValueError("ClassifierDivergence: held_out needs at least two points in each cloud to split them.")
        halves = [_halves(z, w, rng) for z, w in ((x, mass_of(x, weight)), (target.x, target.mass()))]
        seen = []
        for one in (0, 1):
            (x_in, a_in), (y_in, b_in) = halves[0][one], halves[1][one]
            (x_out, a_out), (y_out, b_out) = halves[0][1 - one], halves[1][1 - one]
            critic = self.critic(x_in, Cloud(y_in, b_in), a_in)
            here, there = critic.log_ratio(x_out), critic.log_ratio(y_out)
            right = 0.5 * (a_out.double() @ _sides(-here) + b_out.double() @ _sides(there))
            clipped = torch.cat([here, there]).abs().gt(_MOST).double().mean()
            seen.append(torch.stack([self._value(critic, x_out, a_out, y_out, b_out), right, clipped]))
        return HeldOut(*((seen[0] + seen[1]) / 2))

    def _eagerness(self, log_ratio: Tensor) -> Tensor:
        return GENERATORS[self.divergence].weight(Ratio(log_ratio.clamp(-_MOST, _MOST)))

    def _value(self, critic: Critic, x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> Tensor:
        of = GENERATORS[self.divergence]
        gain, price = of.slope(_held(critic.log_ratio(y))), of.dual(_held(critic.log_ratio(x)))
        return b.double() @ gain - a.double() @ price


class HeldOut(NamedTuple):
    """What a critic says of points it has not seen: divergence, share told apart, share where it was clipped."""

    value: Tensor
    accuracy: Tensor
    clipped: Tensor


def _held(log_ratio: Tensor) -> Ratio:
    """The ratio within its bounds, with the slope that it would have without them."""
    return Ratio(log_ratio + (log_ratio.clamp(-_MOST, _MOST) - log_ratio).detach())


def _sides(margin: Tensor) -> Tensor:
    """1 on the right side, 0 on the wrong one, half on the line."""
    return 0.5 * (1.0 + margin.sign())


def _halves(z: Tensor, w: Tensor, rng: Generator) -> list[tuple[Tensor, Tensor]]:
    mixed = torch.randperm(len(z), generator=rng, device=rng.device).to(z.device)
    return [(z[part], w[part] / w[part].sum()) for part in (mixed[: len(z) // 2], mixed[len(z) // 2 :])]
