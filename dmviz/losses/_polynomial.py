"""Sums over all pairs of a polynomial kernel (gamma x.y + c)^p, by moments in few dimensions and by tiles in many.

With T_k the k-th moment tensor of a cloud, sum_j b_j (gamma x.y_j + c)^p = sum_k C(p, k) gamma^k c^(p - k) <T_k, x^k>:
time N D^p and no pairs at all, where the tensor is small. All sums are in float64, since large numbers cancel.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

SMALL = 1 << 16
"""Up to so many numbers in the highest moment tensor, moments beat tiles."""
SIDE = 362  # of a tile
_ROWS = SIDE**2  # numbers of a block of rows


class Polynomial(NamedTuple):
    """k(x, y) = (gamma x.y + constant)^order."""

    order: int
    gamma: float
    constant: float

    def factor(self, k: int) -> float:
        """What multiplies (x.y)^k."""
        return math.comb(self.order, k) * self.gamma**k * self.constant ** (self.order - k)

    def at(self, dot: Tensor) -> Tensor:
        return (dot * self.gamma + self.constant) ** self.order

    def slope(self, dot: Tensor) -> Tensor:
        """dk / d(x.y)."""
        return (dot * self.gamma + self.constant) ** (self.order - 1) * (self.order * self.gamma)


class Heard(NamedTuple):
    """What every x hears from a cloud: s_i = sum_j b_j k(x_i, y_j), and its gradient in x_i."""

    s: Tensor  # (N,) float64
    grad: Tensor  # (N, D) float64


@torch.no_grad()
def heard(x: Tensor, y: Tensor, b: Tensor, kernel: Polynomial, known: list[Tensor] | None = None) -> Heard:
    """Sums over y (M, D) with weights b (M,); `known` are the moments of y, where they have been worked out."""
    x, y, b = x.double(), y.double(), b.double()
    if not few(y, kernel):
        return _by_tiles(x, y, b, kernel)
    return _by_moments(x, moments(y, b, kernel) if known is None else known, kernel)


def few(y: Tensor, kernel: Polynomial) -> bool:
    """Whether the moment tensors of y are small."""
    return bool(y.shape[1] ** kernel.order <= SMALL)


@torch.no_grad()
def moments(y: Tensor, b: Tensor, kernel: Polynomial) -> list[Tensor]:
    """T_0 to T_p, T_k of D^k numbers: sum_j b_j y_j^k."""
    y, b, d = y.double(), b.double(), y.shape[1]
    found = [b.sum()[None], *(b.new_zeros(d**k) for k in range(1, kernel.order + 1))]
    for rows in _blocks(len(y), d ** (kernel.order - 1)):
        share, power = b[rows, None] * y[rows], y.new_ones(len(y[rows]), 1)
        for k in range(1, kernel.order + 1):
            found[k] += (power.T @ share).flatten()
            power = _times(power, y[rows]) if k < kernel.order else power
    return found


def _times(power: Tensor, x: Tensor) -> Tensor:
    """(N, D^k) -> (N, D^(k + 1))."""
    return (power[:, :, None] * x[:, None, :]).flatten(1)


def _by_moments(x: Tensor, tensors: list[Tensor], kernel: Polynomial) -> Heard:
    d, top = x.shape[1], kernel.order
    s, grad = x.new_zeros(len(x)) + kernel.factor(0) * tensors[0], torch.zeros_like(x)
    for rows in _blocks(len(x), d ** (top - 1)):
        here, power = x[rows], x.new_ones(1, 1)
        for k in range(1, top + 1):
            pull = power @ tensors[k].view(-1, d)  # <T_k, x^(k - 1)>, a vector for each x
            s[rows] += kernel.factor(k) * (pull * here).sum(1)
            grad[rows] += k * kernel.factor(k) * pull
            power = _times(power, here) if k < top else power
    return Heard(s, grad)


def _by_tiles(x: Tensor, y: Tensor, b: Tensor, kernel: Polynomial) -> Heard:
    s, grad = x.new_zeros(len(x)), torch.zeros_like(x)
    share = b[:, None] * y
    for i in _blocks(len(x), SIDE):
        for j in _blocks(len(y), SIDE):
            u = (x[i] @ y[j].T).mul_(kernel.gamma).add_(kernel.constant)
            w = u.pow(kernel.order - 1)
            s[i] += (u.mul_(w)) @ b[j]
            grad[i] += w @ share[j]
    grad *= kernel.order * kernel.gamma
    return Heard(s, grad)


def mean(x: Tensor, y: Tensor, a: Tensor, b: Tensor, kernel: Polynomial) -> Tensor:
    """sum_ij a_i b_j k(x_i, y_j), () in float64 and differentiable; tiles are computed again on the way back."""
    x, y, a, b = x.double(), y.double(), a.double(), b.double()
    total = a.new_zeros(())
    for i in _blocks(len(x), SIDE):
        for j in _blocks(len(y), SIDE):
            part = checkpoint(_tile, x[i], y[j], b[j], kernel, use_reentrant=False, preserve_rng_state=False)
            total = total + a[i] @ part
    return total


def _tile(x: Tensor, y: Tensor, b: Tensor, kernel: Polynomial) -> Tensor:
    return kernel.at(x @ y.T) @ b


def _blocks(n: int, width: int) -> Iterator[slice]:
    size = max(1, _ROWS // max(width, 1))
    return (slice(first, min(first + size, n)) for first in range(0, n, size))
