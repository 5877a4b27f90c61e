r"""Transport on a line, for many lines at once.

With quantile functions $Q_\mu$ and $Q_\nu$, $W_p^p = \int_0^1 |Q_\mu(u) - Q_\nu(u)|^p du$. Particle i, in rising
order, owns the levels u between the mass before it and the mass up to it; what it must do depends on the target's
quantiles over those levels alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses._sorting import in_order, places, ranked


def accurate(x: Tensor) -> torch.dtype:
    """float64, except on devices that have none."""
    return torch.float32 if x.device.type == "mps" else torch.float64


@dataclass(frozen=True, eq=False)
class Staircase:
    """Quantile functions of one law on R lines. A quantile function is a staircase: flat over the mass of a point."""

    y: Tensor  # (R, M) points in rising order
    mass: Tensor | None  # (R, M) their masses, float64; None = uniform

    @classmethod
    def of(cls, projected: Tensor, weight: Tensor | None) -> "Staircase":
        """From (R, M) projections in any order and (M,) masses."""
        if weight is None:
            return cls(in_order(projected), None)
        order = ranked(projected)
        return cls(projected.gather(-1, order), weight.to(accurate(projected))[order])

    def rows(self, part: slice) -> "Staircase":
        return Staircase(self.y[part], None if self.mass is None else self.mass[part])

    @cached_property
    def level(self) -> Tensor:
        """(R, M + 1) mass before each point; the last entry is 1."""
        if self.mass is None:
            return even_levels(self.y.shape[-1], self.y).expand(len(self.y), -1)
        return levels(self.mass)

    @cached_property
    def area(self) -> Tensor:
        r"""(R, M + 1) $\int_0^u Q$ at each `level`."""
        return _started((self.level.diff(dim=-1) * self.y).cumsum(-1))

    @cached_property
    def square(self) -> Tensor:
        r"""(R,) $\int_0^1 Q^2$."""
        return (self.level.diff(dim=-1) * self.y.to(self.level.dtype).square()).sum(-1)

    def step_at(self, u: Tensor) -> Tensor:
        """(R, K) which point holds level u (R, K)."""
        # Uniform levels need no search.
        found = (u * self.y.shape[-1]).long() if self.mass is None else places(self.level, u, right=True) - 1
        return found.clamp_(0, self.y.shape[-1] - 1)

    def area_at(self, u: Tensor, step: Tensor) -> Tensor:
        r"""(R, K) $\int_0^u Q$ at levels u (R, K), given `step_at(u)`."""
        return self.area.gather(-1, step) + (u - self.level.gather(-1, step)) * self.y.gather(-1, step)

    def means(self, u: Tensor) -> Tensor:
        """(R, N) mean quantile between neighbouring levels u (R, N + 1)."""
        step = self.step_at(u)
        mean = self.area_at(u, step).diff(dim=-1) / u.diff(dim=-1).clamp_min(torch.finfo(u.dtype).tiny)
        # A mean lies between the quantiles at both ends, whatever rounding makes of a tiny mass.
        ends = self.y.gather(-1, step).to(u.dtype)
        return torch.minimum(torch.maximum(mean, ends[..., :-1]), ends[..., 1:])


def levels(mass: Tensor) -> Tensor:
    """(R, N + 1) running sums of (R, N) masses from 0 to exactly 1."""
    total = _started(mass.cumsum(-1))
    return total / total[..., -1:]


def even_levels(n: int, like: Tensor) -> Tensor:
    """(1, N + 1) the levels of N equal masses, float64."""
    return (torch.arange(n + 1, device=like.device).to(accurate(like)) / n)[None]


def _started(sums: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(sums[..., :1]), sums), dim=-1)


class Pull(NamedTuple):
    """What transport on R lines says: minus the derivative of $W_p^p$ over each particle's mass, and its value."""

    v: Tensor  # (R, N), in the order of the particles
    value: Tensor  # (R,)


def pull_on_lines(x: Tensor, weight: Tensor | None, target: Staircase, power: int, means: Tensor | None = None) -> Pull:
    """Exact pull of `target` on particles at x (R, N), with (N,) masses.

    `means` are the target's mean quantiles over N equal masses, where they are known from an earlier step.
    """
    order = ranked(x)
    if weight is None and target.mass is None and target.y.shape[-1] == x.shape[-1]:
        gap = torch.empty_like(x).scatter_(-1, order, target.y).sub_(x)  # (R, N)
        # Masses of 1/N on both sides: each particle has one partner.
        return Pull(2 * gap, _mean(gap.square())) if power == 2 else Pull(gap.sign(), _mean(gap.abs()))
    mass, u = _masses(x, weight, order)
    if power == 1:
        v, value = _pull_1(x.gather(-1, order), u, mass, target)
        return Pull(torch.empty_like(x).scatter_(-1, order, v.to(x.dtype)), value)
    goal = target.means(u) if means is None else means  # (R, N)
    gap = torch.empty_like(x).scatter_(-1, order, goal.to(x.dtype)).sub_(x)
    # What no map can close: a particle matched with several points, spread about their mean.
    within = (target.square - (mass * goal.square()).sum(-1)).clamp_min(0)
    if weight is None:
        return Pull(2 * gap, _mean(gap.square()) + within)
    moved = (weight * gap.square()).sum(-1, dtype=accurate(x))
    return Pull(torch.where(weight > 0, 2 * gap, 0.0), moved + within)


def _masses(x: Tensor, weight: Tensor | None, order: Tensor) -> tuple[Tensor, Tensor]:
    """(R or 1, N) masses in order and (R, N + 1) levels between them, float64."""
    n = x.shape[-1]
    if weight is None:
        return torch.full((1, n), 1.0 / n, dtype=accurate(x), device=x.device), even_levels(n, x).expand(len(x), -1)
    mass = weight.to(accurate(x))[order]
    return mass, levels(mass)


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(-1, dtype=accurate(rows))


def _pull_1(x: Tensor, u: Tensor, mass: Tensor, target: Staircase) -> tuple[Tensor, Tensor]:
    """For p = 1 and sorted x: each particle counts the mass it owes to the right against that to the left."""
    begin, end = u[..., :-1], u[..., 1:]
    area = target.area_at(u, target.step_at(u))
    # Up to level `low` of its mass a particle serves points left of it, from `high` on points right of it.
    left = places(target.y, x)
    low, low_area = _cut(target, left, u, area)
    high, high_area = low, low_area
    if x.device.type != "cpu" or (target.y.gather(-1, left.clamp(max=target.y.shape[-1] - 1)) == x).any():
        high, high_area = _cut(target, places(target.y, x, right=True), u, area)
    owed = (low - begin) - (end - high)
    cost = x * owed - (low_area - area[..., :-1]) + (area[..., 1:] - high_area)
    pull = owed.neg() / mass.clamp_min(torch.finfo(u.dtype).tiny)
    return torch.where(mass > 0, pull.clamp(-1, 1), 0.0), cost.sum(-1)


def _cut(target: Staircase, step: Tensor, u: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    r"""(R, N) level before point `step`, held between each particle's own levels u, and $\int_0 Q$ up to there."""
    begin, end = u[..., :-1], u[..., 1:]
    level = target.level.gather(-1, step)
    inside = torch.where(level < end, target.area.gather(-1, step), area[..., 1:])
    return torch.clamp(level, begin, end), torch.where(level > begin, inside, area[..., :-1])


def power_on_lines(x: Tensor, weight: Tensor | None, y: Tensor, target_weight: Tensor | None, power: float) -> Tensor:
    r"""(R,) $W_p^p$ between rows of x (R, N) and of y (R, M), any sizes and masses; differentiable in x, any p >= 1.

    Exact by merging the levels of both: between two neighbouring levels one particle meets one target point.

    >>> x, y = torch.tensor([[0.0, 1.0, 3.0, 7.0]]), torch.tensor([[2.0, 2.5, 5.0, 10.0]])
    >>> power_on_lines(x, None, y, None, 2)
    tensor([4.8125], dtype=torch.float64)
    """
    order, order_y = ranked(x), ranked(y)
    x, y = x.gather(-1, order), y.gather(-1, order_y)
    if weight is None and target_weight is None and x.shape == y.shape:
        return _mean(_powered(x - y, power))
    a = _levels_of(weight, order, x)
    b = _levels_of(target_weight, order_y, y)
    merged = torch.cat((a[:, 1:], b[:, 1:]), dim=-1).sort(dim=-1).values  # (R, N + M)
    i = torch.searchsorted(a[:, 1:].contiguous(), merged).clamp_(max=x.shape[-1] - 1)
    j = torch.searchsorted(b[:, 1:].contiguous(), merged).clamp_(max=y.shape[-1] - 1)
    return (_started(merged).diff(dim=-1) * _powered(x.gather(-1, i) - y.gather(-1, j), power)).sum(-1)


def _levels_of(weight: Tensor | None, order: Tensor, like: Tensor) -> Tensor:
    if weight is None:
        return even_levels(like.shape[-1], like).expand(len(like), -1)
    return levels(weight.detach().to(accurate(like))[order])


def _powered(gap: Tensor, power: float) -> Tensor:
    return gap.square() if power == 2 else gap.abs().pow(power) if power > 1 else gap.abs()
