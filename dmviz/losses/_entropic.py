"""Entropic transport in the log domain, in tiles: soft minima, potentials, and where the plan sends each point.

Cost C = |x - y|^2 / 2 (p = 2) or |x - y| (p = 1), temperature eps = blur^p, entropy relative to a x b:

    f_i <- softmin_i(g) = -eps log sum_j b_j exp((g_j - C_ij) / eps)        and the same from f to g.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses import _compiled
from dmviz.losses._pairs import DIRECT, differences, squares, sum_of_squares, tiles

_FLOOR = -80.0  # exp is slow where it underflows; e^-80 of the largest term is nothing
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

    @property
    def turned(self) -> "Problem":
        """The same problem seen from y."""
        return self._replace(x=self.y, y=self.x, log_a=self.log_b, log_b=self.log_a)

    @property
    def eps(self) -> float:
        return self.blur**self.p


class Effort(NamedTuple):
    """When to stop: the marginals' L1 error, and the most iterations."""

    tolerance: float
    iterations: int


class Pair(NamedTuple):
    """f on x and g on y, float64, half a sweep apart: `after` the soft minimum of g comes in, f has caught up."""

    f: Tensor
    g: Tensor
    drift: float  # how far the marginal on y was off before the last half-sweep (L1)
    step: float = 1.0

    def after(self, fresh: Tensor) -> Tensor:
        return self.f + self.step * (fresh - self.f)


def log_weight(b: Tensor) -> Tensor:
    return b.double().log().clamp_min(_NO_WEIGHT)


@torch.no_grad()
def softmin(x: Tensor, y: Tensor, h: Tensor, eps: float, p: int, compiled: bool, want_grad: bool = False) -> Soft:
    """-eps log sum_j exp(h_j - C(x_i, y_j) / eps), with h_j = log b_j + g_j / eps (M,) in float64."""
    f = h.new_empty(len(x))
    grad = h.new_empty(x.shape) if want_grad else None
    # Around its largest value h keeps its digits in float32.
    top = h.max()
    h = (h - top).to(x.dtype)
    if compiled:
        peak, total, sums = _compiled.softmin_parts(x, y, h, eps, p, want_grad, x.shape[1] <= DIRECT)
        return Soft(-eps * (peak + total.log() + top), sums / total[:, None] if want_grad else None)
    for rows, parts in _row_tiles(x, y):
        peak, total, sums = _row(x[rows], y, h, parts, eps, p, want_grad)
        f[rows] = -eps * (peak.double() + total.log() + top)
        if grad is not None:
            grad[rows] = sums / total[:, None]
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
        z, spread = _exponent(x, y[columns], h[columns], eps, p)
        higher = torch.maximum(peak, z.amax(1))
        shrink = (peak - higher).double().exp()
        e = z.sub_(higher[:, None]).clamp_min_(_FLOOR).exp_()
        total = total * shrink + e.sum(1)
        if want_grad:
            sums = sums * shrink[:, None] + _pull(e, x, y[columns], spread, p)
        peak = higher
    return peak, total, sums


def _exponent(x: Tensor, y: Tensor, h: Tensor, eps: float, p: int) -> tuple[Tensor, list[Tensor] | Tensor | None]:
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
    return softmin(problem.x, problem.y, problem.log_b + g / eps, eps, problem.p, problem.compiled, want_grad)


def temperatures(problem: Problem, scaling: float = 0.7) -> list[float]:
    """From the diameter down to the blur, each length `scaling` times the one before; the blur itself comes next."""
    low = torch.minimum(problem.x.amin(0), problem.y.amin(0))
    high = torch.maximum(problem.x.amax(0), problem.y.amax(0))
    length, lengths = float((high - low).double().norm()), []
    while length > problem.blur:
        lengths.append(length)
        length *= scaling
    return [length**problem.p for length in lengths]


def solve_pair(problem: Problem, effort: Effort, start: tuple[Tensor, Tensor] | None = None) -> Pair:
    """Potentials of the transport from x to y: annealed, then over-relaxed until the marginals fit.

    From a `start` there is no annealing, and a few sweeps run at one pace: those of a flow carry on from step to step.
    """
    back = problem.turned
    f, g = start or _annealed(problem)
    b, enough = problem.log_b.exp(), max(effort.tolerance, _reachable(problem))
    pace = Pace(FOLLOWING)
    for sweep in range(effort.iterations):
        fresh = soft(back, f).f
        drift = _marginal_error(b, g, fresh, problem.eps)
        if drift <= enough or pace.stuck:
            return Pair(f, fresh, drift, 1.0)
        step = pace(drift)
        g = g + step * (fresh - g)
        if sweep < effort.iterations - 1:
            f = f + step * (soft(problem, g).f - f)
    return Pair(f, g, drift, step)


def solve_small(problem: Problem, start: tuple[Tensor, Tensor] | None = None) -> Pair:
    """Potentials to rounding error, for two small clouds in float64: sweeps, each followed by a Newton step.

    Plain sweeps take for ever once the blur is below the spacing of the points. Newton's method works on the potential
    of the smaller cloud, of which the other is the soft minimum: its Hessian has min(N, M)^2 entries.
    """
    if len(problem.x) < len(problem.y):
        pair = solve_small(problem.turned, None if start is None else (start[1], start[0]))
        return pair._replace(f=pair.g, g=pair.f)
    cost = squares(problem.x, problem.y)
    cost = 0.5 * cost if problem.p == 2 else cost.sqrt()
    g = torch.zeros_like(problem.log_b) if start is None else start[1]
    drift = math.inf
    for eps in [*(temperatures(problem) if start is None else ()), problem.eps]:
        for _ in range(3 if eps != problem.eps else 100):
            g, drift = _newton(problem, cost, g, eps)
            if drift <= 1e-12:
                break
    return Pair(_rows(problem, cost, g, problem.eps)[0], g, drift)


def _rows(problem: Problem, cost: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """f, the plan's rows as shares (N, M), and what the marginal on y misses (M,)."""
    z = (problem.log_b + g / eps) - cost / eps
    f = -eps * z.logsumexp(1)
    share = (z + (f / eps)[:, None]).exp()
    return f, share, problem.log_b.exp() - problem.log_a.exp() @ share


def _newton(problem: Problem, cost: Tensor, g: Tensor, eps: float) -> tuple[Tensor, float]:
    """One sweep, and from there the longest Newton step that raises the dual; and the marginal's error (L1)."""
    f, _, _ = _rows(problem, cost, g, eps)
    g = -eps * (problem.log_a[:, None] + (f[:, None] - cost) / eps).logsumexp(0)
    f, share, rest = _rows(problem, cost, g, eps)
    a, b = problem.log_a.exp(), problem.log_b.exp()
    dual, error = float(a @ f + b @ g), float(rest.abs().sum())
    hessian = torch.diag(a @ share) - share.T @ (a[:, None] * share)
    # One constant on g changes nothing, and points without weight have no say: keep both solvable.
    ridge = torch.eye(len(g), dtype=g.dtype, device=g.device) * 1e-15 + 1.0 / len(g) ** 2
    step = torch.linalg.solve_ex(hessian + ridge, rest[:, None])[0][:, 0].nan_to_num() * eps
    # Where hardly any mass crosses between groups of points the dual is all but straight: stay within the costs.
    step = step * min(1.0, 2.0 * float(cost.max()) / max(float(step.abs().max()), 1e-300))
    for _ in range(16):
        trial = g + step
        f, _, rest = _rows(problem, cost, trial, eps)
        missed, gained = float(rest.abs().sum()), float(a @ f + b @ trial) - dual
        if missed < 0.5 * error or gained > 1e-4 * float(step @ (b - a @ share)):
            return trial, missed
        step = 0.3 * step
    return g, error


def _annealed(problem: Problem) -> tuple[Tensor, Tensor]:
    """Rough potentials at the blur, from blurs as wide as the clouds on down."""
    back, step = problem.turned, 1.0
    f = torch.zeros(len(problem.x), dtype=torch.float64, device=problem.x.device)
    g = torch.zeros(len(problem.y), dtype=torch.float64, device=problem.x.device)
    for eps in temperatures(problem):
        g = g + step * (soft(back, f, eps=eps).f - g)
        f = f + step * (soft(problem, g, eps=eps).f - f)
        step = 1.5
    return f, g


FOLLOWING = 1.8
"""Pace that sweeps begin with, once the marginals roughly fit."""


class Pace:
    """How far to go along each update: over-relaxation, from how fast the marginals have been closing in.

    Where a plain sweep shrinks the error by q, steps of 2 / (1 + sqrt(1 - q)) shrink it fastest. q is read off the
    decrease over the last four sweeps. While the marginals are far off, plain sweeps, which always converge.
    """

    def __init__(self, step: float) -> None:
        self.step = step
        self.drifts: list[float] = []
        self.best, self.idle = math.inf, 0

    @property
    def stuck(self) -> bool:
        """Whether rounding, not the sweeps, now decides: nothing gained in fifty of them."""
        return self.idle >= 50

    def __call__(self, drift: float) -> float:
        self.idle = 0 if drift < self.best else self.idle + 1
        self.best = min(drift, self.best)
        self.drifts.append(drift)
        if len(self.drifts) > 4:
            rate = (drift / max(self.drifts[0], 1e-300)) ** 0.25
            if self.step - 1.0 < rate < 1.0:
                q = min((rate + self.step - 1.0) ** 2 / (rate * self.step**2), 1.0)
                self.step = min(2.0 / (1.0 + math.sqrt(1.0 - q)), 1.9)
            self.drifts.clear()
        return self.step if drift < 1.0 else 1.0


def _marginal_error(b: Tensor, old: Tensor, fresh: Tensor, eps: float) -> float:
    """sum_j b_j |exp((old - fresh) / eps) - 1|: the L1 error of the marginal before this half-step."""
    return float(b @ ((old - fresh) / eps).clamp(-50.0, 50.0).expm1().abs())


def _reachable(problem: Problem) -> float:
    """The marginal error that rounding leaves: an exponent C / eps is off by its size times the machine epsilon."""
    radius = float(problem.x.square().sum(1).mean().sqrt() + problem.y.square().sum(1).mean().sqrt())
    return torch.finfo(problem.x.dtype).eps * (4.0 + radius**problem.p / (2.0 * problem.eps))


def solve_self(problem: Problem, effort: Effort, start: Tensor | None = None) -> tuple[Tensor, Soft]:
    """The one potential of a cloud's transport onto itself, by averaged updates p <- (p + softmin p) / 2, and its plan.

    From a `start` the plan is that of the last but one potential: its error halves with every step of a flow.
    """
    p = start
    if p is None:
        p = torch.zeros(len(problem.x), dtype=torch.float64, device=problem.x.device)
        for eps in temperatures(problem):
            p = 0.5 * (p + soft(problem, p, eps=eps).f)
    a, enough = problem.log_a.exp(), max(effort.tolerance, _reachable(problem))
    for _ in range(effort.iterations - 1):
        fresh = soft(problem, p).f
        drift = _marginal_error(a, p, fresh, problem.eps)
        p = 0.5 * (p + fresh)
        if drift <= enough:
            break
    return p, soft(problem, p, want_grad=True)
