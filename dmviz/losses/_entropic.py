"""Entropic transport in the log domain, in tiles: soft minima, potentials, and where the plan sends each point.

Cost C = |x - y|^2 / 2 (p = 2) or |x - y| (p = 1), temperature eps = blur^p, entropy relative to a x b:

    f_i <- softmin_i(g) = -eps log sum_j b_j exp((g_j - C_ij) / eps)        and the same from f to g.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses import _compiled
from dmviz.losses._compiled import NEAR_DIMS, Rows, blocked
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


def solve_pair(problem: Problem, effort: Effort, g: Tensor | None = None, pairs: Pairs | None = None) -> Pair:
    r"""Potentials of the transport from x to y: annealed, then accelerated sweeps until the dual has arrived.

    From a potential `g` on y there is no annealing. A sweep is g -> G(g), both half-steps; r = G(g) - g. With f the
    soft minimum of g the dual is $$ D(g) = \sum_i a_i f_i + \sum_j b_j g_j, $$ a lower bound (the plan's mass is 1),
    and its slope is b less the marginal on y. Around the best potential D is a parabola, so that a step `d` onto it
    gains half of slope . d: where this is below `share` of the value, the step is taken and the value has arrived.
    A step after which D is lower is taken back, and what led to it is forgotten.
    """
    back, b, a = problem.turned, problem.log_b.exp(), problem.log_a.exp()
    g = _annealed(problem) if g is None else g
    enough, unit = max(effort.tolerance, _reachable(problem)), torch.finfo(problem.x.dtype).eps
    best = last = None
    floor, drift, smallest, idle = 0.0, math.inf, math.inf, 0
    for _ in range(effort.iterations):
        f = soft(problem, g).f
        dual = float(a @ f + b @ g)
        if best is not None and not dual >= best[0] - floor:
            g, pairs, last = best[1] + best[2], None, None
            best = None
            continue
        r = soft(back, f).f - g
        floor = unit * (abs(dual) + problem.eps)
        slope = -b * (-r / problem.eps).clamp(-50.0, 50.0).expm1()
        drift = float(slope.abs().sum())
        idle = 0 if drift < smallest else idle + 1
        smallest = min(drift, smallest)
        if last is not None and drift < 1.0:
            pairs = _with(pairs, g - last[0], r - last[1], b)
        last, best = (g, r), (dual, g, r)
        step = _accelerated(r, pairs, b) if drift < 1.0 else r
        gap = 0.5 * float(slope @ step)
        g = g + step
        value = effort.known + dual + gap
        if idle >= 50 or (drift <= enough and abs(gap) <= max(effort.share * value, floor)):
            break
    return Pair(f, g, drift, pairs)


KEPT = 8
"""Pairs that an accelerated step looks at."""


def _with(pairs: Pairs | None, move: Tensor, fall: Tensor, b: Tensor) -> Pairs:
    """One pair more, the oldest beyond `KEPT` left out; each scaled to a fall of 1."""
    size = float((b @ fall.square()).sqrt())
    if not size > 0:
        return pairs or Pairs(move[None, :][:0], fall[None, :][:0])
    new = Pairs(move[None, :] / size, fall[None, :] / size)
    if pairs is None:
        return new
    return Pairs(*(torch.cat([n, o[: KEPT - 1]]) for n, o in zip(new, pairs, strict=True)))


def _accelerated(r: Tensor, pairs: Pairs | None, b: Tensor, pace: float = 1.0) -> Tensor:
    """Anderson's step: `pace` r where nothing is known; where the falls explain r, the moves that undo it."""
    if pairs is None or not len(pairs.falls):
        return pace * r
    weighed = pairs.falls * b
    gram = weighed @ pairs.falls.T
    gram = gram + 1e-10 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    part: Tensor = torch.linalg.solve(gram, weighed @ r)
    undo: Tensor = part @ (pairs.moves + pace * pairs.falls)
    return pace * r - undo


STORED = 4_000_000
"""Entries of a plan that a Newton step may hold: 16 MB in float32, and their columns."""


SEARCHED = 25_000_000
"""Pairs up to which it is worth trying: what is large in a plan between more may not fit."""


class Plan(NamedTuple):
    """Soft minima on x, the plan's rows as shares (sparse when compiled), and its marginal on y."""

    f: Tensor
    rows: Tensor | tuple[Tensor, Tensor, Tensor]
    m: Tensor
    order: Tensor | None = None  # of the rows, where they do not come as x does


def plan_of(problem: Problem, g: Tensor) -> Plan | None:
    """The plan of a potential on y, with all its mass in the rows; None where it is too large to hold."""
    if len(problem.x) * len(problem.y) > (SEARCHED if problem.compiled else STORED) and problem.rows is None:
        return None
    a, h = problem.log_a.exp(), problem.log_b + g / problem.eps
    top = h.max()
    h = (h - top).to(problem.x.dtype)
    if problem.compiled:
        found = _compiled.plan(
            problem.x, problem.y, h, a, problem.eps, problem.p, STORED, problem.x.shape[1] <= DIRECT, problem.rows
        )
        if found is None:
            return None
        peak, total, m, rows = found
        return Plan(-problem.eps * (peak + total.log() + top), rows, m, problem.rows and problem.rows.order)
    z, _ = _exponent(problem.x, problem.y, h, problem.eps, problem.p)
    peak = z.amax(1, keepdim=True)
    share = z.sub_(peak).clamp_min_(_FLOOR).exp_()
    total = share.sum(1, keepdim=True)
    share = share.div_(total)
    f = -problem.eps * (peak.double() + total.double().log() + top)[:, 0]
    return Plan(f, share, (a.to(share.dtype) @ share).double())


def _newton_move(plan: Plan, a: Tensor, slope: Tensor, need: float, most: int = 300) -> tuple[Tensor, float]:
    """Solve (diag(m) - P^T diag(a) P) u = slope by conjugate gradients until five steps gain less than `need`."""
    if isinstance(plan.rows, tuple):
        return _compiled.newton_step(plan.rows, a if plan.order is None else a[plan.order], plan.m, slope, need, most)
    share, m = plan.rows, plan.m.clamp_min(1e-300)
    weight, u, r = a.to(share.dtype), torch.zeros_like(slope), slope
    z = r / m
    d, rz, gains = z, float(r @ z), [math.inf]
    for _ in range(most):
        q = m * d - (share.T @ (weight * (share @ d.to(share.dtype)))).double()
        curve = float(d @ q)
        if not curve > 0.0:
            break
        alpha = rz / curve
        u, r = u + alpha * d, r - alpha * q
        gains.append(alpha * rz)
        if sum(gains[-5:]) <= need:
            break
        z = r / m
        before, rz = rz, float(r @ z)
        d = z + (rz / before) * d
    return u, sum(gains[-5:])


def solve(problem: Problem, effort: Effort, g: Tensor | None = None, pairs: Pairs | None = None) -> Pair:
    """Potentials from those that a flow kept, or annealed: by Newton steps where the plan can be held, else sweeps."""
    g, plan = (_annealed(problem), None) if g is None else _approached(problem, g)
    return solve_newton(problem, effort, g, plan) or solve_pair(problem, effort, g, pairs)


def solve_newton(problem: Problem, effort: Effort, g: Tensor, plan: Plan | None = None) -> Pair | None:
    """Potentials by Newton steps on the dual from a start, sweeps while that is far off; None where it does not fit.

    D has slope s = b - m in g and Hessian -(diag(m) - P^T diag(a) P) / eps, P the rows of the plan as shares: along
    eps u, with u from conjugate gradients, D gains eps s . u / 2. What a full step leaves is of third order, about
    max |u| of that; where this is below `share` of the value, the last step's end is the answer. `plan` is that of the
    start, where it is known.
    """
    a, b, unit = problem.log_a.exp(), problem.log_b.exp(), torch.finfo(problem.x.dtype).eps
    enough = max(effort.tolerance, _reachable(problem))
    best, step, smallest, idle = -math.inf, torch.zeros_like(g), math.inf, 0
    backs, kept, drift = 0, Plan(g, g, g), math.inf
    for _ in range(effort.iterations):
        here, plan = plan or plan_of(problem, g + step), None
        if here is None:
            return None
        dual = float(a @ here.f + b @ (g + step))
        floor = 4.0 * unit * (abs(dual) + problem.eps)
        if not dual >= best - floor:
            idle, backs = idle + 1, backs + 1
            step = 0.25 * step if backs < 4 else soft(problem.turned, kept.f).f - g  # a sweep never lowers D
            if idle >= 50:
                break
            continue
        g, best, kept, backs = g + step, dual, here, 0
        slope = b - here.m
        drift = float(slope.abs().sum())
        if drift >= 0.5:
            step = soft(problem.turned, here.f).f - g
            continue
        idle, smallest = (0, drift) if drift < 0.9 * smallest else (idle + 1, smallest)
        need = max(effort.share * (effort.known + dual), floor)
        u, left = _newton_move(here, a, slope - slope.sum() * b, 0.5 * need / problem.eps)
        gap, far = 0.5 * problem.eps * float(slope @ u), float(u.abs().max())
        step = problem.eps * u * min(1.0, 4.0 / max(far, 1e-300))
        arrived = gap * min(far, 1.0) <= need and (drift <= enough or far <= enough)
        if arrived or idle >= 50 or (idle >= 8 and gap <= 16.0 * floor):
            break
    return Pair(kept.f, g + step, drift)


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


def _annealed(problem: Problem) -> Tensor:
    """A rough potential on y at the blur, from blurs as wide as the clouds on down; wide ones see heaps of points."""
    f = g = torch.zeros(0)
    step, before = 1.0, None
    for now, blurs in _levels(problem):
        if before is None:
            f = torch.zeros(len(now.x), dtype=torch.float64, device=now.x.device)
            g = torch.zeros(len(now.y), dtype=torch.float64, device=now.x.device)
        else:
            f, g = _lifted(now, before, f, g)
        f, g = _lowered(now, blurs, f, g, step)
        before, step = now._replace(blur=blurs[-1] ** (1.0 / now.p)) if blurs else before, 1.5
    return g


def _lowered(problem: Problem, blurs: list[float], f: Tensor, g: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Potentials taken through one temperature after another: a sweep each, and short Newton steps on a plane."""
    for eps in blurs:
        now = problem._replace(blur=eps ** (1.0 / problem.p))
        g = g + step * (soft(now.turned, f).f - g)
        if problem.x.shape[1] <= NEAR_DIMS:
            pair = solve_newton(now, ROUGH if len(now.x) <= MANY else FIRM, g)
            g = g if pair is None else pair.g
        f = f + step * (soft(now, g).f - f)
        step = 1.5
    return f, g


ROUGH, FIRM, MANY = Effort(0.3, 4, 1.0, 0.0), Effort(0.05, 8, 1.0, 0.0), 2000
"""How far the potentials of one blur are brought before the next narrower one: a few short Newton steps; some more
between more than `MANY` points, where what is left undone costs much more at the end."""

FEWEST = 200
"""A wide blur sees heaps of two, four, eight ... points, but at least so many of them."""


FAR = 0.2
"""Share of mass in the wrong place from which a kept potential is brought near at wider blurs first."""


def _approached(problem: Problem, g: Tensor) -> tuple[Tensor, Plan | None]:
    """A kept potential and its plan; one that is far off is brought near at wider blurs, or annealed if none helps."""
    first, b = plan_of(problem, g), problem.log_b.exp()
    plan, above = first, 0
    while plan is not None and float((b - plan.m).abs().sum()) > FAR:
        above += 2
        if above > 6:
            return _annealed(problem), None
        plan = plan_of(problem._replace(blur=problem.blur / NARROWER**above), g)
    if above == 0:
        return g, first
    blurs = [(problem.blur / NARROWER**k) ** problem.p for k in range(above, 0, -1)]
    f = soft(problem, g, eps=blurs[0]).f
    return _lowered(problem, blurs, f, g, 1.0)[1], None


def _levels(problem: Problem) -> list[tuple[Problem, list[float]]]:
    """The problem between heaps of points, large ones first, with the temperatures too wide to tell; itself last."""
    blurs = temperatures(problem)
    if problem.rows is None or problem.rows_y is None:
        return [(problem, blurs)]
    found = []
    size = 2 ** max(int(math.log2(min(len(problem.x), len(problem.y)) / FEWEST)), 0)
    # Where the plan between all points may be too large to hold, plans between heaps of few are the next best.
    least, seen = (8, 2.0) if len(problem.x) * len(problem.y) <= STORED else (2, 1.0)
    while size >= least and blurs:
        heaps, extent = _heaps(problem, size)
        wide = sum(eps >= (seen * extent) ** problem.p for eps in blurs)
        if wide:
            found.append((heaps, blurs[:wide]))
            blurs = blurs[wide:]
        size //= 2
    return [*found, (problem, blurs)]


def _heaps(problem: Problem, size: int) -> tuple[Problem, float]:
    """The problem between heaps of `size` points, neighbours in the order of a k-d tree, and their extent."""
    assert problem.rows is not None and problem.rows_y is not None
    x, log_a, extent = _heaped(problem.rows, problem.log_a, size)
    y, log_b, extent_y = _heaped(problem.rows_y, problem.log_b, size)
    rows, rows_y = (blocked(z, torch.arange(len(z))) for z in (x, y))
    heaps = problem._replace(x=x, y=y, log_a=log_a, log_b=log_b, rows=rows, rows_y=rows_y)
    return heaps, max(extent, extent_y)


def _heaped(rows: Rows, log_a: Tensor, size: int) -> tuple[Tensor, Tensor, float]:
    """(H, D) means of every `size` points, the log of their mass, and how far points are from them."""
    count, a = -(-len(rows.x) // size), log_a[rows.order].exp()
    rest = count * size - len(a)
    points = torch.cat([rows.x, rows.x[-1:].expand(rest, -1)]).view(count, size, -1)
    mass = torch.cat([a, a.new_zeros(rest)]).view(count, size)
    whole = mass.sum(1, keepdim=True)
    share = torch.where(whole > 0, mass / whole.clamp_min(1e-300), 1.0 / size).to(points.dtype)
    means = (points * share[..., None]).sum(1)
    apart = (points - means[:, None]).square().sum(2)  # (H, size)
    return means, log_weight(whole[:, 0]), float((apart * mass).sum().sqrt())


def _lifted(problem: Problem, heaps: Problem, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials of larger heaps as potentials of smaller ones, or of points: a soft minimum is known everywhere."""
    there = soft(heaps.turned._replace(x=problem.y, rows=problem.rows_y), f).f
    return soft(heaps._replace(x=problem.x, rows=problem.rows), g).f, there


def _reachable(problem: Problem) -> float:
    """The marginal error that rounding leaves: an exponent C / eps is off by its size times the machine epsilon."""
    radius = float(problem.x.square().sum(1).mean().sqrt() + problem.y.square().sum(1).mean().sqrt())
    return torch.finfo(problem.x.dtype).eps * (4.0 + radius**problem.p / (2.0 * problem.eps))


def _self_annealed(problem: Problem) -> Tensor:
    """A rough potential of a cloud onto itself, as `_annealed`."""
    p, before = torch.zeros(0), None
    for now, blurs in _levels(problem):
        if before is None:
            p = torch.zeros(len(now.x), dtype=torch.float64, device=now.x.device)
        else:
            p, _ = _lifted(now, before, p, p)
        for eps in blurs:
            p = 0.5 * (p + soft(now, p, eps=eps).f)
        before = now._replace(blur=blurs[-1] ** (1.0 / now.p)) if blurs else before
    return p


def solve_self(problem: Problem, effort: Effort, start: Tensor | None = None) -> tuple[Tensor, Soft]:
    """The one potential of a cloud's transport onto itself, and its plan, by averaged updates p <- p + r / 2.

    r = softmin p - p; every such update halves the error, and accelerated ones take off more. What the dual misses is
    at most sum_i a_i r_i^2 / (2 eps), to second order.
    """
    p = start
    if p is None:
        p = _self_annealed(problem)
    a, enough = problem.log_a.exp(), max(effort.tolerance, _reachable(problem))
    floor, pairs, last = torch.finfo(problem.x.dtype).eps * problem.eps, None, None
    for _ in range(effort.iterations - 1):
        r = soft(problem, p).f - p
        drift = float(a @ (-r / problem.eps).clamp(-50.0, 50.0).expm1().abs())
        gap = 0.5 * float(a @ r.square()) / problem.eps
        if last is not None and drift < 1.0:
            pairs = _with(pairs, p - last[0], r - last[1], a)
        last = (p, r)
        p = p + _accelerated(r, pairs, a, 0.5)
        if drift <= enough and gap <= max(effort.share * effort.known, floor):
            break
    return p, soft(problem, p, want_grad=True)
