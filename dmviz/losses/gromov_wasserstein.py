"""Gromov-Wasserstein: transport that compares distances within each cloud, not places."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses.wasserstein import line_plan, simplex_plan
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

LARGEST = 500  # points a side; a first step with as many takes some seconds
_FEW = 10_000  # pairs up to which every start is followed; beyond, the three best
_LEVELS = 32  # quantiles of a point's distances that its profile has
_DONE = 1e-12  # slope of the best direction, in the objective's own size, at which there is nowhere to go


class Space(NamedTuple):
    """A cloud as its distances: all that the value knows of it. Float64, on the CPU."""

    mass: Tensor  # (N,)
    far: Tensor  # (N, N)
    lying: Tensor  # (N, 2) the cloud along its two widest axes, where a plan is first looked for
    even: bool  # whether all masses are equal

    @property
    def reach(self) -> Tensor:
        """(N,) mean squared distance of all points from each: its eccentricity, squared."""
        return self.far.square() @ self.mass

    @property
    def profile(self) -> Tensor:
        """(N, L) quantiles of the distances from each point."""
        found, order = self.far.sort(1)
        level = self.mass[order].cumsum(1)
        at = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS * float(self.mass.sum())
        places = torch.searchsorted(level, at.expand(len(found), -1).contiguous()).clamp_(max=len(found) - 1)
        return found.gather(1, places)


@entry
class GromovWasserstein:
    r"""Match shape and not place: pairs of particles should be as far apart as the pairs of points they go to.

    $$ GW = \min_{P \ge 0,\ P 1 = a,\ P^\top 1 = b}\ \sum_{ijkl} \bigl(|x_i - x_k| - |y_j - y_l|\bigr)^2
       P_{ij} P_{kl} $$

    without a factor 1/2 and without a root, as in POT; the distance of Memoli 2011 is half its root. Unit: length
    squared. Moving, turning or mirroring either cloud, and not only both, changes nothing: a flow makes the particles
    take the target's shape where they are, in any position, and the dimensions of the two clouds need not be related.

    $$ v_i = -4 \sum_k \Bigl(a_k |x_i - x_k| - \frac{(P D^y P^\top)_{ik}}{a_i}\Bigr)
       \frac{x_i - x_k}{|x_i - x_k|} $$

    with $D^y$ the target's distances and the plan held fixed; a pair that coincides counts 0, so such particles never
    part. The plan is found by conditional gradients with exact line search, whose inner problem is an exact linear
    plan, from seven starts: the product of the masses, eccentricities in order, the linear plan between the profiles
    of distances that points have, and those between the clouds laid along their two widest axes, with either sign
    (beyond 10,000 pairs only the three best of these); in a flow from the last step's plan.

    Fails: the objective is not convex (for Euclidean distances it is concave), so the plan may be a local optimum and
    the value too large; therefore the triangle inequality, which the exact distance obeys, is not claimed. More than
    500 points a side are refused, since every iteration takes a time of their number cubed.

    Memoli 2011; Peyre et al. 2016.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[9.0, 9.0], [9.0, 6.0]])
    >>> GromovWasserstein()(here, Cloud(there), seeded(0)).item()  # gaps 1 and 3: half the pairs differ by 2
    2.0

    ```
    """

    title = "Gromov-Wasserstein"
    family = "transport"
    source = ("memoli2011gromov", "peyre2016gromov")
    needs = "samples"
    cost = "rounds of N^2 M + N M^2 and about N^3 time, N^2 + M^2 + N M memory, at most 500 points a side"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "deterministic"})
    degree = 2.0
    root = 2.0

    rounds: Annotated[
        int, Range(1, 1000, log=True, help="Most improvements of a plan. Few: whatever the start is near to")
    ] = 100

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there = self._spaces(x.detach(), target, weight)
        plan = self._plan(here, there, None)
        far = _distances(x)
        # Of the square, the parts with one cloud alone do not need the plan.
        own = here.mass @ far.square() @ here.mass
        across = (far * (plan @ there.far @ plan.T)).sum()
        return (own - 2 * across + there.mass @ there.reach).clamp_min(0.0).to(x)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Tensor | None = None
    ) -> Velocity:
        """Each other particle pushes or pulls, as it is nearer or farther than where the plan wants it."""
        here, there = self._spaces(x, target, weight)
        plan = self._plan(here, there, carry)
        wanted = plan @ there.far @ plan.T  # (N, N)
        some = here.mass > 0
        share = here.far * here.mass - wanted / torch.where(some, here.mass, 1.0)[:, None]
        tug = torch.where(here.far > 0, share / torch.where(here.far > 0, here.far, 1.0), 0.0)
        near = _wide(x)
        pull = torch.stack([(tug * (column[:, None] - column)).sum(1) for column in near.T], dim=1)
        v = torch.where(some[:, None], -4 * pull, 0.0)
        value = here.mass @ here.reach + there.mass @ there.reach - 2 * (here.far * wanted).sum()
        return Velocity(v.to(x), value.clamp_min(0.0).to(x), plan)

    def plan(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """(N, M) the plan that was found, for a page to draw."""
        return self._plan(*self._spaces(x.detach(), target, weight), None).to(x)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's distances, once a run."""
        _check(len(target), len(target))
        return replace(target, memo={"space": space_of(target.x, target.weight), "loss": self, "of": target.x})

    def _spaces(self, x: Tensor, target: Cloud, weight: Tensor | None) -> tuple[Space, Space]:
        _check(len(x), len(target))
        memo = target.memo
        known = memo and memo.get("loss") == self and memo.get("of") is target.x
        there = memo["space"] if memo and known else space_of(target.x, target.weight)
        return space_of(x, weight), there

    def _plan(self, here: Space, there: Space, carry: Tensor | None) -> Tensor:
        """The best plan that the starts lead to; a carried one is the only start."""
        if not (torch.isfinite(here.far).all() and torch.isfinite(there.far).all()):
            return torch.full((len(here.mass), len(there.mass)), torch.nan, dtype=torch.float64)
        if carry is not None and carry.shape == (len(here.mass), len(there.mass)):
            begun = [carry] if torch.allclose(carry.sum(1), here.mass, atol=1e-9) else starts(here, there)
        else:
            begun = starts(here, there)
        if len(begun) > 3 and begun[0].numel() > _FEW:
            begun = sorted(begun, key=lambda plan: objective(plan, here, there))[:3]
        found = [improved(plan, here, there, self.rounds) for plan in begun]
        return min(found, key=lambda plan: objective(plan, here, there))


def space_of(x: Tensor, weight: Tensor | None) -> Space:
    mass = _wide(mass_of(x, weight))
    mass = mass / mass.sum()
    return Space(mass, _distances(x.detach()), _lying(_wide(x.detach()), mass), weight is None)


def _lying(x: Tensor, mass: Tensor) -> Tensor:
    """(N, 2) coordinates along the two axes of the largest variance; zeros where there is only one."""
    near = x - mass @ x
    spread = torch.nan_to_num((near * mass[:, None]).T @ near, 0.0, 0.0, 0.0)
    axes = torch.linalg.eigh(spread).eigenvectors.flip(1)[:, :2]
    return torch.nn.functional.pad(near @ axes, (0, 2 - axes.shape[1]))


def starts(here: Space, there: Space) -> list[Tensor]:
    """Plans to begin with: the product, eccentricities in order, by profiles, and four by the principal axes."""
    shape = (len(here.mass), len(there.mass))
    product = torch.outer(here.mass, there.mass)
    if 1 in shape:
        return [product]
    sorted_plan = line_plan(here.reach, here.mass, there.reach, there.mass)
    ordered = torch.zeros(shape, dtype=torch.float64)
    ordered[sorted_plan.i, sorted_plan.j] = sorted_plan.mass
    tables = [torch.cdist(here.profile, there.profile).square()]
    for signs in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)):
        tables.append(torch.cdist(here.lying * here.lying.new_tensor(signs), there.lying).square())
    return [product, ordered, *(linear_plan(table, here, there) for table in tables)]


def improved(plan: Tensor, here: Space, there: Space, rounds: int) -> Tensor:
    """Conditional gradients: to the best plan for the slope, as far as the objective falls on the way there."""
    size = float(here.mass @ here.reach + there.mass @ there.reach)
    alone = here.reach[:, None] + there.reach  # (N, M)
    for _ in range(rounds):
        across = here.far @ plan @ there.far
        slope = alone - 4 * across
        way = linear_plan(slope, here, there) - plan
        first = float((slope * way).sum())
        if not -first > _DONE * size:
            break
        second = -2 * float((here.far @ way @ there.far * way).sum())
        step = min(-first / (2 * second), 1.0) if second > 0 else 1.0
        plan = plan + step * way
    return plan


def objective(plan: Tensor, here: Space, there: Space) -> float:
    """The sum of squares without what the masses alone decide."""
    return -2 * float((here.far @ plan @ there.far * plan).sum())


def linear_plan(table: Tensor, here: Space, there: Space) -> Tensor:
    """(N, M) the cheapest plan for a table of costs."""
    plan = torch.zeros_like(table)
    if here.even and there.even and len(here.mass) == len(there.mass):
        i, j = linear_sum_assignment(table.numpy())
        plan[torch.from_numpy(i), torch.from_numpy(j)] = 1.0 / len(i)
        return plan
    costs = np.ascontiguousarray((table - table.min()).numpy())
    i, j, mass = simplex_plan(costs, here.mass, there.mass)
    plan[torch.from_numpy(i), torch.from_numpy(j)] = torch.from_numpy(mass)
    return plan


def _distances(x: Tensor) -> Tensor:
    near = _wide(x)
    near = near - near.detach().mean(0)
    # At distance 0 there is no direction to go: the gradient is 0 there.
    return torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist")


def _wide(x: Tensor) -> Tensor:
    return x.to("cpu", torch.float64)


def _check(n: int, m: int) -> None:
    if max(n, m) > LARGEST:
        raise ValueError(
            f"Gromov-Wasserstein: at most {LARGEST:,} points a side, got {n:,} and {m:,}: every step takes a time of "
            "their number cubed and memory for all pairs. Take fewer points."
        )
