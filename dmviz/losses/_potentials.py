"""The potentials of entropic transport, between two clouds and of one onto itself, from cold or from those kept."""

import math

import torch
from torch import Tensor

from dmviz.losses._annealing import annealed, approached, self_annealed
from dmviz.losses._entropic import Effort, Pair, Pairs, Problem, Soft, reachable, soft
from dmviz.losses._newton import solve_newton


def solve_pair(problem: Problem, effort: Effort, g: Tensor | None = None, pairs: Pairs | None = None) -> Pair:
    r"""Potentials of the transport from x to y: annealed, then accelerated sweeps until the dual has arrived.

    From a potential `g` on y there is no annealing. A sweep is g -> G(g), both half-steps; r = G(g) - g. With f the
    soft minimum of g the dual is $$ D(g) = \sum_i a_i f_i + \sum_j b_j g_j, $$ a lower bound (the plan's mass is 1),
    and its slope is b less the marginal on y. Around the best potential D is a parabola, so that a step `d` onto it
    gains half of slope . d: where this is below `share` of the value, the step is taken and the value has arrived.
    A step after which D is lower is taken back, and what led to it is forgotten.
    """
    back, b, a = problem.turned, problem.log_b.exp(), problem.log_a.exp()
    g = annealed(problem) if g is None else g
    enough, unit = max(effort.tolerance, reachable(problem)), torch.finfo(problem.x.dtype).eps
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
            pairs = remembered(pairs, g - last[0], r - last[1], b)
        last, best = (g, r), (dual, g, r)
        step = accelerated(r, pairs, b) if drift < 1.0 else r
        gap = 0.5 * float(slope @ step)
        g = g + step
        value = effort.known + dual + gap
        if idle >= 50 or (drift <= enough and abs(gap) <= max(effort.share * value, floor)):
            break
    return Pair(f, g, drift, pairs)


KEPT = 8
"""Pairs that an accelerated step looks at."""


def remembered(pairs: Pairs | None, move: Tensor, fall: Tensor, b: Tensor) -> Pairs:
    """One pair more, the oldest beyond `KEPT` left out; each scaled to a fall of 1."""
    size = float((b @ fall.square()).sqrt())
    if not size > 0:
        return pairs or Pairs(move[None, :][:0], fall[None, :][:0])
    new = Pairs(move[None, :] / size, fall[None, :] / size)
    if pairs is None:
        return new
    return Pairs(*(torch.cat([n, o[: KEPT - 1]]) for n, o in zip(new, pairs, strict=True)))


def accelerated(r: Tensor, pairs: Pairs | None, b: Tensor, pace: float = 1.0) -> Tensor:
    """Anderson's step: `pace` r where nothing is known; where the falls explain r, the moves that undo it."""
    if pairs is None or not len(pairs.falls):
        return pace * r
    weighed = pairs.falls * b
    gram = weighed @ pairs.falls.T
    gram = gram + 1e-10 * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    part: Tensor = torch.linalg.solve(gram, weighed @ r)
    undo: Tensor = part @ (pairs.moves + pace * pairs.falls)
    return pace * r - undo


def solve(problem: Problem, effort: Effort, g: Tensor | None = None, pairs: Pairs | None = None) -> Pair:
    """Potentials from those that a flow kept, or annealed: by Newton steps where the plan can be held, else sweeps."""
    g, plan = (annealed(problem), None) if g is None else approached(problem, g)
    return solve_newton(problem, effort, g, plan) or solve_pair(problem, effort, g, pairs)


def solve_self(problem: Problem, effort: Effort, start: Tensor | None = None) -> tuple[Tensor, Soft]:
    """The one potential of a cloud's transport onto itself, and its plan, by averaged updates p <- p + r / 2.

    r = softmin p - p; every such update halves the error, and accelerated ones take off more. What the dual misses is
    at most sum_i a_i r_i^2 / (2 eps), to second order.
    """
    p = start
    if p is None:
        p = self_annealed(problem)
    a, enough = problem.log_a.exp(), max(effort.tolerance, reachable(problem))
    floor, pairs, last = torch.finfo(problem.x.dtype).eps * problem.eps, None, None
    for _ in range(effort.iterations - 1):
        r = soft(problem, p).f - p
        drift = float(a @ (-r / problem.eps).clamp(-50.0, 50.0).expm1().abs())
        gap = 0.5 * float(a @ r.square()) / problem.eps
        if last is not None and drift < 1.0:
            pairs = remembered(pairs, p - last[0], r - last[1], a)
        last = (p, r)
        p = p + accelerated(r, pairs, a, 0.5)
        if drift <= enough and gap <= max(effort.share * effort.known, floor):
            break
    return p, soft(problem, p, want_grad=True)
