r"""Transport on a circle of circumference 1, for many circles at once; places are float64 in [0, 1].

The quantile function of a law on the circle goes on beyond its ends, one turn higher: $Q(u + 1) = Q(u) + 1$. Then
$W_p^p = \min_s \int_0^1 |Q_\mu(u) - Q_\nu(u + s)|^p du$, and the integral is convex in the shift s. For p = 1 it is the
integral of $|F - G - m|$ along the circle, m its median.
"""

import math

import torch
from torch import Tensor

from dmviz.losses._lines import Pull, Staircase, accurate
from dmviz.losses._sorting import ranked

_HALVINGS = 46  # of an interval of length 2, down to 3e-14 of the circle
_NOISE = 1e-14  # masses below it are rounding errors


def pull_on_circles(t: Tensor, weight: Tensor | None, s: Tensor, target_weight: Tensor | None, power: int) -> Pull:
    """Exact pull of targets at s (R, M) on particles at t (R, N): minus derivative over mass, p = 1 or 2."""
    mass = _written(t, weight)
    if power == 2:
        goal, within = goals(t, weight, Staircase.of(s, target_weight))
        gap = goal - t
        return Pull(torch.where(mass > 0, 2 * gap, 0.0), (mass * gap.square()).sum(-1) + within)
    order, arc, flow = _flows(t, mass, s, _written(s, target_weight))
    before, after = flow.roll(1, -1), flow
    # |after| - |before| over their difference, which is the particle's mass, without a difference of near numbers.
    slope = (before + after) / (before.abs() + after.abs()).clamp_min(torch.finfo(t.dtype).tiny)
    v = torch.empty_like(slope).scatter_(-1, order, slope)[:, : t.shape[-1]]
    return Pull(torch.where(mass > 0, v, 0.0), (arc * flow.abs()).sum(-1))


def power_on_circles(t: Tensor, weight: Tensor | None, s: Tensor, target_weight: Tensor | None, power: int) -> Tensor:
    """(R,) $W_p^p$ between laws at t (R, N) and s (R, M), any masses, p = 1 or 2; differentiable in t.

    >>> t, s = torch.tensor([[0.1]], dtype=torch.float64), torch.tensor([[0.9]], dtype=torch.float64)
    >>> power_on_circles(t, None, s, None, 1)  # across 0
    tensor([0.2000], dtype=torch.float64)
    """
    mass = _written(t, weight)
    if power == 2:
        goal, within = goals(t, weight, Staircase.of(s, target_weight))
        return (mass * (goal - t).square()).sum(-1) + within
    _, arc, flow = _flows(t, mass, s, _written(s, target_weight))
    return (arc * flow.abs()).sum(-1)


def power_to_even(t: Tensor, weight: Tensor | None) -> Tensor:
    r"""(R,) $W_2^2$ from laws at t (R, N) to the even law on the circle, in closed form.

    The best shift is the mean of Q(u) - u, so what remains is its variance.
    """
    stairs = Staircase.of(t, weight)
    middle = (stairs.level[:, 1:] + stairs.level[:, :-1]) / 2
    mean = stairs.area[:, -1]
    product = (stairs.level.diff(dim=-1) * stairs.y * middle).sum(-1)
    return stairs.square - 2 * product + 1 / 3 - (mean - 0.5).square()


def _written(t: Tensor, weight: Tensor | None) -> Tensor:
    """(N,) masses."""
    return t.new_full(t.shape[-1:], 1.0 / t.shape[-1]) if weight is None else weight.to(t)


def _flows(t: Tensor, a: Tensor, s: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Order of all N + M places, (R, N + M) length of the arc after each, and the mass that goes along it for p = 1."""
    places = torch.cat((t, s), dim=-1)
    order = ranked(places)
    places = places.gather(-1, order)
    arc = torch.cat((places.diff(dim=-1), places[:, :1] + 1 - places[:, -1:]), dim=-1)
    excess = torch.cat((a, -b))[order].cumsum(-1)  # F - G after each place
    excess = excess - excess[:, -1:]  # exactly 0 across the start, whatever rounding left
    flow = excess - _median(excess, arc.detach())
    return order, arc, torch.nn.functional.hardshrink(flow, _NOISE)


def _median(level: Tensor, arc: Tensor) -> Tensor:
    """(R, 1) median of levels (R, K) along arcs of these lengths."""
    order = ranked(level)
    reached = arc.gather(-1, order).cumsum(-1)
    middle = (reached < reached[:, -1:] / 2).sum(-1, keepdim=True)
    return level.gather(-1, order.gather(-1, middle.clamp_max(level.shape[-1] - 1)))


def goals(t: Tensor, weight: Tensor | None, target: Staircase) -> tuple[Tensor, Tensor]:
    """(R, N) where each particle should go, in turns, and (R,) the cost that no map can close; p = 2."""
    t = t.detach()
    order = ranked(t)
    stairs = Staircase(t.gather(-1, order), None if weight is None else weight.to(accurate(t))[order])
    shift = best_shift(stairs, target)
    u = stairs.level + shift
    mass = stairs.level.diff(dim=-1)
    mean = _lifted_area(target, u).diff(dim=-1) / mass.clamp_min(torch.finfo(t.dtype).tiny)
    # A mean lies between the quantiles at both ends, whatever rounding makes of a tiny mass.
    ends = _lifted(target, u)
    mean = torch.minimum(torch.maximum(mean, ends[:, :-1]), ends[:, 1:])
    within = _lifted_square(target, shift) - (mass * mean.square()).sum(-1)
    return torch.empty_like(mean).scatter_(-1, order, mean), within.clamp_min(0)


def best_shift(x: Staircase, y: Staircase) -> Tensor:
    r"""(R, 1) the s that minimises $\int_0^1 |Q_x(u) - Q_y(u + s)|^2 du$, by halving where its slope changes sign.

    The slope sums, over the places where Q_y jumps, by how much a jump taken earlier costs more; it needs Q_x there.
    """
    if x.mass is not None and y.mass is None:
        return -best_shift(y, x)  # equal masses need no search
    ahead = torch.cat((y.y[:, 1:], y.y[:, :1] + 1), dim=-1)
    jump, both, level = ahead - y.y, ahead + y.y, y.level[:, 1:]
    low, high = torch.full_like(y.y[:, :1], -1.0), torch.full_like(y.y[:, :1], 1.0)
    n = x.y.shape[-1]
    even = x.mass is None and y.mass is None and n == y.y.shape[-1]
    for _ in range(math.ceil(math.log2(n)) + 4 if even else _HALVINGS):
        middle = (low + high) / 2
        slope = (jump * (both - 2 * _lifted(x, level - middle))).sum(-1, keepdim=True)
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    middle = (low + high) / 2
    return (middle * n).round() / n if even else middle  # equal masses are matched one to one


def _turns(u: Tensor) -> tuple[Tensor, Tensor]:
    turns = u.floor()
    return turns, u - turns


def _lifted(law: Staircase, u: Tensor) -> Tensor:
    """(R, K) quantiles at any levels u (R, K)."""
    turns, rest = _turns(u)
    return law.y.gather(-1, law.step_at(rest)) + turns


def _lifted_area(law: Staircase, u: Tensor) -> Tensor:
    r"""(R, K) $\int_0^u Q$ at any levels u (R, K)."""
    turns, rest = _turns(u)
    whole = turns * law.area[:, -1:] + turns * (turns - 1) / 2
    return whole + law.area_at(rest, law.step_at(rest)) + turns * rest


def _lifted_square(law: Staircase, start: Tensor) -> Tensor:
    r"""(R,) $\int Q^2$ over one turn from level `start` (R, 1)."""
    turns, rest = _turns(start)
    beyond = 2 * law.area_at(rest, law.step_at(rest)) + (2 * turns + 1) * rest
    return law.square + (2 * turns * law.area[:, -1:] + turns.square() + beyond)[:, 0]
