"""Representation distribution matching: exact repulsion, and a pull to a target squeezed into landmarks."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._nystrom import Embedding, embedding, landmarks
from dmviz.losses._pairs import kernel_mean, kernel_sums, median_distance, own_sums
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity

_DRAWS = 8
"""Draws of real points that the floor is the mean of."""


@entry
class RepresentationMatching:
    r"""Push all particles apart exactly, and pull them to a summary of the whole target that is made only once.

    $$ F = \sum_{ii'} a_i a_{i'}\, k(x_i,x_{i'}) - 2 \sum_i a_i \sum_l \alpha_l\, k(x_i,z_l) + E\,k(Y,Y'),
       \qquad \alpha = (K_{ZZ} + 10^{-6} I)^{-1}\, E\,k(Z,Y) $$

    with the gaussian kernel k = exp(-r^2 / 2 l^2). Landmarks z are k-means centres of the target (20 rounds of Lloyd's
    algorithm); alpha, the projection of the target's mean embedding on them, is worked out once and frozen, and so is
    the last term. This is MMD squared as that method trains its generators, on features of a frozen encoder; here the
    points themselves are the features, of one encoder, without the balancing of several. Unit: none; between 0 and 4.

    The bandwidth is the median distance between points of the target times `factor` (1 in the paper, 1/4 for its cold
    kernel). Few landmarks blur the target: details finer than their spacing are not seen, and the value cannot come
    down to 0. All points as landmarks give MMD to six digits. The diagonal is kept, so even n points of real data score
    about (1 - E k) / n: `floor` gives that, `excess` what is above it.

    It fails like MMD: far from the target the pull vanishes, and a wide bandwidth only matches means.

    Feng et al. 2026 (settings from the authors' released code).

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = RepresentationMatching(median=False, bandwidth=5.0)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # 2 - 2 exp(-1/2)
    0.7869

    ```
    """

    title = "Representation matching (RDM)"
    family = "kernels"
    source = ("feng2026rdm", "gretton2012kernel")
    needs = "samples"
    cost = "N^2 D + N L D time a step; once (M L D and L^3)"
    laws = frozenset({"nonnegative", "shift_free", "rotation_free", "deterministic"})
    degree = 0.0
    root = 2.0

    median: Annotated[bool, Help("Take the bandwidth from the median distance between points of the target")] = True
    factor: Annotated[
        float,
        Range(
            0.05,
            4.0,
            log=True,
            help="Bandwidth in units of that distance. Small: details, but far points are not heard; large: only means",
            when={"median": (True,)},
        ),
    ] = 1.0
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: only close neighbours; large: only means",
            when={"median": (False,)},
        ),
    ] = 0.5
    landmarks: Annotated[
        int, Range(1, 4096, log=True, help="Points that stand for the target: few blur it, many cost their cube once")
    ] = 256
    landmark_seed: Annotated[int, Range(0, 2**31 - 1, help="another number, other places where landmarks start")] = 0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        frozen, a, compiled = self._frozen(target), mass_of(x, weight), chosen(target.memo, x)
        if torch.is_grad_enabled() and x.requires_grad:
            own = kernel_mean(x, x, a, a, frozen.kernel)
            cross = kernel_mean(x.double(), frozen.pull.z, a.double(), frozen.pull.share, frozen.kernel)
            return (own + frozen.own - 2.0 * cross).to(x.dtype)
        own, _ = own_sums(x, a, frozen.kernel, compiled, want_grad=False)
        heard = kernel_sums(x.double(), frozen.pull.z, frozen.pull.share, frozen.kernel, compiled, want_grad=False).s
        return (own + frozen.own - 2.0 * (a.double() @ heard)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Twice the pull of the landmarks minus twice the push of the particles."""
        frozen, a, compiled = self._frozen(target), mass_of(x, weight), chosen(target.memo, x)
        own, push = own_sums(x, a, frozen.kernel, compiled)
        # Shares of close landmarks are large and cancel: float64, also where particles are float32.
        heard = kernel_sums(x.double(), frozen.pull.z, frozen.pull.share, frozen.kernel, compiled)
        value = own + frozen.own - 2.0 * (a.double() @ heard.s)
        v = (2.0 * (heard.grad - push)).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D) among particles x."""
        frozen, a, compiled = self._frozen(target), mass_of(x, weight), chosen(target.memo, x)
        push = kernel_sums(at, x, a, frozen.kernel, compiled).grad
        pull = kernel_sums(at.double(), frozen.pull.z, frozen.pull.share, frozen.kernel, compiled).grad
        return (2.0 * (pull - push)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """Bandwidth, landmarks, their shares and the target's own term."""
        compiled = chosen(None, target.x)
        return replace(
            target, memo={"of": target.x, "loss": self, "compiled": compiled, "frozen": self._freeze(target, compiled)}
        )

    def floor(self, target: Cloud, n: int, rng: Generator) -> Tensor:
        """() the mean value that n points drawn from the target itself get."""
        target = self.prepare(target)
        total = torch.zeros((), dtype=torch.float64, device=target.x.device)
        for _ in range(_DRAWS):
            rows = torch.multinomial(target.mass().double().to(rng.device), n, replacement=True, generator=rng)
            total += self(target.x[rows.to(target.x.device)], target, rng).detach()
        return (total / _DRAWS).to(target.x.dtype)

    def excess(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """() how far above real data of the same effective size, 1 / sum a_i^2; about 0 where x is as good as real."""
        n = round(1.0 / float(mass_of(x, weight).double().square().sum()))
        return self(x, target, rng, weight) - self.floor(target, max(n, 1), rng)

    def _frozen(self, target: Cloud) -> "_Frozen":
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["frozen"]  # type: ignore[no-any-return]
        return self._freeze(target, chosen(memo, target.x))

    @torch.no_grad()
    def _freeze(self, target: Cloud, compiled: bool) -> "_Frozen":
        length = self.bandwidth
        if self.median:
            length = max(self.factor * median_distance(target, self.bandwidth / self.factor), 1e-5)
        kernel = Kernel("gaussian", (length,))
        z = landmarks(target, self.landmarks, seeded(self.landmark_seed, 53))
        own, _ = own_sums(target.x, target.mass(), kernel, compiled, want_grad=False)
        return _Frozen(kernel, embedding(target, z, kernel, compiled), own)


class _Frozen(NamedTuple):
    """What a run keeps of its target."""

    kernel: Kernel
    pull: Embedding
    own: Tensor  # () float64, E k(Y, Y')
