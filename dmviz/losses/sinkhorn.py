"""Sinkhorn divergence: entropic transport without its bias."""

from dataclasses import replace
from typing import Annotated, Any, NamedTuple, TypeGuard

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import NEAR_DIMS, NEAR_PAIRS, Rows, chosen, rows_of
from dmviz.losses._entropic import Effort, Pair, Pairs, Problem, Soft, log_weight, soft
from dmviz.losses._newton import solve_small
from dmviz.losses._potentials import solve, solve_self
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_SMALL = 40_000
"""Up to this many pairs an exact solve, in float64, costs next to nothing."""

_SHARE = 0.01
"""Part of the value that may be missing when the sweeps stop, for a tolerance of 1."""

_LOST = 0.1
"""A marginal error from which a warm start is no start: iterate as from cold."""


class Start(NamedTuple):
    """Where a step begins: potentials guessed at the particles' new places, and what is known of the sweeps."""

    f: Tensor
    g: Tensor
    own: Tensor | None
    ratio: float
    pairs: Pairs | None
    value: float


class Warm(NamedTuple):
    """What the next step starts from: potentials, their slopes at the particles, and how both have been changing."""

    x: Tensor  # (N, D) centred particles
    moved: Tensor | None  # (N, D) since the step before
    f: Tensor
    f_slope: Tensor
    g: Tensor
    g_moved: Tensor | None
    own: Tensor | None
    own_slope: Tensor | None
    own_moved: Tensor | None  # what the slope had not foreseen
    pairs: Pairs | None
    value: float
    drift: float

    def at(self, x: Tensor) -> Start:
        """Potentials at particles that have moved a little, carried on as far as they went the way they came."""
        moved, own, g, ratio = x.double() - self.x, None, self.g, 0.0
        if self.moved is not None and self.g_moved is not None:
            before = float(self.moved.square().sum())
            ratio = min(max(float((moved * self.moved).sum()) / before, 0.0), 1.5) if before > 0 else 0.0
            g = g + ratio * self.g_moved
        if self.own is not None and self.own_slope is not None:
            own = self.own + (self.own_slope * moved).sum(1)
            if self.own_moved is not None:
                own = own + ratio * self.own_moved
        return Start(self.f + (self.f_slope * moved).sum(1), g, own, ratio, self.pairs, self.value)

    def since(self, carry: "Warm | None") -> "Warm":
        """With the changes since an earlier step noted."""
        if carry is None:
            return self
        moved, own_moved = self.x - carry.x, None
        if self.own is not None and carry.own is not None and carry.own_slope is not None:
            own_moved = self.own - carry.own - (carry.own_slope * moved).sum(1)
        return self._replace(moved=moved, g_moved=self.g - carry.g, own_moved=own_moved)


class _Envelope(torch.autograd.Function):
    """A value with its gradient in x given: by the envelope theorem the potentials count as constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor, None, None]:
        return out * ctx.saved_tensors[0], None, None


@entry
class Sinkhorn:
    r"""Move mass to the target at least cost, seen through a blur, and take out what the blur alone would cost.

    $$ S = OT(\mu,\nu) - \tfrac12 OT(\mu,\mu) - \tfrac12 OT(\nu,\nu), \qquad
       OT(\mu,\nu) = \min_\pi\ \langle \pi, C\rangle + \varepsilon\, KL(\pi \,|\, \mu\otimes\nu) $$

    with C = |x - y|^2 / 2 for p = 2, |x - y| for p = 1, and eps = blur^p, as GeomLoss has it. Unit: length^p. Between
    two extremes: a small blur gives W2^2 / 2 (W1 for p = 1), a large one |difference of means|^2 / 2 (half the energy
    distance). Never negative, and 0 only if the laws are equal. A translation by v costs |v|^2 / 2 at every blur
    (p = 2). Not debiased, OT alone is not 0 at the target, and its flow shrinks the cloud: that is what debiasing
    mends.

    Gradient by the envelope theorem: the difference of two barycentric maps, v = T_xy(x) - T_xx(x) for p = 2; it can
    not be differentiated again. Computed in the log domain, means taken out first for p = 2: annealed from a blur as
    wide as the clouds, then Newton steps on the dual by conjugate gradients where the plan can be held (4 million
    entries; in float32 those above e^-17 of their row's largest), else accelerated sweeps. Both stop when the marginals
    are off by at most `tolerance` and the transport's dual, a lower bound, is expected to rise by at most a hundredth
    of `tolerance` times the value; or after `iterations`. Two clouds of at most 40,000 pairs are solved to rounding
    error. On a plane or in space a row looks only at columns that can matter to it, and wide blurs see heaps of eight
    points. In a flow the potentials of the last step are carried on, and each step is solved by the same measure in at
    most `warm` iterations; where the particles jumped, from cold again. It fails where the blur is far below the
    spacing of the points: then it takes very many iterations, the value may stay below the true one, and it behaves
    like exact transport.

    Cuturi 2013; Feydy et al. 2019.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> Sinkhorn()(here, Cloud(there), seeded(0)).item()  # |(3, 4)|^2 / 2
    12.5

    ```
    """

    title = "Sinkhorn divergence"
    family = "transport"
    source = ("feydy2019interpolating", "cuturi2013sinkhorn")
    needs = "samples"
    cost = "sweeps (2 M + N) N D time, N + M memory"

    blur: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Details finer than this are not seen. Small: exact transport, slow; large: only the means",
        ),
    ] = 0.05
    p: Annotated[int, Range(1, 2, help="Cost of moving: 2 squares distances (halved), 1 takes them as they are")] = 2
    debias: Annotated[bool, Help("Take out what the blur alone costs; without it the cloud shrinks")] = True
    tolerance: Annotated[
        float, Range(1e-12, 0.5, log=True, help="Share of mass that may be misplaced when the sweeps stop")
    ] = 0.05
    iterations: Annotated[int, Range(1, 10_000, log=True, help="Most sweeps of a solve from cold")] = 100
    warm: Annotated[int, Range(1, 100, log=True, help="Most sweeps of a step from the last step's plan")] = 50

    @property
    def laws(self) -> frozenset[Law]:
        always: set[Law] = {"nonnegative", "symmetric", "shift_free", "rotation_free", "deterministic"}
        return frozenset(always | {"zero_at_target"}) if self.debias else frozenset(always)

    @property
    def degree(self) -> float:
        return float(self.p)

    @property
    def root(self) -> float:
        return float(self.p)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            v, value, _ = self.velocity(x, target, rng, weight)
            grad = -v * mass_of(x, weight)[:, None]
        if not (torch.is_grad_enabled() and x.requires_grad):
            return value
        return _Envelope.apply(x, value, grad)  # type: ignore[no-any-return, no-untyped-call]

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Warm | None = None
    ) -> Velocity:
        """Where the plan to the target sends each particle, less where the plan to the particles themselves does."""
        x = x.detach()
        a, b = mass_of(x, weight), target.mass()
        shift_x, shift_y = self._centers(x, a, target.x, b)
        cross = self._problem(x - shift_x, target.x - shift_y, log_weight(a), log_weight(b), chosen(target.memo, x))
        carry = carry if self._fits(carry, cross) else None
        start = None if carry is None else carry.at(cross.x)
        known, pull = 0.0, torch.zeros_like(x, dtype=torch.float64)
        own = own_slope = None
        if self.debias:
            p, back = self._own(x - shift_x, cross.log_a, start, cross.compiled, cross.rows)
            own, own_slope = 0.5 * (p + back.f), _slope(back)
            known -= float(a.double() @ own + self._target_half(target, shift_y, cross.compiled))
            pull = pull - own_slope
        if self.p == 2:
            pull = pull + (shift_x - shift_y).double()
        known += self._shift_cost(x, a, target, b)
        pair = self._solved_pair(cross, start, known)
        if pair.drift > max(_LOST, self.tolerance) and start is not None:
            carry, pair = None, self._solved_pair(cross, None, known)
        plan = soft(cross, pair.g, want_grad=True)
        # The dual value: since f is the soft minimum of g its error is of second order.
        value, pull = a.double() @ plan.f + b.double() @ pair.g + known, pull + _slope(plan)
        kept = Warm(
            cross.x.double(), None, plan.f, _slope(plan), pair.g, None, own, own_slope, None, pair.pairs,
            float(value), pair.drift,
        ).since(carry)  # fmt: skip
        v = -pull.to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype), kept)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull at any points (K, D): both potentials are known everywhere, by one soft minimum more."""
        with torch.no_grad():
            a, b = mass_of(x, weight), target.mass()
            shift_x, shift_y = self._centers(x, a, target.x, b)
            cross = self._problem(x - shift_x, target.x - shift_y, log_weight(a), log_weight(b), chosen(target.memo, x))
            known = self._shift_cost(x, a, target, b)
            if self.debias:
                own, there = self._own(x - shift_x, cross.log_a, None, cross.compiled)
                known -= float(0.5 * (a.double() @ (own + there.f)))
                known -= float(self._target_half(target, shift_y, cross.compiled))
            here = (at - shift_x).to(cross.x.dtype)
            pull = _slope(soft(cross.seen_from(here), self._solved_pair(cross, None, known).g, want_grad=True))
            if self.debias:
                back = self._problem(x - shift_x, x - shift_x, cross.log_a, cross.log_a, cross.compiled)
                pull = pull - _slope(soft(back.seen_from(here), own, want_grad=True))
            return -(pull + (shift_x - shift_y) if self.p == 2 else pull).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's own term, once a run."""
        with torch.no_grad():
            compiled = chosen(None, target.x)
            half = self._target_half(target, self._center(target.x, target.mass()), compiled)
        return replace(target, memo={"half": half, "loss": self, "of": target.x, "compiled": compiled})

    def _center(self, x: Tensor, a: Tensor) -> Tensor:
        return (a.double() @ x.double()).to(x.dtype)

    def _centers(self, x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """What to take off each cloud: its own mean for p = 2 (its cost is known), one common point for p = 1."""
        center = self._center(y, b)
        return (self._center(x, a), center) if self.p == 2 else (center, center)

    def _shift_cost(self, x: Tensor, a: Tensor, y: Cloud, b: Tensor) -> float:
        """What taking out the means took off the value."""
        if self.p == 1:
            return 0.0
        shift_x, shift_y = self._centers(x, a, y.x, b)
        apart = (shift_x - shift_y).double()
        left = a.double() @ (x - shift_x).double() - b.double() @ (y.x - shift_y).double()
        return float(apart @ (0.5 * apart + left))

    def _problem(
        self, x: Tensor, y: Tensor, log_a: Tensor, log_b: Tensor, compiled: bool, rows: Rows | None = None
    ) -> Problem:
        """Two clouds near the origin, in float64 where that costs nothing."""
        if _is_small(x, y):
            x, y = x.double(), y.double()
        whole = Problem(x, y, log_a, log_b, self.p, self.blur, compiled)
        if x.device.type != "cpu" or x.shape[1] > NEAR_DIMS or len(x) * len(y) < NEAR_PAIRS:
            return whole
        rows = rows_of(x) if rows is None else rows
        return whole._replace(rows=rows, rows_y=rows if y is x else rows_of(y))

    def _fits(self, carry: Warm | None, problem: Problem) -> TypeGuard[Warm]:
        """Whether the last step was about clouds like these."""
        return carry is not None and carry.x.shape == problem.x.shape and len(carry.g) == len(problem.y)

    def _solved_pair(self, problem: Problem, start: Start | None, known: float) -> Pair:
        if _is_small(problem.x, problem.y):
            return solve_small(problem, None if start is None else (start.f, start.g))
        share = _SHARE * self.tolerance
        if start is None:
            return solve(problem, Effort(self.tolerance, self.iterations, share, known))
        return solve(problem, Effort(self.tolerance, self.warm, share, known), start.g, start.pairs)

    def _own(
        self, x: Tensor, log_a: Tensor, start: Start | None, compiled: bool, rows: Rows | None = None
    ) -> tuple[Tensor, Soft]:
        """Potential and plan of a cloud onto itself."""
        # Every averaged update halves the error: ten times the accuracy costs three or four of them.
        effort = Effort(0.1 * self.tolerance, self.iterations)
        if start is not None:
            effort = Effort(self.tolerance, self.warm, _SHARE * self.tolerance, start.value)
        if _is_small(x, x):
            effort = Effort(1e-13, 1000)
        problem = self._problem(x, x, log_a, log_a, compiled, rows)
        return solve_self(problem, effort, start and start.own)

    def _target_half(self, target: Cloud, center: Tensor, compiled: bool) -> Tensor:
        """Half of OT(target, target): from `prepare`, or now."""
        memo = target.memo
        if memo and memo.get("loss") == self and memo.get("of") is target.x:
            return memo["half"]  # type: ignore[no-any-return]
        log_b = log_weight(target.mass())
        own, plan = self._own(target.x - center, log_b, None, compiled)
        return 0.5 * (log_b.exp() @ (own + plan.f))


def _is_small(x: Tensor, y: Tensor) -> bool:
    return len(x) * len(y) <= _SMALL and x.device.type != "mps"


def _slope(plan: Soft) -> Tensor:
    assert plan.grad is not None
    return plan.grad
