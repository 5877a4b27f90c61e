"""Exact transport: the squared Wasserstein distance, by assignment or by the network simplex."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._lines import accurate
from dmviz.losses._slicing import Slices, centre_of, sliced_power, sliced_velocity
from dmviz.params import entry
from dmviz.protocols import Velocity

LARGEST = 3000  # points a side; 3,000 take about four seconds and 150 MB a step
_ASSIGNED = 512  # up to here an assignment needs no library that takes seconds to load
_PIVOTS = 10**9  # in effect no limit: the simplex ends at the optimum long before


@entry
class Wasserstein:
    r"""Send every particle to its place in the cheapest of all plans, exactly.

    $$ W_2^2(\mu, \nu) = \min_{P \ge 0,\ P 1 = a,\ P^\top 1 = b}\ \sum_{ij} P_{ij}\, |x_i - y_j|^2 $$

    For x (N, D) with weights a and y (M, D) with weights b; the squared distance, without a factor 1/2; unit: length
    squared. A particle moves straight to the mean of the points its mass goes to, $v_i = 2 (\sum_j P_{ij} y_j / a_i -
    x_i)$, so Euler with a step of 1/2 arrives at once where N = M.

    Fails: time grows with about the cube of the number of points, and the table of all distances fills memory, so
    more than 3,000 points a side are refused (on a line there is no limit: sorting finds the plan). Where several
    plans are equally cheap, the velocity is that of one of them. Few particles against many points settle on means of
    groups of points, at a cost that stays above zero.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    >>> Wasserstein()(here, Cloud(there), seeded(0)).item()  # (2^2 + 1^2) / 2, straight up
    2.5

    ```
    """

    title = "Exact W2"
    family = "transport"
    source = ("villani2009", "bonneel2011", "flamary2021")
    needs = "samples"
    cost = "about N^3 time, N M memory, at most 3,000 points a side; on a line N log N and no limit"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    degree = 2.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if target.dim == 1:
            return sliced_power(x, target, _line(), weight, 2)
        plan = optimal_plan(x, weight, target)
        gap = x.index_select(0, plan.i) - target.x.detach().index_select(0, plan.j)  # (K, D)
        return (plan.mass * gap.square().sum(1).to(plan.mass.dtype)).sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Twice the way to the mean of the points that the plan sends a particle to."""
        if target.dim == 1:
            return Velocity(*sliced_velocity(x, target, _line(), weight, 2))
        plan = optimal_plan(x, weight, target)
        gap = (target.x.index_select(0, plan.j) - x.index_select(0, plan.i)).to(plan.mass.dtype)  # (K, D)
        pull = torch.zeros_like(x, dtype=gap.dtype).index_add_(0, plan.i, plan.mass[:, None] * gap)
        sent = torch.zeros_like(pull[:, 0]).index_add_(0, plan.i, plan.mass)
        # A particle without mass is sent nowhere.
        v = 2 * pull / torch.where(sent > 0, sent, 1.0)[:, None]
        return Velocity(v.to(x.dtype), (plan.mass * gap.square().sum(1)).sum().to(x.dtype))


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
            f"Exact W2: at most {LARGEST:,} points a side, got {len(x):,} and {len(y):,}: an exact plan takes a time "
            "of their number cubed and memory for all pairs. Take fewer points, or the Sinkhorn divergence."
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
        i, j, mass = _by_simplex(table, weight, target.weight)
    at, to = (torch.from_numpy(part).to(x.device) for part in (i, j))
    return Plan(at, to, torch.from_numpy(mass).to(x.device, wide))


def _by_simplex(table: Any, weight: Tensor | None, target_weight: Tensor | None) -> tuple[Any, Any, Any]:
    """The pairs that carry mass, and how much, as numpy arrays."""
    import ot  # takes seconds, which a page that only lists the losses, or a small assignment, need not spend

    n, m = table.shape
    a, b = _masses(n, weight), _masses(m, target_weight)
    if weight is None and target_weight is None and n == m:
        a, b = np.ones(n), np.ones(m)  # whole numbers: the plan is exactly a permutation
    plan, log = ot.emd(a, b, table, numItermax=_PIVOTS, log=True)
    if log["warning"] is not None:
        raise ValueError(f"Exact W2: no optimal plan was found ({log['warning']}). Take fewer points.")
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
