"""Entropic transport in the log domain, in tiles: soft minima, potentials, and where the plan sends each point.

Cost C = |x - y|^2 / 2 (p = 2) or |x - y| (p = 1), temperature eps = blur^p, entropy relative to a x b:

    f_i <- softmin_i(g) = -eps log sum_j b_j exp((g_j - C_ij) / eps)        and the same from f to g.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses import _compiled
from dmviz.losses._compiled import Rows
from dmviz.losses._pairs import DIRECT, differences, squares, sum_of_squares, tiles

FLOOR = -80.0  # exp is slow where it underflows; e^-80 of the largest term is nothing
_NO_WEIGHT = -1e5  # stands for log 0


class Soft(NamedTuple):
    """Soft minima at x (N,), float64, and, where asked for, the gradient in x of the soft minimum (N, D)."""

    f: Tensor
    grad: Tensor | None


class Problem(NamedTuple):
    """Two weighted clouds, the exponent of the cost, and the blur."""

    x: Tensor  # (N, D)
    y: Tensor  # (M, D)
    log_a: Tensor  # (N,) float64
    log_b: Tensor  # (M,) float64
    p: int
    blur: float
    compiled: bool
    rows: Rows | None = None  # x in an order that keeps neighbours together, where that pays
    rows_y: Rows | None = None

    @property
    def turned(self) -> "Problem":
        """The same problem seen from y."""
        return self._replace(x=self.y, y=self.x, log_a=self.log_b, log_b=self.log_a, rows=self.rows_y, rows_y=self.rows)

    def seen_from(self, x: Tensor) -> "Problem":
        """The same target seen from other points, which have no weight."""
        return self._replace(x=x.to(self.x.dtype), rows=None)

    @property
    def eps(self) -> float:
        return self.blur**self.p


class Effort(NamedTuple):
    """When to stop: the marginals' L1 error, the most sweeps, and what part of the value may be missing."""

    tolerance: float
    iterations: int
    share: float = 1.0
    known: float = math.inf  # what the value has besides the dual of this problem; inf: the value does not matter


class Pairs(NamedTuple):
    """Moves of a potential and how the residual answered: what an accelerated step knows of the sweep's slope."""

    moves: Tensor  # (K, M)
    falls: Tensor  # (K, M)


class Pair(NamedTuple):
    """f on x and g on y, float64, and the share of mass that the marginal on y misplaced before the last update."""

    f: Tensor
    g: Tensor
    drift: float
    pairs: Pairs | None = None


def log_weight(b: Tensor) -> Tensor:
    return b.double().log().clamp_min(_NO_WEIGHT)


@torch.no_grad()
def softmin(
    x: Tensor,
    y: Tensor,
    h: Tensor,
    eps: float,
    p: int,
    compiled: bool,
    want_grad: bool = False,
    rows: Rows | None = None,
) -> Soft:
    """-eps log sum_j exp(h_j - C(x_i, y_j) / eps), with h_j = log b_j + g_j / eps (M,) in float64."""
    f = h.new_empty(len(x))
    grad = h.new_empty(x.shape) if want_grad else None
    # Around its largest value h keeps its digits in float32.
    top = h.max()
    h = (h - top).to(x.dtype)
    if compiled:
        peak, total, sums = _compiled.softmin_parts(x, y, h, eps, p, want_grad, x.shape[1] <= DIRECT, rows)
        return Soft(-eps * (peak + total.log() + top), sums / total[:, None] if want_grad else None)
    for mine, parts in _row_tiles(x, y):
        peak, total, sums = _row(x[mine], y, h, parts, eps, p, want_grad)
        f[mine] = -eps * (peak.double() + total.log() + top)
        if grad is not None:
            grad[mine] = sums / total[:, None]
    return Soft(f, grad)


def _row_tiles(x: Tensor, y: Tensor) -> list[tuple[slice, list[slice]]]:
    table: dict[int, tuple[slice, list[slice]]] = {}
    for rows, columns in tiles(len(x), len(y), x):
        table.setdefault(rows.start, (rows, []))[1].append(columns)
    return list(table.values())


def _row(
    x: Tensor, y: Tensor, h: Tensor, parts: list[slice], eps: float, p: int, want_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Largest exponent, sum of exponentials over it, and their sum times grad C, over all columns."""
    peak = x.new_full((len(x),), -math.inf)
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    sums = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for columns in parts:
        z, spread = exponent(x, y[columns], h[columns], eps, p)
        higher = torch.maximum(peak, z.amax(1))
        shrink = (peak - higher).double().exp()
        e = z.sub_(higher[:, None]).clamp_min_(FLOOR).exp_()
        total = total * shrink + e.sum(1)
        if want_grad:
            sums = sums * shrink[:, None] + _pull(e, x, y[columns], spread, p)
        peak = higher
    return peak, total, sums


def exponent(x: Tensor, y: Tensor, h: Tensor, eps: float, p: int) -> tuple[Tensor, list[Tensor] | Tensor | None]:
    """h_j - C_ij / eps, and what the gradient of C will need."""
    if p == 2:
        return squares(x, y).mul_(-0.5 / eps).add_(h), None
    if x.shape[1] <= DIRECT:
        apart = differences(x, y)
        r = sum_of_squares(apart).sqrt_()
        inverse = r.reciprocal().masked_fill_(r <= 0, 0.0)
        return r.mul_(-1.0 / eps).add_(h), [z.mul_(inverse) for z in apart]
    r = squares(x, y).sqrt_()
    inverse = r.reciprocal().masked_fill_(r <= 0, 0.0)
    return r.mul_(-1.0 / eps).add_(h), inverse


def _pull(e: Tensor, x: Tensor, y: Tensor, spread: list[Tensor] | Tensor | None, p: int) -> Tensor:
    """sum_j e_ij grad C(x_i, y_j), (B, D): x - y, or the unit vector along it (0 where they meet)."""
    if isinstance(spread, list):
        return torch.stack([(z * e).sum(1) for z in spread], dim=1)
    w = e if spread is None else e * spread
    return w.sum(1, keepdim=True) * x - w @ y


def soft(problem: Problem, g: Tensor, want_grad: bool = False, eps: float | None = None) -> Soft:
    """The soft minimum on x of a potential on y."""
    eps = problem.eps if eps is None else eps
    h = problem.log_b + g / eps
    return softmin(problem.x, problem.y, h, eps, problem.p, problem.compiled, want_grad, problem.rows)


NARROWER = 0.7
"""Each blur of an annealing in lengths of the one before."""


def temperatures(problem: Problem, narrower: float = NARROWER) -> list[float]:
    """From the diameter down to the blur, each length `narrower` times the one before; the blur itself comes next."""
    low = torch.minimum(problem.x.amin(0), problem.y.amin(0))
    high = torch.maximum(problem.x.amax(0), problem.y.amax(0))
    length, lengths = float((high - low).double().norm()), []
    while length > problem.blur:
        lengths.append(length)
        length *= narrower
    return [length**problem.p for length in lengths]


def reachable(problem: Problem) -> float:
    """The marginal error that rounding leaves: an exponent C / eps is off by its size times the machine epsilon."""
    radius = float(problem.x.square().sum(1).mean().sqrt() + problem.y.square().sum(1).mean().sqrt())
    return torch.finfo(problem.x.dtype).eps * (4.0 + radius**problem.p / (2.0 * problem.eps))
