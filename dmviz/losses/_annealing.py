"""Where an entropic solve begins: potentials taken from blurs as wide as the clouds down to the one asked for."""

import math

import torch
from torch import Tensor

from dmviz.losses._compiled import NEAR_DIMS, Rows, blocked
from dmviz.losses._entropic import NARROWER, Effort, Problem, log_weight, soft, temperatures
from dmviz.losses._newton import STORED, Plan, plan_of, solve_newton


def annealed(problem: Problem) -> Tensor:
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


def approached(problem: Problem, g: Tensor) -> tuple[Tensor, Plan | None]:
    """A kept potential and its plan; one that is far off is brought near at wider blurs, or annealed if none helps."""
    first, b = plan_of(problem, g), problem.log_b.exp()
    plan, above = first, 0
    while plan is not None and float((b - plan.m).abs().sum()) > FAR:
        above += 2
        if above > 6:
            return annealed(problem), None
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


def self_annealed(problem: Problem) -> Tensor:
    """A rough potential of a cloud onto itself, as `annealed`."""
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
