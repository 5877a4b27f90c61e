"""Entropic transport by Newton steps on its dual: plans, sparse where compiled, and conjugate gradients on them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses import _compiled
from dmviz.losses._entropic import FLOOR, Effort, Pair, Problem, exponent, reachable, soft, temperatures
from dmviz.losses._pairs import DIRECT, squares

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
    z, _ = exponent(problem.x, problem.y, h, problem.eps, problem.p)
    peak = z.amax(1, keepdim=True)
    share = z.sub_(peak).clamp_min_(FLOOR).exp_()
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


def solve_newton(problem: Problem, effort: Effort, g: Tensor, plan: Plan | None = None) -> Pair | None:
    """Potentials by Newton steps on the dual from a start, sweeps while that is far off; None where it does not fit.

    D has slope s = b - m in g and Hessian -(diag(m) - P^T diag(a) P) / eps, P the rows of the plan as shares: along
    eps u, with u from conjugate gradients, D gains eps s . u / 2. What a full step leaves is of third order, about
    max |u| of that; where this is below `share` of the value, the last step's end is the answer. `plan` is that of the
    start, where it is known.
    """
    a, b, unit = problem.log_a.exp(), problem.log_b.exp(), torch.finfo(problem.x.dtype).eps
    enough = max(effort.tolerance, reachable(problem))
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
