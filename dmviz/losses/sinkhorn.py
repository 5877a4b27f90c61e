"""Sinkhorn divergence: entropic transport without its bias."""

from dataclasses import replace
from typing import Annotated, Any, NamedTuple, TypeGuard

import torch
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._entropic import Effort, Pair, Problem, Soft, log_weight, soft, solve_pair, solve_self, solve_small
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_SMALL = 40_000
"""Up to this many pairs an exact solve, in float64, costs next to nothing."""

_LOST = 1.0
"""A marginal error from which a warm start is no start: iterate as from cold."""


class Warm(NamedTuple):
    """What the next step starts from: potentials, where they were, and their slopes at the particles."""

    x: Tensor  # (N, D) centred particles
    f: Tensor
    f_slope: Tensor
    g: Tensor
    own: Tensor | None
    own_slope: Tensor | None
    drift: float

    def at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """f, g and own at particles that have moved a little."""
        moved = x.double() - self.x
        own = None
        if self.own is not None and self.own_slope is not None:
            own = self.own + (self.own_slope * moved).sum(1)
        return self.f + (self.f_slope * moved).sum(1), self.g, own


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
    wide as the clouds, then over-relaxed sweeps (averaged ones for the self terms) until the marginals are off by at
    most `tolerance`, or for `iterations` sweeps. Two clouds of at most 40,000 pairs are solved to rounding error by
    Newton steps. In a flow the potentials of the last step are kept and each step sweeps `warm` times; where the
    particles jumped, from cold again. It fails where the blur is far below the spacing of the points: then it takes
    very many sweeps and behaves like exact transport.

    Cuturi 2013; Feydy et al. 2019.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> Sinkhorn()(here, Cloud(there), seeded(0)).item()  # |(3, 4)|^2 / 2
    12.5

    ```
    """

    title = "Sinkhorn divergence"
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
    warm: Annotated[int, Range(1, 100, log=True, help="Sweeps of a step that starts from the last step's plan")] = 2

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
        start = carry.at(cross.x) if self._fits(carry, cross) else None
        pair = self._solved_pair(cross, start)
        if pair.drift >= _LOST and start is not None:
            start, pair = None, self._solved_pair(cross, None)
        plan = soft(cross, pair.g, want_grad=True)
        # The dual value: since f is the soft minimum of g its error is of second order.
        value, pull = a.double() @ plan.f + b.double() @ pair.g, _slope(plan)
        own = own_slope = None
        if self.debias:
            own, back = self._own(x - shift_x, cross.log_a, start and start[2], cross.compiled)
            value = value - 0.5 * (a.double() @ (own + back.f)) - self._target_half(target, shift_y, cross.compiled)
            own, own_slope = 0.5 * (own + back.f), _slope(back)
            pull = pull - own_slope
        kept = Warm(cross.x.double(), pair.after(plan.f), _slope(plan), pair.g, own, own_slope, pair.drift)
        if self.p == 2:
            apart = (shift_x - shift_y).double()
            left = a.double() @ (x - shift_x).double() - b.double() @ (target.x - shift_y).double()
            value, pull = value + apart @ (0.5 * apart + left), pull + apart
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
            pair = self._solved_pair(cross, None)
            here = (at - shift_x).to(cross.x.dtype)
            pull = _slope(soft(cross._replace(x=here), pair.g, want_grad=True))
            if self.debias:
                own, _ = self._own(x - shift_x, cross.log_a, None, cross.compiled)
                back = self._problem(x - shift_x, x - shift_x, cross.log_a, cross.log_a, cross.compiled)
                pull = pull - _slope(soft(back._replace(x=here.to(back.x.dtype)), own, want_grad=True))
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

    def _problem(self, x: Tensor, y: Tensor, log_a: Tensor, log_b: Tensor, compiled: bool) -> Problem:
        """Two clouds near the origin, in float64 where that costs nothing."""
        if _is_small(x, y):
            x, y = x.double(), y.double()
        return Problem(x, y, log_a, log_b, self.p, self.blur, compiled)

    def _fits(self, carry: Warm | None, problem: Problem) -> TypeGuard[Warm]:
        """Whether the last step was about clouds like these."""
        return carry is not None and carry.x.shape == problem.x.shape and len(carry.g) == len(problem.y)

    def _solved_pair(self, problem: Problem, start: tuple[Tensor, Tensor, Any] | None) -> Pair:
        if _is_small(problem.x, problem.y):
            return solve_small(problem, None if start is None else start[:2])
        if start is None:
            return solve_pair(problem, Effort(self.tolerance, self.iterations))
        # A flow adds up what each step leaves undone, so its few sweeps stop only well below the tolerance.
        return solve_pair(problem, Effort(0.1 * self.tolerance, self.warm), start[:2])

    def _own(self, x: Tensor, log_a: Tensor, start: Tensor | None, compiled: bool) -> tuple[Tensor, Soft]:
        """Potential and plan of a cloud onto itself."""
        # Every averaged update halves the error: ten times the accuracy costs three or four of them.
        effort = Effort(0.1 * self.tolerance, self.iterations if start is None else self.warm)
        if _is_small(x, x):
            effort = Effort(1e-13, 1000)
        return solve_self(self._problem(x, x, log_a, log_a, compiled), effort, start)

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
