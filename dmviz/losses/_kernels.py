"""Radial kernels k(|x - y|) and their slopes: the pulls that MMD, the energy distance and Stein discrepancies sum.

A kernel is a plain value, so that the eager and the compiled path read the same numbers.
"""

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

KernelName = Literal["distance", "gaussian", "laplacian", "imq", "rational_quadratic"]

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bandwidths of the multi-scale kernel, in units of the bandwidth: a ladder of doublings around it."""

WIDE = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Bandwidths of the Gaussian mix that moment matching networks and MMD-GANs use, in units of the bandwidth."""

TAILS = (0.1, 1.0, 10.0)
"""Exponents of the rational quadratic mix: from a tail that hardly falls to nearly a Gaussian."""


class Kernel(NamedTuple):
    """One kernel: its shape and its bandwidths or exponents (a sum of kernels where there are several).

    distance: -r.  gaussian: exp(-r^2 / 2 l^2).  laplacian: exp(-r / l).  imq: (1 + r^2 / l^2)^(-1/2).
    rational_quadratic: (1 + r^2 / 2 alpha l^2)^(-alpha).
    """

    name: KernelName
    lengths: tuple[float, ...] = (1.0,)
    alphas: tuple[float, ...] = ()  # of the rational quadratic alone

    @property
    def at_zero(self) -> float:
        """k(0): what each point says about itself."""
        return 0.0 if self.name == "distance" else float(max(len(self.lengths), len(self.alphas)))

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the compiled kernels read: bandwidths, then exponents."""
        return self.lengths + self.alphas

    @property
    def kinked(self) -> bool:
        """Whether the slope jumps at 0, so that close pairs need exact distances."""
        return self.name in ("distance", "laplacian")


@runtime_checkable
class Radial(Protocol):
    """A kernel that works its own numbers out, eager, and lays them out in a table where it also runs compiled."""

    def cells(self, dtype: torch.dtype) -> tuple[Any, Any]: ...  # (C, 6) and a scale (see `_fused_more._places`)
    def with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]: ...  # as `kernel_and_slope`
    def of(self, r2: Tensor) -> Tensor: ...  # as `kernel_of`


def kernel_and_slope(kernel: Kernel, r2: Tensor) -> tuple[Tensor, Tensor]:
    """k and w = k'(r) / r of squared distances, so that the gradient in x is w (x - y). `r2` is used up.

    Where two points meet w is finite, and the difference that it multiplies is 0.
    """
    if isinstance(kernel, Radial):
        return kernel.with_slope(r2)
    if kernel.kinked:
        w = r2.clamp_min(1e-30).rsqrt_()  # 1 / r
        if kernel.name == "distance":
            w.neg_()
            return r2.mul_(w), w
        k = r2.mul_(w).mul_(-1.0 / kernel.lengths[0]).clamp_min_(-80.0).exp_()
        return k, w.mul_(k).mul_(-1.0 / kernel.lengths[0])
    if kernel.name == "imq":
        scale = kernel.lengths[0] ** -2
        k = r2.mul_(scale).add_(1.0).rsqrt_()
        return k, (k * k).mul_(k).mul_(-scale)
    if kernel.name == "rational_quadratic":
        return _rational(kernel, r2)
    k = _gaussian(r2, kernel.lengths[0])
    w = k * (-1.0 / kernel.lengths[0] ** 2)
    for length in kernel.lengths[1:]:
        e = _gaussian(r2, length)
        k.add_(e)
        w.add_(e, alpha=-1.0 / length**2)
    return k, w


def _rational(kernel: Kernel, r2: Tensor) -> tuple[Tensor, Tensor]:
    """With u = 1 + r^2 / 2 alpha l^2: u^-alpha and -u^(-alpha - 1) / l^2, summed over alpha."""
    k, w, scale = torch.zeros_like(r2), torch.zeros_like(r2), kernel.lengths[0] ** -2
    for alpha in kernel.alphas:
        u = (r2 * (0.5 * scale / alpha)).add_(1.0)
        part = u.reciprocal() if alpha == 1.0 else u.pow(-alpha)
        k += part
        w.addcdiv_(part, u, value=-scale)
    return k, w


def _gaussian(r2: Tensor, length: float) -> Tensor:
    # torch.exp is an order of magnitude slower where its result underflows: clamp first.
    return (r2 * (-0.5 / length**2)).clamp_min_(-80.0).exp_()


def kernel_alone(kernel: Kernel, r2: Tensor) -> Tensor:
    """k without what autograd would need. `r2` is used up."""
    if not kernel.kinked:
        return kernel_of(kernel, r2)
    r = r2.sqrt_()
    return r.neg_() if kernel.name == "distance" else r.mul_(-1.0 / kernel.lengths[0]).clamp_min_(-80.0).exp_()


def kernel_of(kernel: Kernel, r2: Tensor) -> Tensor:
    """k alone, differentiable by autograd, with gradient 0 where two points meet."""
    if isinstance(kernel, Radial):
        return kernel.of(r2)
    if kernel.name == "imq":
        return (1.0 + r2 * kernel.lengths[0] ** -2).rsqrt()
    if kernel.name == "rational_quadratic":
        parts = [(1.0 + r2 * (0.5 * kernel.lengths[0] ** -2 / alpha)).pow(-alpha) for alpha in kernel.alphas]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
    if kernel.name == "gaussian":
        parts = [(r2 * (-0.5 / length**2)).clamp_min(-80.0).exp() for length in kernel.lengths]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
    # |z| has no gradient at 0, where a point meets itself: keep the root away from there.
    apart = r2 > 0
    r = torch.where(apart, torch.where(apart, r2, 1.0).sqrt(), 0.0)
    return -r if kernel.name == "distance" else (r * (-1.0 / kernel.lengths[0])).clamp_min(-80.0).exp()
