"""Stein kernels in tiles: u(x, y) from a radial kernel k and a score s, its sums and their gradients.

With z = x - y, w = k'(r) / r, q = w'(r) / r, t = q'(r) / r:

    u = k s.s' - w z.(s - s') - d w - r^2 q
    grad_x u at fixed s = [w s.s' - q z.(s - s') - (d + 2) q - r^2 t] z - w (s - s'),     du / ds = k s' - w z
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.losses import _compiled
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import DIRECT, differences, sum_of_squares, tiles


class Stein(NamedTuple):
    """At each x_i: sum_j a_j u_ij, its gradient at fixed scores, and its derivative in the score; all float64."""

    u: Tensor  # (N,)
    grad: Tensor  # (N, D)
    by_score: Tensor  # (N, D)


def slopes(kernel: Kernel, r2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k, w, q, t of squared distances: each is the derivative in r of the one before, over r."""
    c = kernel.lengths[0] ** -2
    if kernel.name == "gaussian":
        k = (r2 * (-0.5 * c)).clamp_min(-80.0).exp()
        return k, k * -c, k * c**2, k * -(c**3)
    inverse = 1.0 / (1.0 + r2 * c)
    k = inverse.sqrt()
    w = k * inverse * -c
    q = w * inverse * (-3.0 * c)
    return k, w, q, q * inverse * (-5.0 * c)


@torch.no_grad()
def stein_sums(x: Tensor, s: Tensor, y: Tensor, s_y: Tensor, a: Tensor, kernel: Kernel, compiled: bool) -> Stein:
    """Sums over y (M, D) with scores s_y and weights a (M,); time N M D, memory N + M."""
    center = y.mean(0)
    x, y, a = x - center, y - center, a.to(x.dtype)
    u = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    grad, by_score = (torch.zeros(x.shape, dtype=torch.float64, device=x.device) for _ in range(2))
    if compiled and x.shape[1] <= DIRECT:
        _compiled.add_stein_sums(x, s, y, s_y, a, kernel, (u, grad, by_score))
        return Stein(u, grad, by_score)
    for i, j in tiles(len(x), len(y), x):
        part = (_direct if x.shape[1] <= DIRECT else _product)(x[i], s[i], y[j], s_y[j], a[j], kernel)
        u[i] += part.u
        grad[i] += part.grad
        by_score[i] += part.by_score
    return Stein(u, grad, by_score)


def _direct(x: Tensor, s: Tensor, y: Tensor, s_y: Tensor, a: Tensor, kernel: Kernel) -> Stein:
    """One tile from exact differences, one coordinate at a time."""
    d = x.shape[1]
    apart, turn = differences(x, y), differences(s, s_y)
    r2, dot = sum_of_squares(apart), s @ s_y.T
    along = torch.zeros_like(r2)
    for z, change in zip(apart, turn, strict=True):
        along.addcmul_(z, change)
    k, w, q, t = slopes(kernel, r2)
    u = (k * dot).sub_(w * along).sub_(w, alpha=d).sub_(r2 * q)
    pull = (w * dot).sub_(q * along).sub_(q, alpha=d + 2).sub_(r2.mul_(t))
    grad = [(pull * z).addcmul_(w, change, value=-1.0) @ a for z, change in zip(apart, turn, strict=True)]
    by_score = [(k * s_y[:, i]).sub_(z.mul_(w)) @ a for i, z in enumerate(apart)]
    return Stein(u @ a, torch.stack(grad, 1), torch.stack(by_score, 1))


def _product(x: Tensor, s: Tensor, y: Tensor, s_y: Tensor, a: Tensor, kernel: Kernel) -> Stein:
    """One tile from matrix products; x and y must be near the origin."""
    d = x.shape[1]
    r2, dot, along = _products(x, s, y, s_y)
    k, w, q, t = slopes(kernel, r2)
    u = (k * dot).sub_(w * along).sub_(w, alpha=d).sub_(r2 * q)
    pull = (w * dot).sub_(q * along).sub_(q, alpha=d + 2).sub_(r2.mul_(t)).mul_(a)
    k, w = k.mul_(a), w.mul_(a)
    w_sum = w.sum(1, keepdim=True)
    grad = pull.sum(1, keepdim=True) * x - pull @ y - w_sum * s + w @ s_y
    return Stein(u @ a, grad, k @ s_y - w_sum * x + w @ y)


def _products(x: Tensor, s: Tensor, y: Tensor, s_y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r^2, s.s' and z.(s - s'), each (B, C), differentiable."""
    if x.shape[1] <= DIRECT:
        pairs = list(zip(differences(x, y), differences(s, s_y), strict=True))
        return sum(z * z for z, _ in pairs), s @ s_y.T, sum(z * t for z, t in pairs)  # type: ignore[return-value]
    r2 = (x.square().sum(1)[:, None] + y.square().sum(1) - 2.0 * x @ y.T).clamp_min(0.0)
    along = (x * s).sum(1)[:, None] + (y * s_y).sum(1) - x @ s_y.T - s @ y.T
    return r2, s @ s_y.T, along


def stein_mean(x: Tensor, s: Tensor, a: Tensor, kernel: Kernel) -> Tensor:
    """sum_ij a_i a_j u_ij, () in float64 and differentiable in x and s; tiles are computed again on the way back."""
    x = x - x.detach().mean(0)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for i, j in tiles(len(x), len(x), x):
        u = checkpoint(
            _row_sums, x[i], s[i], x[j], s[j], a[j].to(x.dtype), kernel, use_reentrant=False, preserve_rng_state=False
        )
        total = total + a[i].double() @ u.double()
    return total


def _row_sums(x: Tensor, s: Tensor, y: Tensor, s_y: Tensor, a: Tensor, kernel: Kernel) -> Tensor:
    r2, dot, along = _products(x, s, y, s_y)
    k, w, q, _ = slopes(kernel, r2)
    return (k * dot - w * along - x.shape[1] * w - r2 * q) @ a


def through_score(scores: Tensor, leaf: Tensor, cotangent: Tensor) -> Tensor:
    """J^T c at every point, J the Jacobian of the score; 0 where the score does not change with x."""
    if not scores.requires_grad:
        return torch.zeros_like(cotangent)
    (change,) = torch.autograd.grad(scores, leaf, cotangent.to(scores.dtype), allow_unused=True)
    return torch.zeros_like(cotangent) if change is None else change.double()
