"""Maximum mean discrepancy: bumps of several shapes around every point, and mixes of them."""

from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._kernels import SCALES, TAILS, WIDE, Kernel
from dmviz.losses._pairs import (
    discrepancy,
    discrepancy_probe,
    discrepancy_value,
    discrepancy_velocity,
    median_distance,
    prepare_discrepancy,
    witness,
)
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class Mmd:
    r"""Compare two clouds by how much a bump around each point overlaps with the others.

    $$ F = E\,k(X,X') + E\,k(Y,Y') - 2\,E\,k(X,Y) $$

    with r = |x - y| and bandwidth l, one of

    $$ e^{-r^2/2l^2}\ \text{(gaussian)},\quad e^{-r/l}\ \text{(laplacian)},\quad (1+r^2/l^2)^{-1/2}\ \text{(imq)},\quad
       (1+r^2/2\alpha l^2)^{-\alpha}\ \text{(rational\_quadratic)}, $$

    or a sum, not a mean, of gaussians with bandwidths l times 1/4, 1/2, 1, 2, 4 (multi_scale) or 2, 5, 10, 20, 40, 80
    (gaussian_mix), or of rational quadratics with alpha 0.1, 1, 10 (rational_quadratic_mix): the last two are those of
    moment matching networks and MMD-GANs. The rational quadratic averages gaussians of all widths: a small alpha gives
    a tail that hardly falls, a large one the gaussian. The inverse multiquadric is the usual (c^2 + r^2)^(-1/2) times
    c, with c = l. Unit: none; at most 2 k(0). The biased estimator keeps the diagonal: never negative, 0 on equal
    clouds, the right functional for a flow. The unbiased one leaves it out and divides by 1 - sum a_i^2: 0 on average
    for equal laws, so it can be negative, and -2 (1 - mean k) / n for a cloud against itself. A particle moves with
    v = -2 grad f, where the witness is f = sum_j a_j k(x_j, .) - sum_j b_j k(y_j, .).

    It fails where the clouds are more than about four bandwidths apart: the gaussian's pull vanishes and particles stay
    where they are. A wide bandwidth only matches means. Particles also stop at places that are not the target; noise
    injection helps there. The median heuristic takes l as the median distance between different points of the target
    (at most 1,000 of them, spread evenly through its rows), once, never from the moving particles.

    Gretton et al. 2012; as a flow, Arbel et al. 2019; the mixes, Li et al. 2015 and Binkowski et al. 2018.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> round(Mmd(bandwidth=5.0)(here, Cloud(there), seeded(0)).item(), 4)  # 2 - 2 exp(-1/2)
    0.7869

    ```
    """

    title = "Maximum mean discrepancy"
    family = "kernels"
    source = ("gretton2012kernel", "arbel2019maximum", "li2015generative", "binkowski2018demystifying")
    needs = "samples"
    cost = "(N + M) N D time, N + M memory"
    degree = 0.0
    root = 2.0

    kernel: Annotated[
        Literal[
            "gaussian",
            "laplacian",
            "imq",
            "multi_scale",
            "gaussian_mix",
            "rational_quadratic",
            "rational_quadratic_mix",
        ],
        Help(
            "Shape of the pull: a bump, a spike with a longer tail, a long tail, a tail of choice, or sums of several"
        ),
    ] = "gaussian"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels. Small: only close neighbours, far modes are never heard; large: only means",
            when={"median": (False,)},
        ),
    ] = 0.5
    median: Annotated[bool, Help("Take the bandwidth as the median distance between points of the target")] = False
    estimator: Annotated[
        Literal["biased", "unbiased"],
        Help("Biased keeps each point's pair with itself: never negative. Unbiased is 0 on average for equal laws"),
    ] = "biased"
    alpha: Annotated[
        float,
        Range(
            0.05,
            20,
            log=True,
            help="How fast the tail falls. Small: far points are heard as well as near ones; large: a gaussian bump",
            when={"kernel": ("rational_quadratic",)},
        ),
    ] = 1.0

    @property
    def laws(self) -> frozenset[Law]:
        always: set[Law] = {"shift_free", "rotation_free", "deterministic"}
        if not self.median:  # a bandwidth read from the target makes the two sides differ
            always |= {"symmetric"}
        if self.estimator == "biased":
            always |= {"zero_at_target", "nonnegative"}
            if not self.median:
                always |= {"triangle"}
        return frozenset(always)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return discrepancy(x, target, self._kernel(target), weight, self._unbiased)
        return discrepancy_value(x, target, self._kernel(target), weight, self._unbiased)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """-2 grad f at the particles."""
        return discrepancy_velocity(x, target, self._kernel(target), weight, self._unbiased)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """-2 grad f at any points (K, D), the particles x themselves unmoved."""
        return discrepancy_probe(at, x, target, self._kernel(target), weight, self._unbiased)

    def witness(self, at: Tensor, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """f at any points (K,): high where there are too many particles, low where some are missing."""
        return witness(at, x, target, self._kernel(target), weight)

    def prepare(self, target: Cloud) -> Cloud:
        median = median_distance(target, self.bandwidth) if self.median else None
        return prepare_discrepancy(target, self._kernel(target), self._unbiased, median)

    @property
    def _unbiased(self) -> bool:
        return self.estimator == "unbiased"

    def _kernel(self, target: Cloud) -> Kernel:
        length = median_distance(target, self.bandwidth) if self.median else self.bandwidth
        if self.kernel == "multi_scale" or self.kernel == "gaussian_mix":
            scales = SCALES if self.kernel == "multi_scale" else WIDE
            return Kernel("gaussian", tuple(scale * length for scale in scales))
        if self.kernel == "rational_quadratic" or self.kernel == "rational_quadratic_mix":
            alphas = (self.alpha,) if self.kernel == "rational_quadratic" else TAILS
            return Kernel("rational_quadratic", (length,), alphas)
        return Kernel(self.kernel, (length,))
