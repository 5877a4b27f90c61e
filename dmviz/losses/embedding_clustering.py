"""Embedding clustering: particles that share the target points among them evenly, as centres of clusters."""

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses import _compiled
from dmviz.losses._compiled import NEAR_DIMS, NEAR_PAIRS, chosen, rows_of
from dmviz.losses._entropic import Effort, Pair, Problem, log_weight, soft
from dmviz.losses._newton import plan_of, solve_small
from dmviz.losses._pairs import squares
from dmviz.losses._potentials import solve
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

LARGEST = 9_000_000  # pairs of a particle and a target point: three tables of 72 MB
_SMALL = 40_000  # pairs up to which potentials are found to rounding error
_EFFORT = Effort(tolerance=1e-4, iterations=200, share=1e-4, known=0.0)


@entry
class EmbeddingClustering:
    r"""Share the target points among the particles by a blurred transport plan, and move each towards its share.

    $$ F = w \sum_{ij} P_{ij}\, |x_i - y_j|^2, \qquad
       P = \arg\min_{P 1 = a,\ P^\top 1 = b}\ \sum_{ij} P_{ij}\, |x_i - y_j|^2 + 2 l^2 \sum_{ij} P_{ij} \log P_{ij} $$

    In the paper the few particles are embeddings of topics and the many target points embeddings of words: every topic
    must take an equal part of all words, so that topics do not collapse onto each other. The value is the cost of the
    plan without its entropy, weight w times length squared; the paper has w = 250 and exp(-20 |x - y|^2), a blur l of
    1 / sqrt(40), on words of length 1.

    The gradient is exact: the plan's own change is followed too, by solving the linear system that its marginals obey
    (the release unrolls its iterations instead, which comes to the same once they have converged). It is therefore not
    the pull to the mean of a particle's share alone.

    A small blur cuts the target into cells of equal mass, and particles become their centres; a large one gives every
    particle the same share, so that all fall into the middle. Fails: the value is not 0 where the clouds are equal, and
    its least point is not the target; the table of all pairs is held, so particles times target points are at most
    9,000,000; a blur far below the spacing of the points takes many iterations.

    Wu et al. 2023.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> round(EmbeddingClustering(weight=2.0)(here, Cloud(there), seeded(0)).item(), 4)  # 2 * (1 + 9) / 2
    10.0

    ```
    """

    title = "Embedding clustering"
    family = "regularizers"
    source = ("wu2023effective",)
    needs = "samples"
    cost = "sweeps N M D time, N M memory (at most 9,000,000 pairs)"
    laws = frozenset({"nonnegative", "symmetric", "shift_free", "rotation_free", "deterministic"})
    degree = 2.0
    root = 2.0

    blur: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Width over which shares overlap. Small: cells with sharp borders, slow; large: all shares alike",
        ),
    ] = 0.158
    weight: Annotated[float, Range(1e-3, 1e4, log=True, help="What the cost is multiplied by; 250 in the paper")] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        differentiable = torch.is_grad_enabled() and x.requires_grad
        with torch.no_grad():
            found = self._plan(x.detach(), target, weight, None)
            value = self.weight * (found.plan * found.cost).sum()
            if not differentiable:
                return value.to(x.dtype)
            push = self._push(found)
        shift = target.x.detach().mean(0)
        z, y = (x - shift).to(push.dtype), (target.x.detach() - shift).to(push.dtype)
        # Linear in the costs, whose weights are what the plan and its change give.
        pulled = (push.sum(1) * z.square().sum(1)).sum() - 2.0 * (z * (push @ y)).sum()
        return (value + self.weight * (pulled - pulled.detach())).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: "Warm | None" = None
    ) -> Velocity:
        """Towards the points of its share, each weighed by how the plan would change."""
        if chosen(target.memo, x):
            answer = self._sparse(x.detach(), target, weight, carry)
            if answer is not None:
                return answer
        found = self._plan(x, target, weight, None if carry is None else carry.g)
        push = self._push(found) / torch.where(found.a > 0, found.a, 1.0)[:, None]
        pull = push @ found.y - push.sum(1, keepdim=True) * found.x
        v = torch.where(found.a[:, None] > 0, 2.0 * self.weight * pull, 0.0)
        value = self.weight * (found.plan * found.cost).sum()
        return Velocity(v.to(x.dtype), value.to(x.dtype), Warm(found.g, None))

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing but the choice of kernels, so that a run keeps one."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    def plan(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Tensor:
        """(N, M) float64: which part of each target point a particle takes."""
        return self._plan(x.detach(), target, weight, None).plan

    def _plan(self, x: Tensor, target: Cloud, weight: Tensor | None, start: Tensor | None) -> "_Found":
        _check(len(x), len(target))
        a, b, shift = mass_of(x, weight).double(), target.mass().double(), target.x.detach().mean(0)
        z, y = (x - shift).double(), (target.x.detach() - shift).double()
        problem = Problem(z, y, log_weight(a), log_weight(b), 2, self.blur, chosen(target.memo, x))
        pair = _potentials(problem, start)
        cost = squares(z, y)
        f = soft(problem, pair.g).f
        plan = (a.log()[:, None] + b.log() + (f[:, None] + pair.g - 0.5 * cost) / self.blur**2).exp()
        return _Found(z, y, a, b, cost, plan, pair.g)

    @torch.no_grad()
    def _sparse(self, x: Tensor, target: Cloud, weight: Tensor | None, carry: "Warm | None") -> Velocity | None:
        """The same from the plan's entries that matter alone; None where they can not be held."""
        _check(len(x), len(target))
        if len(x) * len(target) <= _SMALL:
            return None
        a, b, shift = mass_of(x, weight).double(), target.mass().double(), target.x.detach().mean(0)
        z, y = (x - shift).double(), (target.x.detach() - shift).double()
        problem = Problem(z, y, log_weight(a), log_weight(b), 2, self.blur, True)
        if x.shape[1] <= NEAR_DIMS and len(x) * len(y) >= NEAR_PAIRS:
            problem = problem._replace(rows=rows_of(z), rows_y=rows_of(y))
        if carry is not None and len(carry.g) != len(y):
            carry = None
        pair = _potentials(problem, None if carry is None else carry.ahead(x))
        plan = plan_of(problem, pair.g)
        if plan is None or not isinstance(plan.rows, tuple):
            return None
        mu = None if carry is None else carry.mu
        digits = 1e-6 if x.dtype == torch.float32 else 1e-11
        pull, value, mu = _compiled.share_slopes(z, y, plan.rows, plan.order, a, 0.5 / self.blur**2, mu, digits)
        v = torch.where(a[:, None] > 0, 2.0 * self.weight * pull, 0.0)
        return Velocity(v.to(x.dtype), x.new_tensor(self.weight * value), Warm(pair.g, mu, x).since(carry))

    def _push(self, found: "_Found") -> Tensor:
        """(N, M) derivative of sum_ij P_ij c_ij in each cost c_ij, the plan's change included."""
        lam, mu = _adjoint(found)
        return found.plan * (1.0 + (lam[:, None] + mu - found.cost) * (0.5 / self.blur**2))


class Warm(NamedTuple):
    """The last step's potential on the target, and how much of the cost a shift of it moves (see `_adjoint`)."""

    g: Tensor  # (M,)
    mu: Tensor | None  # (M,)
    x: Tensor | None = None  # (N, D) where the particles were
    moved: tuple[Tensor, Tensor] | None = None  # by how much the step before changed x and g

    def ahead(self, x: Tensor) -> Tensor:
        """The potential to expect at x: a flow goes on as it went, so far as its particles do."""
        if self.x is None or self.moved is None or self.x.shape != x.shape:
            return self.g
        before = self.moved[0].double()
        part = float(((x - self.x).double() * before).sum() / before.square().sum().clamp_min(1e-300))
        return self.g + min(max(part, -2.0), 2.0) * self.moved[1] if math.isfinite(part) else self.g

    def since(self, last: "Warm | None") -> "Warm":
        """The same with what changed since the last step."""
        if last is None or last.x is None or self.x is None or last.x.shape != self.x.shape:
            return self
        return self._replace(moved=(self.x - last.x, self.g - last.g))


class _Found(NamedTuple):
    """A plan, and what it was made from, all float64."""

    x: Tensor  # (N, D) less the target's mean
    y: Tensor  # (M, D)
    a: Tensor  # (N,)
    b: Tensor  # (M,)
    cost: Tensor  # (N, M) squared distances
    plan: Tensor  # (N, M)
    g: Tensor  # (M,) potential on the target


def _check(n: int, m: int) -> None:
    if n * m > LARGEST:
        raise ValueError(
            f"EmbeddingClustering: particles times target points must be at most {LARGEST:,}, got {n:,} times {m:,}. "
            "Take fewer of either."
        )


def _potentials(problem: Problem, start: Tensor | None) -> Pair:
    """Those of the last step mended, or found from cold where they do not fit or do not help."""
    if start is not None and len(start) != len(problem.y):
        start = None
    if len(problem.x) * len(problem.y) <= _SMALL:
        return solve_small(problem)
    if start is not None:
        pair = solve(problem, _EFFORT, start)
        if pair.drift <= 10 * _EFFORT.tolerance:
            return pair
    return solve(problem, _EFFORT)


def _adjoint(found: _Found) -> tuple[Tensor, Tensor]:
    r"""(N,) and (M,): the solution of

    $$ a \lambda + P \mu = r, \qquad P^\top \lambda + b \mu = s, \qquad r = (P \circ c) 1,\ s = (P \circ c)^\top 1, $$

    by conjugate gradients on the smaller side. They say how much of the cost a shift of either potential moves. One
    constant added to one and taken off the other changes nothing.
    """
    plan, cost = found.plan, found.cost
    a, b = plan.sum(1), plan.sum(0)  # the marginals that the plan has, so that the system is consistent
    moved = plan * cost
    r, s = moved.sum(1), moved.sum(0)
    if len(a) < len(b):
        lam = _conjugate(plan.T, b, a, s, r)
        return lam, (s - plan.T @ lam) / b.clamp_min(1e-300)
    mu = _conjugate(plan, a, b, r, s)
    return (r - plan @ mu) / a.clamp_min(1e-300), mu


def _conjugate(plan: Tensor, a: Tensor, b: Tensor, r: Tensor, s: Tensor) -> Tensor:
    """(M,): solve (diag(b) - P^T diag(1/a) P) mu = s - P^T (r / a), to eleven digits or as far as rounding lets it."""
    a, b = a.clamp_min(1e-300), b.clamp_min(1e-300)
    rest = s - plan.T @ (r / a)
    mu = torch.zeros_like(rest)
    z = rest / b
    step, rz = z, float(rest @ z)
    enough = 1e-22 * float(s @ (s / b)) + 1e-300
    for _ in range(min(2 * len(b) + 10, 500)):
        if rz <= enough or not math.isfinite(rz):
            break
        image = b * step - plan.T @ ((plan @ step) / a)
        curve = float(step @ image)
        if curve <= 0.0:
            break
        mu, rest = mu + (rz / curve) * step, rest - (rz / curve) * image
        z = rest / b
        before, rz = rz, float(rest @ z)
        step = z + (rz / before) * step
    return mu
