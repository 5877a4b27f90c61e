"""Sums over all pairs of points, in tiles that fit the cache: no N x M array is ever made.

Rows of tiles are summed in the precision of the points, tiles and rows in float64.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import Cloud, mass_of
from dmviz.losses import _compiled
from dmviz.losses._kernels import Kernel, kernel_alone, kernel_and_slope, kernel_of
from dmviz.protocols import Velocity

DIRECT = 8
"""Up to this dimension differences are formed one coordinate at a time, exactly; above it by matrix products."""


class Sums(NamedTuple):
    """What every x hears from all y: s_i = sum_j b_j k(x_i, y_j), and its gradient in x_i."""

    s: Tensor  # (N,) float64
    grad: Tensor  # (N, D) float64


def tiles(n: int, m: int, like: Tensor) -> Iterator[tuple[slice, slice]]:
    """Row and column ranges of about 1 MB on the CPU and 64 MB on an accelerator."""
    side = (512 if like.dtype == torch.float32 else 362) * (1 if like.device.type == "cpu" else 8)
    for i in range(0, n, side):
        for j in range(0, m, side):
            yield slice(i, min(i + side, n)), slice(j, min(j + side, m))


@torch.no_grad()
def kernel_sums(x: Tensor, y: Tensor, b: Tensor, kernel: Kernel, compiled: bool, want_grad: bool = True) -> Sums:
    """Kernel sums and their gradients at x (N, D) over y (M, D) with weights b (M,); time N M D, memory N + M."""
    wide = torch.float64 if x.device.type != "mps" else torch.float32
    s, grad = x.new_zeros(len(x), dtype=wide), x.new_zeros(x.shape, dtype=wide)
    if x.shape[1] > DIRECT:
        center = y.mean(0)
        x, y = x - center, y - center
    b = b.to(x.dtype)
    if compiled:
        _compiled.add_kernel_sums(x, y, b, kernel, s, grad, x.shape[1] <= DIRECT, want_grad)
        return Sums(s, grad)
    for i, j in tiles(len(x), len(y), x):
        if not want_grad:
            s[i] += kernel_alone(kernel, squares(x[i], y[j])) @ b[j]
            continue
        tile = _Tile(x[i], y[j], kernel)
        s[i] += tile.k @ b[j]
        grad[i] += tile.pull(b[j])
    return Sums(s, grad)


@torch.no_grad()
def own_sums(x: Tensor, a: Tensor, kernel: Kernel, compiled: bool, want_grad: bool = True) -> tuple[Tensor, Tensor]:
    """sum_ij a_i a_j k(x_i, x_j), (), and the gradient of sum_j a_j k(x_i, x_j) at every i (N, D); each pair once."""
    if x.shape[1] > DIRECT:
        x = x - x.mean(0)
    if compiled:
        return _compiled.own_sums(x, a, kernel, x.shape[1] <= DIRECT, want_grad)
    wide = torch.float64 if x.device.type != "mps" else torch.float32
    mean, grad, a = x.new_zeros((), dtype=wide), x.new_zeros(x.shape, dtype=wide), a.to(x.dtype)
    for i, j in tiles(len(x), len(x), x):
        if j.start < i.start:
            continue
        both = 1.0 if i == j else 2.0
        if not want_grad:
            mean += both * (a[i].to(wide) @ (kernel_alone(kernel, squares(x[i], x[j])) @ a[j]).to(wide))
            continue
        tile = _Tile(x[i], x[j], kernel)
        mean += both * (a[i].to(wide) @ (tile.k @ a[j]).to(wide))
        if i != j:
            grad[j] += tile.pull_back(a[i])
        grad[i] += tile.pull(a[j])
    return mean, grad


class _Tile:
    """k and its slopes between x (B, D) and y (C, D), and what they pull."""

    def __init__(self, x: Tensor, y: Tensor, kernel: Kernel) -> None:
        self.x, self.y = x, y
        self.apart = differences(x, y) if x.shape[1] <= DIRECT else None
        if self.apart:
            self.k, self.w = kernel_and_slope(kernel, sum_of_squares(self.apart))
            for z in self.apart:
                z.mul_(self.w)
            return
        r2, near = _squares(x, y, 1e4 if kernel.kinked else 64.0)
        met = near[r2[near[:, 0], near[:, 1]] <= 0.0]
        self.k, self.w = kernel_and_slope(kernel, r2)
        self.w[met[:, 0], met[:, 1]] = 0.0  # where two points meet there is no direction to go

    def pull(self, b: Tensor) -> Tensor:
        """sum_j b_j grad k(x_i - y_j), (B, D)."""
        if self.apart:
            return torch.stack([z @ b for z in self.apart], dim=1)
        return (self.w @ b)[:, None] * self.x - self.w @ (b[:, None] * self.y)

    def pull_back(self, a: Tensor) -> Tensor:
        """sum_i a_i grad k(y_j - x_i), (C, D)."""
        if self.apart:
            return torch.stack([-(a @ z) for z in self.apart], dim=1)
        return (a @ self.w)[:, None] * self.y - self.w.T @ (a[:, None] * self.x)


def differences(x: Tensor, y: Tensor) -> list[Tensor]:
    """D times (B, C): x - y, one coordinate at a time."""
    return [x[:, d, None] - y[None, :, d] for d in range(x.shape[1])]


def sum_of_squares(apart: list[Tensor]) -> Tensor:
    r2 = apart[0] * apart[0]
    for z in apart[1:]:
        r2.addcmul_(z, z)
    return r2


def squares(x: Tensor, y: Tensor) -> Tensor:
    """(B, C) squared distances; in high dimension x and y must be near the origin."""
    return sum_of_squares(differences(x, y)) if x.shape[1] <= DIRECT else _squares(x, y, 1e4)[0]


def _squares(x: Tensor, y: Tensor, trust: float) -> tuple[Tensor, Tensor]:
    """(B, C) squared distances by one matrix product, and the pairs (K, 2) that were so close, within `trust` times
    the rounding error, that they were computed again from their difference."""
    x2, y2 = x.square().sum(1), y.square().sum(1)
    r2 = torch.addmm(y2[None, :], x, y.T, alpha=-2.0).add_(x2[:, None])
    near = (r2 < trust * torch.finfo(x.dtype).eps * (x2.amax() + y2.amax())).nonzero()
    for pairs in torch.split(near, 4096):  # type: ignore[no-untyped-call]
        r2[pairs[:, 0], pairs[:, 1]] = (x[pairs[:, 0]] - y[pairs[:, 1]]).square().sum(1)
    return r2.clamp_min_(0.0), near


def kernel_mean(x: Tensor, y: Tensor, a: Tensor, b: Tensor, kernel: Kernel) -> Tensor:
    """sum_ij a_i b_j k(x_i, y_j), () in float64 and differentiable; tiles are computed again on the way back."""
    center = y.detach().mean(0)
    x, y = x - center, y - center
    a, b = a.double() if a.device.type != "mps" else a, b.to(x.dtype)
    total = a.new_zeros(())
    for rows, columns in tiles(len(x), len(y), x):
        k = checkpoint(_tile, x[rows], y[columns], b[columns], kernel, use_reentrant=False, preserve_rng_state=False)
        total = total + a[rows] @ k.to(a.dtype)
    return total


def _tile(x: Tensor, y: Tensor, b: Tensor, kernel: Kernel) -> Tensor:
    if x.shape[1] <= DIRECT:
        r2 = sum(((x[:, d, None] - y[None, :, d]).square() for d in range(x.shape[1])), start=x.new_zeros(()))
    else:
        x2, y2 = x.square().sum(1), y.square().sum(1)
        r2 = (x2[:, None] + y2[None, :] - 2.0 * x @ y.T).clamp_min(0.0)
        if kernel.kinked:  # what rounding left of a meeting is no distance
            r2 = torch.where(r2 < 8 * torch.finfo(x.dtype).eps * (x2[:, None] + y2[None, :]), 0.0, r2)
    return kernel_of(kernel, r2) @ b


def discrepancy(x: Tensor, target: Cloud, kernel: Kernel, weight: Tensor | None, unbiased: bool = False) -> Tensor:
    """E k(X, X') + E k(Y, Y') - 2 E k(X, Y), () and differentiable in x."""
    a, b, compiled = mass_of(x, weight), target.mass(), _compiled.chosen(target.memo, x)
    own = kernel_mean(x, x, a, a, kernel)
    cross = kernel_mean(x, target.x, a, b, kernel)
    if unbiased:
        own = _off_diagonal(own, a, kernel)
    return (own + _target_term(target, kernel, unbiased, compiled) - 2.0 * cross).to(x.dtype)


@torch.no_grad()
def discrepancy_value(
    x: Tensor, target: Cloud, kernel: Kernel, weight: Tensor | None, unbiased: bool = False
) -> Tensor:
    """The discrepancy alone, without what its gradient would cost."""
    a, b, compiled = mass_of(x, weight), target.mass(), _compiled.chosen(target.memo, x)
    own, _ = own_sums(x, a, kernel, compiled, want_grad=False)
    cross = kernel_sums(x, target.x, b, kernel, compiled, want_grad=False).s
    if unbiased:
        own = _off_diagonal(own, a, kernel)
    value = own + _target_term(target, kernel, unbiased, compiled) - 2.0 * (a.to(cross.dtype) @ cross)
    return value.to(x.dtype)


def discrepancy_velocity(
    x: Tensor, target: Cloud, kernel: Kernel, weight: Tensor | None, unbiased: bool = False
) -> Velocity:
    """The discrepancy and minus twice the gradient of the witness at each particle."""
    a, b, compiled = mass_of(x, weight), target.mass(), _compiled.chosen(target.memo, x)
    mean_own, pull = own_sums(x, a, kernel, compiled)
    cross = kernel_sums(x, target.x, b, kernel, compiled)
    if unbiased:
        mean_own = _off_diagonal(mean_own, a, kernel)
        pull = pull * _off_diagonal_scale(a)
    value = mean_own + _target_term(target, kernel, unbiased, compiled) - 2.0 * (a.to(cross.s.dtype) @ cross.s)
    v = (2.0 * (cross.grad - pull)).to(x.dtype)
    if weight is not None:
        v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
    return Velocity(v, value.to(x.dtype))


@torch.no_grad()
def paired_discrepancy(x: Tensor, y: Tensor, kernel: Kernel) -> Tensor:
    """The unbiased estimate for as many x as y that also leaves out each x_i with its own y_i, () in float64."""
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"paired MMD needs two clouds of equal size, at least 2 points, got {len(x)} and {len(y)}")
    one, n = x.new_ones(len(x)), len(x)
    own = sum(own_sums(z, one, kernel, False, want_grad=False)[0] - n * kernel.at_zero for z in (x, y))
    matched = kernel_alone(kernel, (x - y).square().sum(1)).double().sum()
    cross = kernel_sums(x, y, one, kernel, False, want_grad=False).s.double().sum() - matched
    return (own - 2.0 * cross) / (n * (n - 1))


def discrepancy_probe(
    at: Tensor, x: Tensor, target: Cloud, kernel: Kernel, weight: Tensor | None, unbiased: bool = False
) -> Tensor:
    """-2 grad f at any points (K, D), where f = sum_j a_j k(x_j, .) - sum_j b_j k(y_j, .) is the witness."""
    a = mass_of(x, weight)
    own, cross = _at(at, x, target, kernel, a)
    pull = own.grad * _off_diagonal_scale(a) if unbiased else own.grad
    return (2.0 * (cross.grad - pull)).to(at.dtype)


def witness(at: Tensor, x: Tensor, target: Cloud, kernel: Kernel, weight: Tensor | None) -> Tensor:
    """f (K,): high where particles are too many, low where the target still waits for them."""
    own, cross = _at(at, x, target, kernel, mass_of(x, weight))
    return (own.s - cross.s).to(at.dtype)


def _at(at: Tensor, x: Tensor, target: Cloud, kernel: Kernel, a: Tensor) -> tuple[Sums, Sums]:
    """What `at` hears from the particles and from the target."""
    compiled = _compiled.chosen(target.memo, x)
    return kernel_sums(at, x, a, kernel, compiled), kernel_sums(at, target.x, target.mass(), kernel, compiled)


def median_distance(target: Cloud, otherwise: float, most: int = 1000) -> float:
    """Median distance between different points of the target, from at most `most` of them, spread evenly over its rows.

    `otherwise` where the target has no two different points.
    """
    memo = target.memo
    if memo and memo.get("of") is target.x and "median" in memo:
        return float(memo["median"])
    rows = torch.linspace(0, len(target) - 1, min(most, len(target)), dtype=torch.float64).round().long()
    some = target.x.detach()[rows.to(target.x.device)].double().cpu()
    squares = torch.pdist(some).square()  # (K (K - 1) / 2,) the strict upper triangle
    for squared in (squares.quantile(0.5), squares.mean()) if len(squares) else ():
        if squared > 0:
            return float(squared.sqrt())
    return otherwise


def prepare_discrepancy(target: Cloud, kernel: Kernel, unbiased: bool = False, median: float | None = None) -> Cloud:
    """The target with its own term, and its median distance where one is asked for, worked out once."""
    memo: dict[str, Any] = {"kernel": kernel, "of": target.x, "unbiased": unbiased}
    if median is not None:
        memo["median"] = median
    compiled = _compiled.chosen(None, target.x)
    memo |= {"compiled": compiled, "own": _own_term(target, kernel, unbiased, compiled)}
    return replace(target, memo=memo)


def _target_term(target: Cloud, kernel: Kernel, unbiased: bool, compiled: bool) -> Tensor:
    memo = target.memo
    if memo and memo.get("kernel") == kernel and memo.get("of") is target.x and memo.get("unbiased") == unbiased:
        return memo["own"]  # type: ignore[no-any-return]
    return _own_term(target, kernel, unbiased, compiled)


def _own_term(target: Cloud, kernel: Kernel, unbiased: bool, compiled: bool) -> Tensor:
    with torch.no_grad():
        b = target.mass()
        mean, _ = own_sums(target.x, b, kernel, compiled, want_grad=False)
        return _off_diagonal(mean, b, kernel) if unbiased else mean


def _off_diagonal_scale(a: Tensor) -> Tensor:
    """1 / (1 - sum a_i^2), and 0 for a single point, which has no pair."""
    rest = 1.0 - a.double().square().sum()
    return torch.where(rest > 1e-12, 1.0 / rest, 0.0)


def _off_diagonal(mean: Tensor, a: Tensor, kernel: Kernel) -> Tensor:
    """The mean over pairs of different points, from the mean over all pairs."""
    return (mean - kernel.at_zero * a.double().square().sum()) * _off_diagonal_scale(a)
