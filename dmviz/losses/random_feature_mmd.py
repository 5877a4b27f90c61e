"""MMD by random Fourier features: each point becomes the heights of a few hundred random waves."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._slicing import gaussian
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

Shape = Literal["gaussian", "laplacian", "imq"]
_BLOCK = 1 << 18  # numbers handled at once: they stay in the processor's cache


@entry
class RandomFeatureMmd:
    r"""Replace a kernel between all pairs by random waves, and compare how high each wave stands over the two clouds.

    $$ F = \frac{2}{L} \sum_{l=1}^{L} \Bigl( E\cos(w_l\cdot X + b_l) - E\cos(w_l\cdot Y + b_l) \Bigr)^2 $$

    with phases b uniform on [0, 2 pi) and frequencies w from the kernel's spectrum: N(0, I / l^2) for the gaussian
    kernel; for the laplacian the same divided by, and for the inverse multiquadric times, the size of one standard
    normal number. On average over the draw this is the biased MMD with that kernel; its error falls with the root of L,
    and time is N + M for each wave instead of N M in all. Unit: none; at most 8.

    It differs from the distance between empirical characteristic functions with the same frequencies: that one takes
    cosine and sine of each wave, which gives the same answer wherever the origin lies; here one random phase stands for
    both, so that the value changes a little when both clouds move together, and each wave costs half.

    It fails when frequencies are fixed and few: particles find places where all waves agree and the clouds do not.
    Fresh waves each step are right on average. A small bandwidth makes short waves, which need many features to add up
    to a bump; a large one sees only means.

    Rahimi and Recht 2007.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = RandomFeatureMmd(bandwidth=5.0, features=4096)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 1)  # near 2 - 2 exp(-1/2) = 0.79
    0.8

    ```
    """

    title = "Random feature MMD"
    family = "kernels"
    source = ("rahimi2007random", "gretton2012kernel")
    needs = "samples"
    cost = "L (N + M) D time, N + M memory"
    degree = 0.0
    root = 2.0

    kernel: Annotated[Shape, Help("Shape of the pull: a bump, a spike with a longer tail, or a long tail")] = "gaussian"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: short waves that need many features; large: only means",
        ),
    ] = 0.5
    features: Annotated[int, Range(1, 8192, log=True, help="Waves to look at: few are fast and rough, many calm")] = 256
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new waves at every step, right on average; fixed: the same all along")
    ] = "fresh"
    wave_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed waves", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        always: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "triangle"})
        return always | {"deterministic"} if self.draw == "fixed" else always

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        waves, a = self._waves(target, rng), mass_of(x, weight)
        there = self._heights(waves, target)
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for part in _parts(self.features, len(x)):
            here = _mean(a, waves.along(x, part).cos())
            total = total + (here - there[part]).square().sum()
        return (total * (2.0 / self.features)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """(4 / L) sum_l c_l sin(w_l.x + b_l) w_l, c_l the difference of the two heights."""
        waves, a = self._waves(target, rng), mass_of(x, weight)
        there, scale = self._heights(waves, target), 2.0 / self.features
        v, value = torch.zeros_like(x), torch.zeros((), dtype=torch.float64, device=x.device)
        for part in _parts(self.features, len(x)):
            along = waves.along(x, part)
            apart = _mean(a, along.cos()) - there[part]
            value += scale * apart.square().sum()
            v.addmm_(along.sin_(), (2.0 * scale * apart[:, None] * waves.w[part].to(apart)).to(x.dtype))
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        waves, a = self._waves(target, rng), mass_of(x, weight)
        there, v = self._heights(waves, target), torch.zeros_like(at)
        for part in _parts(self.features, max(len(x), len(at))):
            apart = _mean(a, waves.along(x, part).cos()) - there[part]
            pull = (4.0 / self.features) * apart[:, None] * waves.w[part].to(apart)
            v.addmm_(waves.along(at, part).sin_(), pull.to(at.dtype))
        return v

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed waves: their mean heights over the target."""
        if self.draw == "fresh":
            return target
        there = self._heights(self._fixed(target), target)
        return replace(target, memo={"of": target.x, "loss": self, "heights": there})

    def _waves(self, target: Cloud, rng: Generator) -> "Waves":
        if self.draw == "fixed":
            return self._fixed(target)
        return waves(self.kernel, self.features, target.dim, rng).over(self.bandwidth, target.x)

    def _fixed(self, target: Cloud) -> "Waves":
        return _fixed_waves(self.kernel, self.features, target.dim, self.wave_seed).over(self.bandwidth, target.x)

    @torch.no_grad()
    def _heights(self, waves: "Waves", target: Cloud) -> Tensor:
        memo = target.memo
        if self.draw == "fixed" and memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["heights"]  # type: ignore[no-any-return]
        b = target.mass()
        return torch.cat([_mean(b, waves.along(target.x, part).cos_()) for part in _parts(self.features, len(target))])


class Waves(NamedTuple):
    """Frequencies and phases, float64, on the CPU."""

    w: Tensor  # (L, D)
    b: Tensor  # (L,) at `origin`
    origin: Tensor  # (D,) where angles are counted from

    def over(self, bandwidth: float, y: Tensor) -> "Waves":
        """The same waves for another bandwidth. Counted from amid y, so that far from 0 no digits are lost."""
        w, origin = self.w / bandwidth, y.detach().double().mean(0).to(y.dtype)
        return Waves(w, (self.b + w @ origin.double().cpu()).remainder(2.0 * math.pi), origin)

    def along(self, x: Tensor, part: slice) -> Tensor:
        """(N, l) the angle of some of the waves at every point."""
        return torch.addmm(self.b[part].to(x), x - self.origin, self.w[part].to(x).T)


def waves(kernel: Shape, count: int, dim: int, rng: Generator) -> Waves:
    """From the spectrum of the kernel with bandwidth 1: a normal law, for two kernels of random width."""
    w = gaussian((count, dim), rng)
    if kernel != "gaussian":
        width = gaussian((count, 1), rng).abs().clamp_min(1e-12)
        w = w / width if kernel == "laplacian" else w * width
    phase = torch.rand(count, generator=rng, device=rng.device, dtype=torch.float64)
    return Waves(w, phase.to("cpu") * (2.0 * math.pi), w.new_zeros(dim))


@lru_cache(maxsize=32)
def _fixed_waves(kernel: Shape, count: int, dim: int, seed: int) -> Waves:
    return waves(kernel, count, dim, seeded(seed, 52))


def _mean(a: Tensor, heights: Tensor) -> Tensor:
    """(l,) float64 weighted mean over the points."""
    return a.double() @ heights.double()


def _parts(count: int, width: int) -> list[slice]:
    """Blocks of waves, none of more than about `_BLOCK` numbers."""
    size = max(1, _BLOCK // max(width, 1))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
