"""Neural characteristic function discrepancy: amplitude and phase of the waves, at frequencies that may be learned."""

import math
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses import _compiled
from dmviz.losses._moments import root_slope, smooth_root
from dmviz.losses._pairs import median_distance
from dmviz.losses._slicing import centre_of, gaussian
from dmviz.losses._waves import Waves, by_frequency, fixed_frequencies, follow, frequencies, pull, waves
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_RATE = 1e-3  # of the network's Adam steps, as released


@entry
class Ncfd:
    r"""Compare the waves of two clouds by how strong they are and by where their crests lie.

    $$ F = \frac1L \sum_l \sqrt{\alpha\,(|\phi_X| - |\phi_Y|)^2
       + (1-\alpha)\cdot 2\,|\phi_X||\phi_Y|\,(1 - \cos\Delta_l)},\qquad \phi_X(t) = \sum_i a_i e^{i t\cdot x_i} $$

    at frequencies $t_l$, with $\Delta_l$ the angle between the two waves. Amplitude tells how spread a cloud is, phase
    where it lies: $\alpha = 1$ is blind to moving a cloud as a whole, and $\alpha = 1/2$ is the mean of
    $|\phi_X - \phi_Y| / \sqrt2$. Unit: none. The release multiplies the value by 300; here the factor is 1. Where the
    square under the root is below 1e-12 a parabola takes the root's place, so that the value is 0 and smooth on equal
    clouds (the release clamps the phase there).

    Frequencies are normal, divided by the bandwidth, which is the target's median distance unless `median` is off.
    "fresh" ones are drawn at every step, as released, "fixed" ones once. "learned" ones come from a network that
    climbs: noise through three layers (linear, batch normalisation, then leaky ReLU twice and tanh last), some Adam
    steps up F for every step down, beginning from a seeded network; a run carries the network on, a value asked for
    alone starts it anew. As released, the network speaks one frequency for every 16 asked for (at least two); the
    release then repeats each 16 times, which leaves the mean as it is, and here each is counted once. tanh keeps them
    below 1 over the bandwidth, so that fine detail needs a small bandwidth.

    `normalise` puts every point on the unit sphere first, as the release does with features. It fails where all waves
    are weak: frequencies far above 1 / spread see only noise, and phases mean nothing there.

    Wang et al. 2025.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = Ncfd(alpha=1.0)  # amplitudes alone do not see where a point is
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)
    0.0

    ```
    """

    title = "Neural characteristic function discrepancy"
    family = "characteristic functions"
    source = ("wang2025ncfm",)
    needs = "samples"
    cost = "L (N + M) D time, N + M memory; learned frequencies three times as much for each step up"
    root = 1.0

    alpha: Annotated[
        float,
        Range(0.0, 1.0, help="0 compares only phases, where clouds lie; 1 only amplitudes, how spread they are"),
    ] = 0.5
    frequencies: Annotated[
        int, Range(1, 16384, log=True, help="waves to compare: few are quick and rough, many slow and smooth")
    ] = 512
    draw: Annotated[
        Literal["fresh", "fixed", "learned"],
        Help("fresh: new frequencies at every step; fixed: the same all along; learned: where the clouds differ most"),
    ] = "fresh"
    median: Annotated[bool, Help("Take the bandwidth as the median distance between points of the target")] = True
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Length of a wave: small sees detail and noise, large sees only means",
            when={"median": (False,)},
        ),
    ] = 1.0
    normalise: Annotated[bool, Help("Put every point on the unit sphere first, so that only directions count")] = False
    steps_up: Annotated[
        int,
        Range(1, 50, log=True, help="steps of the network for each step of the particles", when={"draw": ("learned",)}),
    ] = 5
    frequency_seed: Annotated[
        int,
        Range(
            0,
            2**31 - 1,
            help="another number, other fixed frequencies or network",
            when={"draw": ("fixed", "learned")},
        ),
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        held: set[Law] = {"zero_at_target", "nonnegative"}
        if not self.normalise:
            held |= {"shift_free"}
        if self.draw == "fixed":
            held |= {"deterministic"}
        if not self.median:  # a bandwidth read from the target makes the two sides differ
            held |= {"symmetric"}
            if self.alpha >= 0.5 and self.draw != "learned":
                held |= {"triangle"}
        return frozenset(held)

    @property
    def degree(self) -> float:
        return math.nan if self.normalise else 0.0  # the sphere has a size of its own

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        there = self._there(target)
        t, heard, _ = self._heard(self._placed(x.detach(), there), weight, there, rng, None)
        here = waves(self._placed(x, there), weight, t, there.compiled)
        return smooth_root(_square(here, heard, self.alpha)).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: "_Critic | None" = None
    ) -> Velocity:
        """Closed form in the particles; only the network is differentiated by autograd."""
        there = self._there(target)
        u = self._placed(x, there)
        t, heard, critic = self._heard(u, weight, there, rng, carry)

        def slope(here: Waves, part: slice) -> tuple[Tensor, Waves]:
            value, by = _slope(here, Waves(heard.re[part], heard.im[part]), self.alpha)
            return value / len(t), Waves(by.re / len(t), by.im / len(t))

        v, value = follow(u, weight, t, slope, there.compiled)
        return Velocity(self._back(v, x), value, critic)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same waves' pull at any points (K, D), the particles x themselves unmoved."""
        there = self._there(target)
        u = self._placed(x, there)
        t, heard, _ = self._heard(u, weight, there, rng, None)
        by = _slope(waves(u, weight, t, there.compiled), heard, self.alpha)[1]
        return self._back(pull(self._placed(at, there), t, Waves(by.re / len(t), by.im / len(t)), there.compiled), at)

    def prepare(self, target: Cloud) -> Cloud:
        """The target where it is compared, its median distance, and its waves at fixed frequencies."""
        memo = {**(target.memo or {}), "compiled": _compiled.chosen(target.memo, target.x)}
        memo[repr(self)] = self._looked_at(replace(target, memo=memo))
        return replace(target, memo=memo)

    def _there(self, target: Cloud) -> "_There":
        kept = (target.memo or {}).get(repr(self))
        return kept if isinstance(kept, _There) and kept.of is target.x else self._looked_at(target)

    def _looked_at(self, target: Cloud) -> "_There":
        y = _unit(target.x.detach()) if self.normalise else target.x.detach()
        length = median_distance(Cloud(y), self.bandwidth) if self.median else self.bandwidth
        centre = centre_of(y)
        compiled = _compiled.chosen(target.memo, y)
        there = _There(target.x, centre, y - centre, target.weight, length, compiled)
        if self.draw != "fixed":
            return there
        t = (fixed_frequencies("random", self.frequencies, target.dim, self.frequency_seed) / length).to(y)
        return there._replace(t=t, waves=waves(there.y, target.weight, t, compiled))

    def _placed(self, x: Tensor, there: "_There") -> Tensor:
        """Points where they are compared: on the sphere if asked for, and amid the target."""
        return (_unit(x) if self.normalise else x) - there.centre

    def _back(self, v: Tensor, x: Tensor) -> Tensor:
        """A velocity on the unit sphere as one of the points themselves."""
        if not self.normalise:
            return v
        u, size = _unit(x), x.square().sum(1, keepdim=True).sqrt()
        return torch.where(size > 0, (v - (v * u).sum(1, keepdim=True) * u) / torch.where(size > 0, size, 1.0), 0.0)

    def _heard(
        self, u: Tensor, weight: Tensor | None, there: "_There", rng: Generator, carry: "_Critic | None"
    ) -> tuple[Tensor, Waves, "_Critic | None"]:
        """Frequencies (L, D), the target's waves there, and the network that chose them."""
        if there.t is not None and there.waves is not None:
            return there.t, there.waves, None
        critic = None
        if self.draw == "learned":
            standard, critic = self._climbed(u.detach(), weight, there, rng, carry)
        else:
            standard = frequencies("random", self.frequencies, u.shape[1], rng)
        t = (standard / there.length).to(u)
        return t, waves(there.y, there.weight, t, there.compiled), critic

    def _climbed(
        self, u: Tensor, weight: Tensor | None, there: "_There", rng: Generator, carry: "_Critic | None"
    ) -> tuple[Tensor, "_Critic"]:
        """What the network says after some steps up F; none where it last saw these very particles."""
        noise = gaussian((self.steps_up + 1, max(2, self.frequencies // 16), u.shape[1]), rng)
        critic = carry or _network(u.shape[1], self.frequency_seed)
        if critic.at is None or not torch.equal(critic.at, u):
            for some in noise[:-1]:
                with torch.enable_grad():
                    layers = [one.requires_grad_(True) for one in (p.clone() for p in critic.layers)]
                    standard = _spoken(some, layers)
                t = (standard.detach() / there.length).to(u)
                here = waves(u, weight, t, there.compiled)
                heard = waves(there.y, there.weight, t, there.compiled)
                by, by_target = (_slope(p, q, self.alpha)[1] for p, q in ((here, heard), (heard, here)))
                up = by_frequency(u, weight, t, by, there.compiled)
                up = up + by_frequency(there.y, there.weight, t, by_target, there.compiled)
                scale = there.length * len(t)
                critic = critic.after(torch.autograd.grad(standard, layers, up.to(standard) / scale))
            critic = critic._replace(at=u)
        return _spoken(noise[-1], critic.layers).detach(), critic


class _There(NamedTuple):
    """The target as it is compared."""

    of: Tensor  # (M, D) its points as they came
    centre: Tensor  # (1, D) taken off both clouds
    y: Tensor  # (M, D)
    weight: Tensor | None
    length: float  # bandwidth
    compiled: bool
    t: Tensor | None = None  # (L, D) fixed frequencies
    waves: Waves | None = None


class _Critic(NamedTuple):
    """The network that chooses frequencies, with the moments of its Adam steps; float64 on the CPU."""

    layers: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    steps: int
    at: Tensor | None  # particles (N, D) that it climbed at last

    def after(self, up: tuple[Tensor, ...]) -> "_Critic":
        """One Adam step up."""
        k = self.steps + 1
        first = [0.9 * m + 0.1 * g for m, g in zip(self.first, up, strict=True)]
        second = [0.999 * s + 0.001 * g.square() for s, g in zip(self.second, up, strict=True)]
        layers = [
            p.detach() + _RATE * (m / (1 - 0.9**k)) / ((s / (1 - 0.999**k)).sqrt() + 1e-8)
            for p, m, s in zip(self.layers, first, second, strict=True)
        ]
        return _Critic(layers, first, second, k, None)


def _network(dim: int, seed: int) -> _Critic:
    """Three layers of weight and bias, uniform within 1 / sqrt(D), and of scale 1 and shift 0 of a normalised batch."""
    rng, layers = seeded(seed, 53), []
    for _ in range(3):
        for shape in ((dim, dim), (dim,)):
            layers.append((2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1) / math.sqrt(dim))
        layers += [torch.ones(dim, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)]
    still = [torch.zeros_like(p) for p in layers]
    return _Critic(layers, still, still, 0, None)


def _spoken(noise: Tensor, layers: list[Tensor]) -> Tensor:
    """(L, D) noise through the network."""
    a = noise
    for k in range(3):
        weight, bias, scale, shift = layers[4 * k : 4 * k + 4]
        a = torch.nn.functional.linear(a, weight, bias)
        a = (a - a.mean(0)) / (a.var(0, correction=0) + 1e-5).sqrt() * scale + shift
        a = a.tanh() if k == 2 else torch.nn.functional.leaky_relu(a, 0.2)
    return a


def _unit(x: Tensor) -> Tensor:
    """(N, D) points moved along their ray onto the unit sphere; the origin stays."""
    square = x.square().sum(1, keepdim=True)
    return torch.where(square > 0, x / torch.where(square > 0, square, 1.0).sqrt(), 0.0)


def _size(p: Waves) -> Tensor:
    """(L,) amplitudes, with gradient 0 where there is no wave."""
    square = p.re.square() + p.im.square()
    return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)


def _square(p: Waves, q: Waves, alpha: float) -> Tensor:
    """(L,) alpha amplitude + (1 - alpha) phase, where amplitude and phase add up to |p - q|^2."""
    gap = (p.re - q.re).square() + (p.im - q.im).square()
    return ((1 - alpha) * gap + (2 * alpha - 1) * (_size(p) - _size(q)).square()).clamp_min(0.0)


def _slope(p: Waves, q: Waves, alpha: float) -> tuple[Tensor, Waves]:
    """(L,) the rooted values, and their derivatives by p."""
    square, size = _square(p, q, alpha), _size(p)
    steep = root_slope(square)
    along = (2 * alpha - 1) * (size - _size(q)) / torch.where(size > 0, size, 1.0)
    re, im = ((1 - alpha) * (mine - other) + along * mine for mine, other in zip(p, q, strict=True))
    return smooth_root(square), Waves(2 * steep * re, 2 * steep * im)
