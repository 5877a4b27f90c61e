"""Sums over the pairs of one cloud with itself, in tiles and each pair once, with or without the pairs i = i.

A repulsion phi is given as a function of squared distances. Tiles are summed in the precision of the points, sums of
tiles in float64.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.losses._lines import accurate
from dmviz.losses._pairs import DIRECT, differences, squares, sum_of_squares, tiles

Phi = Callable[[Tensor], Tensor]
"""phi of squared distances (B, C), differentiable; it must not change its input."""
PhiAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]
"""phi and w with grad_x phi(|x - y|^2) = w (x - y); it may use up its input."""


def directions(x: Tensor) -> Tensor:
    """(N, D) rows of length 1, differentiable; a row of zeros has no direction and stays 0, without a gradient."""
    square = x.square().sum(1, keepdim=True)
    some = square > 0
    return torch.where(some, x / torch.where(some, square, 1.0).sqrt(), 0.0)


def turned(x: Tensor, u: Tensor, grad: Tensor) -> Tensor:
    """(N, D) the gradient in x of what has gradient `grad` in its directions u: the part across, over the length."""
    length = x.square().sum(1, keepdim=True).sqrt()
    across = grad - (grad * u).sum(1, keepdim=True) * u
    return torch.where(length > 0, across / torch.where(length > 0, length, 1.0), 0.0)


def pair_mass(a: Tensor) -> Tensor:
    """() sum_{i != j} a_i a_j, float64: 0 for a single point."""
    rest = 1.0 - a.to(accurate(a)).square().sum()
    return torch.where(rest > 1e-12, rest, 0.0)


def pair_sum(x: Tensor, a: Tensor, phi: Phi, alone: bool) -> Tensor:
    """sum_ij a_i a_j phi(|x_i - x_j|^2), () float64, differentiable; `alone`: with the pairs i = j."""
    wide, a_x = a.to(accurate(a)), a.to(x.dtype)
    x = _centred(x)
    total = wide.new_zeros(())
    for i, j in _upper(x):
        rows = checkpoint(_row_sums, x[i], x[j], a_x[j], phi, alone or i != j, use_reentrant=False)
        total = total + (1.0 if i == j else 2.0) * (wide[i] @ rows.to(wide.dtype))
    return total


@torch.no_grad()
def pair_slopes(x: Tensor, a: Tensor, phi: PhiAndSlope, alone: bool) -> tuple[Tensor, Tensor]:
    """The same sum, and at every i the gradient of sum_j a_j phi(|x_i - x_j|^2), (N, D) float64."""
    wide, a = a.to(accurate(a)), a.to(x.dtype)
    x = _centred(x)
    total, grad = wide.new_zeros(()), torch.zeros_like(x, dtype=wide.dtype)
    for i, j in _upper(x):
        same = i == j
        apart = differences(x[i], x[j]) if x.shape[1] <= DIRECT else None
        k, w = phi(sum_of_squares(apart) if apart else squares(x[i], x[j]))
        if same and not alone:
            k.fill_diagonal_(0.0)
        total += (1.0 if same else 2.0) * (wide[i] @ (k @ a[j]).to(wide.dtype))
        if apart:
            pull = [w * z for z in apart]
            grad[i] += torch.stack([z @ a[j] for z in pull], dim=1)
            if not same:
                grad[j] -= torch.stack([a[i] @ z for z in pull], dim=1)
            continue
        grad[i] += (w @ a[j])[:, None] * x[i] - w @ (a[j][:, None] * x[j])
        if not same:
            grad[j] += (a[i] @ w)[:, None] * x[j] - w.T @ (a[i][:, None] * x[i])
    return total, grad


@torch.no_grad()
def slopes_at(at: Tensor, x: Tensor, a: Tensor, phi: PhiAndSlope) -> Tensor:
    """(K, D) float64: the gradient of sum_j a_j phi(|z - x_j|^2) at each row z of `at`."""
    centre = x.mean(0)
    at, x, a = at - centre, x - centre, a.to(x.dtype)
    grad = torch.zeros_like(at, dtype=accurate(at))
    for i, j in tiles(len(at), len(x), x):
        _, w = phi(squares(at[i], x[j]))
        grad[i] += (w @ a[j])[:, None] * at[i] - w @ (a[j][:, None] * x[j])
    return grad


def _centred(x: Tensor) -> Tensor:
    return x - x.detach().mean(0)


def _upper(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Tiles on and above the diagonal."""
    return ((i, j) for i, j in tiles(len(x), len(x), x) if j.start >= i.start)


def _row_sums(x: Tensor, y: Tensor, b: Tensor, phi: Phi, diagonal: bool) -> Tensor:
    if x.shape[1] <= DIRECT:
        r2 = sum(((x[:, d, None] - y[None, :, d]).square() for d in range(x.shape[1])), start=x.new_zeros(()))
    else:
        x2, y2 = x.square().sum(1), y.square().sum(1)
        r2 = (x2[:, None] + y2[None, :] - 2.0 * x @ y.T).clamp_min(0.0)
    k = phi(r2)
    if not diagonal:
        k = k * (1.0 - torch.eye(len(x), dtype=k.dtype, device=k.device))
    return k @ b
