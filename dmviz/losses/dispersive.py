"""Dispersive loss: contrastive learning without positive pairs, in four variants."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._lines import accurate
from dmviz.losses._own_pairs import directions, pair_slopes, pair_sum, slopes_at, turned
from dmviz.losses._pairs import kernel_mean, kernel_sums, own_sums
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class Dispersive:
    r"""Push particles apart, with nothing that pulls them together.

    One of four, over all pairs with the pairs i = j among them, as in the released code:

    $$ \log \sum_{ij} a_i a_j\, e^{-|x_i - x_j|^2 / \tau}\ \text{(infonce\_l2)},\qquad
       \log \sum_{ij} a_i a_j\, e^{\cos(x_i, x_j) / \tau}\ \text{(infonce\_cosine)}, $$
    $$ \sum_{ij} a_i a_j\, \bigl[m^2 - |x_i - x_j|^2\bigr]_+^2\ \text{(hinge)},\qquad
       \sum_{j \ne k} \mathrm{Cov}_{jk}^2\ \text{(covariance)}. $$

    The target is not read. Unit: none for the first two, length to the fourth for the others. Since the pairs i = j
    stay, `infonce_l2` lies between -log N, where no particle hears another, and 0, where all have collapsed; the push
    fades with distance, so a free cloud spreads more and more slowly. `infonce_cosine` is 1 / tau at collapse and only
    turns particles about the origin. `hinge` lets go of pairs further apart than the margin. `covariance` only
    makes coordinates uncorrelated: it moves nothing in one dimension and does not stop a collapse.

    `divide_by_dim` divides squared distances by D, as one of the two releases does (with tau = 1; the other has
    tau = 0.5 and does not): without it nothing is heard in a few hundred dimensions. Unverified, since only
    `infonce_l2` was read in released code: that the hinge measures squared distances, and that the covariance (divided
    by N) is that of the rows as they are; a public re-implementation makes rows length 1 first.

    Wang and He 2025, where one of these is added to the loss of a generator, on the values of a layer within it.

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> round(Dispersive(tau=2.0)(x, Cloud(x), seeded(0)).item(), 4)  # log((2 + 2 exp(-1)) / 4)
    -0.3799

    ```
    """

    title = "Dispersive loss"
    family = "regularizers"
    source = ("wang2025diffuse",)
    needs = "nothing"
    cost = "N^2 D time, N memory; N D^2 time for covariance"
    root = 1.0

    variant: Annotated[
        Literal["infonce_l2", "infonce_cosine", "hinge", "covariance"],
        Help("What pushes: bumps around points, bumps on the sphere, a margin, or correlated coordinates"),
    ] = "infonce_l2"
    tau: Annotated[
        float,
        Range(
            0.01,
            1e4,
            log=True,
            help="Temperature. Small: only close particles push; large: all push alike",
            when={"variant": ("infonce_l2", "infonce_cosine")},
        ),
    ] = 0.5
    divide_by_dim: Annotated[
        bool, Help("Squared distances are divided by the number of dimensions", when={"variant": ("infonce_l2",)})
    ] = False
    margin: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Distance at which two particles let go. Small: few push; large: all do",
            when={"variant": ("hinge",)},
        ),
    ] = 1.0

    @property
    def laws(self) -> frozenset[Law]:
        held: dict[str, set[Law]] = {
            "infonce_l2": {"shift_free", "rotation_free", "deterministic"},
            "infonce_cosine": {"rotation_free", "deterministic"},
            "hinge": {"nonnegative", "shift_free", "rotation_free", "deterministic"},
            "covariance": {"nonnegative", "shift_free", "deterministic"},
        }
        return frozenset(held[self.variant])

    @property
    def degree(self) -> float:
        return {"infonce_l2": math.nan, "infonce_cosine": 0.0}.get(self.variant, 4.0)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        a = mass_of(x, weight)
        if self.variant == "covariance":
            off = _off_diagonal(x - _mean(x, a), a)
            return off.square().sum().to(x.dtype)
        if self.variant == "hinge":
            return pair_sum(x, a, lambda r2: (self.margin**2 - r2).clamp_min(0.0).square(), alone=True).to(x.dtype)
        z = directions(x) if self.variant == "infonce_cosine" else x
        return (kernel_mean(z, z, a, a, self._kernel(x.shape[1])).log() + self._top).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The push of all others, in closed form; for covariance along the correlated coordinates."""
        a = mass_of(x, weight)
        if self.variant == "covariance":
            centred = x - _mean(x, a)
            off = _off_diagonal(centred, a)
            v, value = -4.0 * centred @ off, off.square().sum()
        elif self.variant == "hinge":
            value, grad = pair_slopes(x, a, self._margins, alone=True)
            v = -2.0 * grad
        else:
            z = directions(x) if self.variant == "infonce_cosine" else x
            total, grad = own_sums(z, a, self._kernel(x.shape[1]), chosen(target.memo, x))
            value, v = total.log() + self._top, -2.0 * grad / total
            v = turned(x, z, v.to(x.dtype)) if self.variant == "infonce_cosine" else v
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v.to(x.dtype), value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same push at any points (K, D) among particles x."""
        with torch.no_grad():
            a = mass_of(x, weight)
            if self.variant == "covariance":
                mean = _mean(x, a)
                return (-4.0 * (at - mean) @ _off_diagonal(x - mean, a)).to(at.dtype)
            if self.variant == "hinge":
                return (-2.0 * slopes_at(at, x, a, self._margins)).to(at.dtype)
            cosine = self.variant == "infonce_cosine"
            z, here = (directions(x), directions(at)) if cosine else (x, at)
            kernel, compiled = self._kernel(x.shape[1]), chosen(target.memo, x)
            total, _ = own_sums(z, a, kernel, compiled, want_grad=False)
            pull = (-2.0 * kernel_sums(here, z, a, kernel, compiled).grad / total).to(at.dtype)
            return turned(at, here, pull) if cosine else pull

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing but the choice of kernels, so that a run keeps one."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    @property
    def _top(self) -> float:
        """cos / tau is 1 / tau less a squared distance on the sphere over 2 tau."""
        return 1.0 / self.tau if self.variant == "infonce_cosine" else 0.0

    def _kernel(self, dim: int) -> Kernel:
        """exp(-r^2 / 2 l^2) with the l that tau stands for."""
        if self.variant == "infonce_cosine":
            return Kernel("gaussian", (math.sqrt(self.tau),))
        return Kernel("gaussian", (math.sqrt(0.5 * self.tau * (dim if self.divide_by_dim else 1)),))

    def _margins(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        short = r2.neg_().add_(self.margin**2).clamp_min_(0.0)
        return short.square(), -4.0 * short


def _mean(x: Tensor, a: Tensor) -> Tensor:
    """(D,) the weighted mean in float64, by way of the plain one: weights in float32 do not quite sum to 1."""
    x = x.to(accurate(x))
    plain = x.mean(0)
    return plain + a.to(x.dtype) @ (x - plain)


def _off_diagonal(centred: Tensor, a: Tensor) -> Tensor:
    """(D, D) the covariance with zeros on its diagonal."""
    covariance = centred.T @ (a.to(centred.dtype)[:, None] * centred)
    return covariance - torch.diag(covariance.diagonal())
