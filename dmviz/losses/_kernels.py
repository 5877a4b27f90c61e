"""Radial kernels k(|x - y|) and their slopes: the pulls that MMD, the energy distance and Stein discrepancies sum.

A kernel is a plain value, so that the eager and the compiled path read the same numbers.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

KernelName = Literal["distance", "gaussian", "laplacian", "imq"]

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bandwidths of the multi-scale kernel, in units of the bandwidth: a ladder of doublings around it."""


class Kernel(NamedTuple):
    """One kernel: its shape and its bandwidths (a sum of kernels where there are several).

    distance: -r.  gaussian: exp(-r^2 / 2 l^2).  laplacian: exp(-r / l).  imq: (1 + r^2 / l^2)^(-1/2).
    """

    name: KernelName
    lengths: tuple[float, ...] = (1.0,)

    @property
    def at_zero(self) -> float:
        """k(0): what each point says about itself."""
        return 0.0 if self.name == "distance" else float(len(self.lengths))

    @property
    def kinked(self) -> bool:
        """Whether the slope jumps at 0, so that close pairs need exact distances."""
        return self.name in ("distance", "laplacian")


def kernel_and_slope(kernel: Kernel, r2: Tensor) -> tuple[Tensor, Tensor]:
    """k and w = k'(r) / r of squared distances, so that the gradient in x is w (x - y). `r2` is used up.

    w is 0 where two points meet: the mean of all directions.
    """
    if kernel.name == "distance":
        w = _inverse_root(r2)  # 1 / r
        return r2.mul_(w).neg_(), w.neg_()
    if kernel.name == "laplacian":
        inverse = _inverse_root(r2)
        k = r2.mul_(inverse).mul_(-1.0 / kernel.lengths[0]).clamp_min_(-80.0).exp_()
        return k, inverse.mul_(k).mul_(-1.0 / kernel.lengths[0])
    if kernel.name == "imq":
        scale = kernel.lengths[0] ** -2
        k = r2.mul_(scale).add_(1.0).rsqrt_()
        return k, (k * k).mul_(k).mul_(-scale)
    k, w = torch.zeros_like(r2), torch.zeros_like(r2)
    for length in kernel.lengths:
        # torch.exp is an order of magnitude slower where its result underflows: clamp first.
        e = (r2 * (-0.5 / length**2)).clamp_min_(-80.0).exp_()
        k.add_(e)
        w.add_(e, alpha=-1.0 / length**2)
    return k, w


def _inverse_root(r2: Tensor) -> Tensor:
    """1 / r, and 0 where r = 0."""
    return r2.rsqrt().masked_fill_(r2 <= 0.0, 0.0)


def kernel_of(kernel: Kernel, r2: Tensor) -> Tensor:
    """k alone, differentiable by autograd, with gradient 0 where two points meet."""
    if kernel.name == "imq":
        return (1.0 + r2 * kernel.lengths[0] ** -2).rsqrt()
    if kernel.name == "gaussian":
        parts = [(r2 * (-0.5 / length**2)).clamp_min(-80.0).exp() for length in kernel.lengths]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
    # |z| has no gradient at 0, where a point meets itself: keep the root away from there.
    apart = r2 > 0
    r = torch.where(apart, torch.where(apart, r2, 1.0).sqrt(), 0.0)
    return -r if kernel.name == "distance" else (r * (-1.0 / kernel.lengths[0])).clamp_min(-80.0).exp()
