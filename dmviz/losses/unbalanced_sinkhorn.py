"""Unbalanced Sinkhorn divergence: entropic transport that may leave mass behind rather than carry it far."""

import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import NEAR_DIMS, NEAR_PAIRS, Rows, chosen, rows_of
from dmviz.losses._entropic import Effort, Problem, log_weight
from dmviz.losses._unbalanced import Leaky, Potentials, pull, solve, solve_self, solve_small
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_SMALL = 40_000
"""Up to this many pairs an exact solve, in float64, costs next to nothing."""

_WARM = 0.25
"""Part of the tolerance that a start from the last step is held to: it is often within the whole before any sweep."""

_SHARE = 0.01
"""Part of the value that may be missing when the sweeps stop, for a tolerance of 1."""


class Warm(NamedTuple):
    """Potentials of the last step, on the target and of the particles onto themselves; and how all moved."""

    x: Tensor  # (N, D)
    g: Tensor  # (M,)
    own: Tensor | None  # (N,)
    moved: "Warm | None" = None  # by how much the step before changed each

    def fits(self, x: Tensor, m: int) -> bool:
        return len(self.g) == m and self.x.shape == x.shape

    def ahead(self, x: Tensor) -> "Warm":
        """Potentials to expect at x: a flow goes on as it went, so far as its particles do."""
        if self.moved is None:
            return self
        before = self.moved.x.double()
        part = float(((x - self.x).double() * before).sum() / before.square().sum().clamp_min(1e-300))
        part = min(max(part, -2.0), 2.0) if math.isfinite(part) else 0.0
        own = self.own
        if own is not None and self.moved.own is not None:
            own = own + part * self.moved.own
        return Warm(self.x, self.g + part * self.moved.g, own)

    def since(self, last: "Warm | None") -> "Warm":
        """The same with what changed since the last step."""
        if last is None or not last.fits(self.x, len(self.g)):
            return self
        own = None if self.own is None or last.own is None else self.own - last.own
        return self._replace(moved=Warm(self.x - last.x, self.g - last.g, own))


class Solved(NamedTuple):
    """Potentials of the transport to the target and, debiased, of the particles onto themselves, with the value."""

    cross: Leaky
    there: Potentials
    back: Leaky
    own: Potentials | None
    value: float


@entry
class UnbalancedSinkhorn:
    r"""Move mass to the target, but leave behind or make anew what would have to travel further than the reach.

    $$ OT(\mu,\nu) = \min_{\pi \ge 0}\ \langle \pi, C\rangle + \varepsilon\, KL(\pi \,|\, \mu\otimes\nu)
       + \rho\, KL(\pi 1 \,|\, \mu) + \rho\, KL(\pi^\top 1 \,|\, \nu) $$

    $$ S = OT(\mu,\nu) - \tfrac12 OT(\mu,\mu) - \tfrac12 OT(\nu,\nu) + \tfrac{\varepsilon}{2} (m_\mu - m_\nu)^2 $$

    with C = |x - y|^2 / 2 for p = 2, |x - y| for p = 1, eps = blur^p and rho = reach^p; m are the total masses, 1 for
    the particles and `mass` for the target. Unit: length^p. A large reach gives the Sinkhorn divergence (where both
    masses are 1), a small one forgets transport and leaves everything where it is; never negative. A particle is
    pulled only by the part of its mass that travels,

    $$ v_i = -e^{-f_i/\rho}\,\nabla f^{soft}_{\mu\nu}(x_i) + e^{-p_i/\rho}\,\nabla f^{soft}_{\mu\mu}(x_i), $$

    the gradient of both plans as they are, not scaled to a mass of 1. It can not be differentiated again.

    So outliers of the target do not tear particles away. It fails for the same reason: particles that start further
    than a few reaches from all of the target feel a pull that fades (between two points as
    exp(-distance^p / (2 p rho))), and stay.
    Potentials by sweeps in the log domain, accelerated, until a share of at most `tolerance` of the transported mass
    is misplaced and the dual is expected to rise by at most a hundredth of `tolerance` times the value, or after
    `iterations`; two clouds of at most 40,000 pairs by Newton steps to rounding error.

    Chizat et al. 2018; Sejourne et al. 2019.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    >>> loss = UnbalancedSinkhorn(blur=0.001, reach=1.0)  # two points: 2 rho (1 - exp(-C / (2 rho))), C = 2
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 3)
    1.264

    ```
    """

    title = "Unbalanced Sinkhorn"
    family = "transport"
    source = ("chizat2018scaling", "sejourne2019unbalanced")
    needs = "samples"
    cost = "sweeps (2 M + N) N D time, N + M memory"

    blur: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Details finer than this are not seen. Small: exact plans, slow; large: only the means",
        ),
    ] = 0.1
    reach: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far mass is worth carrying. Small: it stays and is written off; large: all must travel",
        ),
    ] = 1.0
    p: Annotated[int, Range(1, 2, help="Cost of moving: 2 squares distances (halved), 1 takes them as they are")] = 2
    mass: Annotated[
        float, Range(0.1, 10.0, log=True, help="Total mass of the target, where the particles have 1 in all")
    ] = 1.0
    debias: Annotated[bool, Help("Take out what the blur alone costs; without it the cloud shrinks")] = True
    tolerance: Annotated[
        float, Range(1e-12, 0.5, log=True, help="Share of the moved mass that may be misplaced when the sweeps stop")
    ] = 0.05
    iterations: Annotated[int, Range(1, 10_000, log=True, help="Most sweeps of a solve")] = 100

    @property
    def laws(self) -> frozenset[Law]:
        found: set[Law] = {"nonnegative", "shift_free", "rotation_free", "deterministic"}
        if self.mass == 1.0:
            found |= {"symmetric", "zero_at_target"} if self.debias else {"symmetric"}
        return frozenset(found)

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
        # By the envelope theorem the potentials count as constants.
        return value + (grad * (x - x.detach())).sum()

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Warm | None = None
    ) -> Velocity:
        """Minus the mean slope of the cost under the plan to the target, plus that under the plan onto themselves."""
        solved = self._solved(x, target, weight, carry)
        v = -self._pull(solved.cross.problem.x, solved)
        v = torch.where(mass_of(x, weight)[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        kept = Warm(x.detach(), solved.there.g, None if solved.own is None else solved.own.g)
        return Velocity(v.to(x.dtype), x.new_tensor(solved.value), kept.since(carry))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull at any points (K, D): both potentials are known everywhere, by one soft minimum more."""
        return -self._pull(at - _centre(target), self._solved(x, target, weight, None)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's own term, once a run."""
        compiled = chosen(None, target.x)
        half = self._target_half(target, compiled)
        return replace(target, memo={"half": half, "loss": self, "of": target.x, "compiled": compiled})

    @torch.no_grad()
    def _solved(self, x: Tensor, target: Cloud, weight: Tensor | None, carry: Warm | None) -> Solved:
        a, compiled, centre = mass_of(x, weight), chosen(target.memo, x), _centre(target)
        here, there = x.detach() - centre, target.x - centre
        cross = self._leaky(here, there, log_weight(a), self._log_mass(target), compiled)
        back = self._leaky(here, here, log_weight(a), log_weight(a), compiled, cross.problem.rows)
        known, own = 0.0, None
        if carry is not None:
            carry = carry.ahead(x.detach()) if carry.fits(x, len(there)) else None
        if self.debias:
            own = self._own(back, None if carry is None else carry.own)
            apart = float(a.double().sum()) - self.mass * float(target.mass().double().sum())
            known = 0.5 * cross.problem.eps * apart**2 - 0.5 * own.value - self._target_half(target, compiled)
        g = None if carry is None else carry.g
        if _is_small(cross.problem):
            answer = solve_small(cross, g)
        else:
            tolerance = self.tolerance * (1.0 if g is None else _WARM)
            answer = solve(cross, Effort(tolerance, self.iterations, _SHARE * tolerance, known), g)
        return Solved(cross, answer, back, own, answer.value + known)

    def _own(self, leaky: Leaky, start: Tensor | None) -> Potentials:
        """Transport of a cloud onto itself."""
        if _is_small(leaky.problem):
            return solve_small(leaky, start)
        # Every averaged update halves the error: ten times the accuracy costs three or four of them.
        return solve_self(leaky, Effort(0.1 * self.tolerance, self.iterations), start)

    def _pull(self, at: Tensor, solved: Solved) -> Tensor:
        """(K, D) gradient of the loss in a point at `at`, over its mass."""
        aimed = [(solved.cross, solved.there, 1.0)]
        if solved.own is not None:
            aimed.append((solved.back, solved.own, -1.0))
        total = torch.zeros(at.shape, dtype=torch.float64, device=at.device)
        for leaky, found, sign in aimed:
            if at is solved.cross.problem.x:
                total += sign * (pull(leaky, found.g) if found.grad is None else found.grad)
            else:
                total += sign * pull(leaky._replace(problem=leaky.problem.seen_from(at)), found.g)
        return total

    def _leaky(
        self, x: Tensor, y: Tensor, log_a: Tensor, log_b: Tensor, compiled: bool, rows: Rows | None = None
    ) -> Leaky:
        problem = Problem(x, y, log_a, log_b, self.p, self.blur, compiled)
        if _is_small(problem):
            problem = problem._replace(x=x.double(), y=y.double())
        elif compiled and x.shape[1] <= NEAR_DIMS and len(x) * len(y) >= NEAR_PAIRS:
            rows = rows_of(x) if rows is None else rows
            problem = problem._replace(rows=rows, rows_y=rows if y is x else rows_of(y))
        return Leaky(problem, self.reach**self.p)

    def _log_mass(self, target: Cloud) -> Tensor:
        return log_weight(self.mass * target.mass().double())

    def _target_half(self, target: Cloud, compiled: bool) -> float:
        """Half of OT(target, target): from `prepare`, or now."""
        memo = target.memo
        if memo and memo.get("loss") == self and memo.get("of") is target.x:
            return float(memo["half"])
        y, log_b = target.x - _centre(target), self._log_mass(target)
        return 0.5 * self._own(self._leaky(y, y, log_b, log_b, compiled), None).value


def _centre(target: Cloud) -> Tensor:
    return target.x.double().mean(0).to(target.x.dtype)


def _is_small(problem: Problem) -> bool:
    return len(problem.x) * len(problem.y) <= _SMALL and problem.x.device.type != "mps"
