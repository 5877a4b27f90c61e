"""Distribution matching distillation: the difference of two scores, seen through noise."""

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kde import Bumps, led, near, prepare_bumps
from dmviz.losses._ratios import never_negative
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class Dmd:
    r"""Shake the particles by a random amount, ask both landscapes which way is up, and go by the difference.

    $$ v(x) = E_{\sigma, e}\bigl[\nabla\log p_\sigma(x + \sigma e) - \nabla\log q_\sigma(x + \sigma e)\bigr],
       \qquad e \sim \mathcal N(0, I) $$

    minus the gradient of the mean of KL(q_sigma | p_sigma) over noise levels, where each law is the cloud under bumps
    of width sqrt(h^2 + sigma^2): the exact Gaussian noising of a sum of bumps of width h. The level is drawn at every
    step, evenly in log sigma between the two ends (one in each of `levels` equal parts), and noise anew for every
    particle. Noise lets clouds that do not touch feel each other: wide levels carry, narrow ones sharpen.

    With the released normaliser a particle moves by the way between the two denoised points, in units of its own error:

    $$ v(x) = \frac{\sigma^2\,(\nabla\log p_\sigma - \nabla\log q_\sigma)}{\operatorname{mean}|x - x_p|},
       \qquad x_p = x + \sigma e + \sigma^2\,\nabla\log p_\sigma, $$

    the mean over coordinates, plus 1e-6 sigma. That changes the speed of each particle, so that it is no longer the
    gradient flow of any KL. Released generators step on the parameters; here the particles themselves move.

    F is KL(q | p) of the laws at the middle level, sqrt(low high), whatever was drawn, so that steps can be compared:
    the mean over the unshaken particles of r - 1 - log r, r = p / q, which is never negative. v is not its slope:
    under autograd F is given the gradient -a v. Unit: nats; v is 1 / length, or a pure number with the normaliser;
    without it a step of at most the squared width of the narrowest bumps is safe. It seeks modes: one that no particle
    is near stays empty once the levels are narrow. A bandwidth below the distance between particles makes them collapse
    onto target points. Both scores are those of bumps, since a target does not bring the score of its law under noise.

    Yin et al. 2024, twice.

    ```python
    >>> from dmviz.cloud import seeded
    >>> from dmviz.field import velocity_of
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = Dmd(bandwidth=3.0, noise_low=4.0, noise_high=4.0, normalise=False)
    >>> velocity_of(loss, here, Cloud(there), seeded(0)).v.mul(25).round().tolist()  # (3, 4) / (3^2 + 4^2)
    [[3.0, 4.0]]

    ```
    """

    title = "Distribution matching distillation"
    family = "densities"
    source = ("yin2024dmd", "yin2024dmd2")
    needs = "samples"
    descends = False
    cost = "L (N + M) N D time for L levels, N + M memory"
    laws = frozenset[Law]({"zero_at_target", "nonnegative", "shift_free", "rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0

    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Width of a bump before any noise. Small: particles fall onto single points; large: modes blur",
        ),
    ] = 0.2
    noise_low: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="Least noise: how fine the last details are")
    ] = 0.05
    noise_high: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="Most noise: from how far particles feel the target")
    ] = 2.0
    levels: Annotated[
        int, Range(1, 16, help="Noise levels in one step: one is fast and rough, many are slow and smooth")
    ] = 1
    normalise: Annotated[
        bool, Help("Divide each particle's pull by its distance to the denoised target, as the authors' code does")
    ] = True

    def __post_init__(self) -> None:
        if self.noise_low > self.noise_high:
            raise ValueError(
                f"Dmd: noise_low must be at most noise_high, got {self.noise_low:g} and {self.noise_high:g}"
            )

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            answer = self.velocity(x.detach(), target, rng, weight)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return answer.value
        return led(x, answer.value, answer.v, mass_of(x, weight))

    @torch.no_grad()
    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The mean over levels of the difference of the scores at shaken particles."""
        (x_near, y), compiled, a = near(x, target), chosen(target.memo, x), mass_of(x, weight)

        def laws(sigma: float) -> tuple[Bumps, Bumps]:
            width = math.hypot(self.bandwidth, sigma)
            return Bumps(x_near, a, width, compiled), Bumps(y, target.mass(), width, compiled)

        v = torch.zeros_like(x, dtype=torch.float64)
        for sigma in self._sigmas(rng):
            q, p = laws(sigma)
            noise = torch.randn(x.shape, generator=rng, device=rng.device, dtype=torch.float64)
            shaken = x_near + sigma * noise.to(x)
            toward = p(shaken).score
            v += (toward - q(shaken).score) * self._speed(x_near.double() - shaken.double(), toward, sigma)
        q, p = laws(math.sqrt(self.noise_low * self.noise_high))
        value = a.double() @ never_negative("reverse_kl", p.log(x_near) - q.log(x_near))
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity((v / self.levels).to(x.dtype), value.to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing of the target lasts from level to level; only which kernels the run will use."""
        return prepare_bumps(target, self.bandwidth, False)

    def _sigmas(self, rng: Generator) -> list[float]:
        """One noise level in each of `levels` equal parts of the range, in its logarithm."""
        drawn = torch.rand(self.levels, generator=rng, device=rng.device, dtype=torch.float64).cpu()
        share = (torch.arange(self.levels) + drawn) / self.levels
        low, high = math.log(self.noise_low), math.log(self.noise_high)
        return (low + (high - low) * share).exp().tolist()  # type: ignore[no-any-return]

    def _speed(self, back: Tensor, toward: Tensor, sigma: float) -> Tensor | float:
        """(N, 1) sigma^2 over the mean error of the denoised point; `back` leads from the shaken particle to itself."""
        if not self.normalise:
            return 1.0
        error = (back - sigma**2 * toward).abs().mean(1, keepdim=True)
        return sigma**2 / (error + 1e-6 * sigma)
