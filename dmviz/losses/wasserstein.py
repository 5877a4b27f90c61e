"""Exact transport: W1 or the square of W2, by assignment or by the network simplex."""

from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._lines import accurate, even_levels, levels
from dmviz.losses._slicing import Slices, centre_of, sliced_power, sliced_velocity
from dmviz.losses._sorting import ranked
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

LARGEST = 3000  # points a side; 3,000 take about four seconds and 150 MB a step
_ASSIGNED = 512  # up to here an assignment needs no library that takes seconds to load
_PIVOTS = 10**9  # in effect no limit: the simplex ends at the optimum long before


@entry
class Wasserstein:
    r"""Send every particle to its place in the cheapest of all plans, exactly.

    $$ W_p^p(\mu, \nu) = \min_{P \ge 0,\ P 1 = a,\ P^\top 1 = b}\ \sum_{ij} P_{ij}\, |x_i - y_j|^p $$

    For x (N, D) with weights a and y (M, D) with weights b, and p = 1 or 2; without a factor 1/2; unit: length^p. With
    p = 2 a particle moves straight to the mean of the points its mass goes to, $v_i = 2 (\sum_j P_{ij} y_j / a_i -
    x_i)$, so Euler with a step of 1/2 arrives at once where N = M. With p = 1 it moves at speed 1 towards its point,
    however far that is, or stays if they have met; $v_i = \sum_j P_{ij} (y_j - x_i) / (|y_j - x_i| a_i)$.

    Fails: time grows with about the cube of the number of points, and the table of all distances fills memory, so
    more than 3,000 points a side are refused (on a line there is no limit: sorting finds the plan). Where several
    plans are equally cheap, the velocity is that of one of them; for p = 1 that is common, and the plan may jump from
    step to step. Few particles against many points settle on means of groups of points (medians for p = 1), at a cost
    that stays above zero; with p = 1 they tremble about their goal by the length of a step.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    >>> Wasserstein()(here, Cloud(there), seeded(0)).item()  # (2^2 + 1^2) / 2, straight up
    2.5

    ```
    """

    title = "Exact Wasserstein"
    family = "transport"
    source = ("villani2009", "bonneel2011", "flamary2021")
    needs = "samples"
    cost = "about N^3 time, N M memory, at most 3,000 points a side; on a line N log N and no limit"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )

    p: Annotated[int, Range(1, 2, help="Cost of moving: 2 squares distances, 1 takes them as they are")] = 2

    @property
    def degree(self) -> float:
        return float(self.p)

    @property
    def root(self) -> float:
        return float(self.p)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if target.dim == 1:
            return sliced_power(x, target, _line(), weight, self.p)
        plan = optimal_plan(x, weight, target, self.p)
        gap = x.index_select(0, plan.i) - target.x.detach().index_select(0, plan.j)  # (K, D)
        # |z| has no gradient at 0, where a particle has arrived: `norm` uses 0 there.
        cost = gap.square().sum(1) if self.p == 2 else gap.norm(dim=1)
        return (plan.mass * cost.to(plan.mass.dtype)).sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Twice the way to the mean of the points that the plan sends a particle to; the mean direction for p = 1."""
        if target.dim == 1:
            return Velocity(*sliced_velocity(x, target, _line(), weight, self.p))
        plan = optimal_plan(x, weight, target, self.p)
        gap = (target.x.index_select(0, plan.j) - x.index_select(0, plan.i)).to(plan.mass.dtype)  # (K, D)
        if self.p == 2:
            cost, way = gap.square().sum(1), 2 * gap
        else:
            cost = gap.norm(dim=1)
            way = gap / torch.where(cost > 0, cost, 1.0)[:, None]
        pull = torch.zeros_like(x, dtype=gap.dtype).index_add_(0, plan.i, plan.mass[:, None] * way)
        sent = torch.zeros_like(pull[:, 0]).index_add_(0, plan.i, plan.mass)
        # A particle without mass is sent nowhere.
        v = pull / torch.where(sent > 0, sent, 1.0)[:, None]
        return Velocity(v.to(x.dtype), (plan.mass * cost).sum().to(x.dtype))

    def plan(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> "Plan":
        """The pairs of particle and target point that carry mass, and how much: what a page draws as lines."""
        if target.dim == 1:
            return line_plan(x.detach()[:, 0], weight, target.x.detach()[:, 0], target.weight)
        return optimal_plan(x, weight, target, self.p)


class Plan(NamedTuple):
    """The pairs (i, j) of a transport plan that carry mass: at most N + M - 1 of them."""

    i: Tensor  # (K,) int64
    j: Tensor  # (K,) int64
    mass: Tensor  # (K,) sums to 1


def optimal_plan(x: Tensor, weight: Tensor | None, target: Cloud, power: int = 2) -> Plan:
    """A cheapest plan for the cost |x - y|^power; power 1 or 2."""
    x, y = x.detach(), target.x.detach()
    if max(len(x), len(y)) > LARGEST:
        raise ValueError(
            f"Exact Wasserstein: at most {LARGEST:,} points a side, got {len(x):,} and {len(y):,}: an exact plan takes "
            "a time of their number cubed and memory for all pairs. Take fewer points, or the Sinkhorn divergence."
        )
    centre, wide = centre_of(y), accurate(x)
    far = torch.cdist(_wide(x - centre), _wide(y - centre), compute_mode="donot_use_mm_for_euclid_dist")  # (N, M)
    if not torch.isfinite(far).all():  # the simplex would not end; a run that has blown up ends by its NaN
        every = torch.arange(len(x), device=x.device)
        return Plan(every, torch.zeros_like(every), torch.full_like(every, torch.nan, dtype=wide))
    table = (far.square_() if power == 2 else far).numpy()
    if weight is None and target.weight is None and len(x) == len(y) <= _ASSIGNED:
        i, j = linear_sum_assignment(table)
        mass = np.full(len(i), 1.0 / len(i))
    else:
        i, j, mass = simplex_plan(table, weight, target.weight)
    at, to = (torch.from_numpy(part).to(x.device) for part in (i, j))
    return Plan(at, to, torch.from_numpy(mass).to(x.device, wide))


def line_plan(x: Tensor, weight: Tensor | None, y: Tensor, target_weight: Tensor | None) -> Plan:
    """The plan on a line, cheapest for every convex cost: both sides in order, mass passed on from the lowest.

    Levels are merged: between two neighbouring ones a single particle meets a single point.
    """
    at, to = ranked(x[None])[0], ranked(y[None])[0]
    a, b = (
        even_levels(len(z), z)[0] if w is None else levels(w.detach().to(accurate(z))[order][None])[0]
        for z, w, order in ((x, weight, at), (y, target_weight, to))
    )
    if weight is None and target_weight is None and len(x) == len(y):
        return Plan(at, to, a.diff())
    merged = torch.cat((a[1:], b[1:])).sort().values  # (N + M,)
    i = torch.searchsorted(a[1:].contiguous(), merged).clamp_(max=len(x) - 1)
    j = torch.searchsorted(b[1:].contiguous(), merged).clamp_(max=len(y) - 1)
    mass = merged.diff(prepend=merged.new_zeros(1))
    some = mass > 0
    return Plan(at[i[some]], to[j[some]], mass[some])


def simplex_plan(table: Any, weight: Tensor | None, target_weight: Tensor | None) -> tuple[Any, Any, Any]:
    """The pairs that carry mass under a table of costs (N, M), and how much, as numpy arrays."""
    import ot  # takes seconds, which a page that only lists the losses, or a small assignment, need not spend

    n, m = table.shape
    a, b = _masses(n, weight), _masses(m, target_weight)
    if weight is None and target_weight is None and n == m:
        a, b = np.ones(n), np.ones(m)  # whole numbers: the plan is exactly a permutation
    plan, log = ot.emd(a, b, table, numItermax=_PIVOTS, log=True)
    if log["warning"] is not None:
        raise ValueError(f"Exact Wasserstein: no optimal plan was found ({log['warning']}). Take fewer points.")
    i, j = np.nonzero(plan)
    return i, j, plan[i, j] / a.sum()


def _line() -> Slices:
    return Slices.even(torch.ones(1, 1, dtype=torch.float64))


def _wide(x: Tensor) -> Tensor:
    return x.to("cpu", torch.float64)


def _masses(n: int, weight: Tensor | None) -> Any:
    """(N,) float64 numpy masses; both sides sum to the same number, as the simplex demands."""
    if weight is None:
        return np.full(n, 1.0 / n)
    mass = _wide(weight.detach()).numpy()
    return mass / mass.sum()
