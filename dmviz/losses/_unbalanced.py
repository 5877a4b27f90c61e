r"""Entropic transport that may also lose and make mass, in the log domain: potentials, and what they are worth.

$$ OT = \min_{\pi \ge 0} \langle \pi, C\rangle + \varepsilon KL(\pi | a \otimes b)
       + \rho KL(\pi 1 | a) + \rho KL(\pi^\top 1 | b) $$

has the dual, concave in both potentials,

$$ D(f, g) = \rho \langle a, 1 - e^{-f/\rho}\rangle + \rho \langle b, 1 - e^{-g/\rho}\rangle
           + \varepsilon \langle a \otimes b, 1 - e^{(f + g - C)/\varepsilon}\rangle, $$

where f is best, given g, at `damping` times the soft minimum of `_entropic`. The plan then sends $a_i e^{-f_i/\rho}$
from point i.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses._entropic import Effort, Problem, Soft, reachable, soft, temperatures
from dmviz.losses._pairs import squares
from dmviz.losses._potentials import accelerated, remembered


class Leaky(NamedTuple):
    """An entropic problem, whose weights are masses of any sum, and the price rho of mass lost or made."""

    problem: Problem
    rho: float

    @property
    def turned(self) -> "Leaky":
        return self._replace(problem=self.problem.turned)

    @property
    def damping(self) -> float:
        return self.rho / (self.rho + self.problem.eps)


class Potentials(NamedTuple):
    """The potential g on y, the best f on x for it, and the dual's value at both."""

    f: Tensor  # (N,) float64
    g: Tensor  # (M,) float64
    value: float
    grad: Tensor | None = None  # (N, D) `pull` at x, where it came along


def kept(h: Tensor, rho: float) -> Tensor:
    """e^{-h / rho}: the share of its mass that a point sends."""
    return (-h / rho).clamp(-700.0, 700.0).exp()


def dual(leaky: Leaky, f: Tensor, g: Tensor) -> float:
    """D(f, g) for f the best one for g: then the plan's whole mass is that of `kept(f)`."""
    a, b, rho = leaky.problem.log_a.exp(), leaky.problem.log_b.exp(), leaky.rho
    lost = a @ (-f / rho).clamp(-700.0, 700.0).expm1() + b @ (-g / rho).clamp(-700.0, 700.0).expm1()
    return float(-rho * lost + leaky.problem.eps * (a.sum() * b.sum() - a @ kept(f, rho)))


def pull(leaky: Leaky, g: Tensor) -> Tensor:
    """(N, D) gradient of the transport cost at each x over its mass: by the plan, not normalised."""
    return _sent(leaky, soft(leaky.problem, g, want_grad=True))


def _sent(leaky: Leaky, here: Soft) -> Tensor:
    assert here.grad is not None
    return kept(leaky.damping * here.f, leaky.rho)[:, None] * here.grad


def solve(leaky: Leaky, effort: Effort, g: Tensor | None = None) -> Potentials:
    """Potentials by accelerated sweeps from a start or, annealed, from cold.

    A sweep is both half-steps, then the constant that may move from f to g is set to its best: that one direction is
    all but flat where rho is large, and plain sweeps crawl along it. Stops as `_potentials.solve_pair` does.
    """
    problem, b = leaky.problem, leaky.problem.log_b.exp()
    g, pairs, last, best = _annealed(leaky) if g is None else g, None, None, None
    found, unit, enough = None, torch.finfo(problem.x.dtype).eps, max(effort.tolerance, reachable(problem))
    smallest, idle = float("inf"), 0
    for _ in range(effort.iterations):
        f = leaky.damping * soft(problem, g).f
        value = dual(leaky, f, g)
        floor = unit * (abs(value) + problem.eps)
        if best is not None and found is not None and not value >= found.value - floor:
            g, pairs, last, best = best, None, None, None  # a step that lost is taken back
            continue
        found = Potentials(f, g, value)
        r, slope, mass = _residual(leaky, f, g)
        drift = float(slope.abs().sum()) / max(mass, 1e-300)
        smallest, idle = (drift, 0) if drift < 0.9 * smallest else (smallest, idle + 1)
        if last is not None and drift < 1.0:
            pairs = remembered(pairs, g - last[0], r - last[1], b)
        last, best = (g, r), g + r
        step = accelerated(r, pairs, b) if drift < 1.0 else r
        gap = 0.5 * abs(float(slope @ step))
        if idle >= 50 or (drift <= enough and gap <= max(effort.share * (effort.known + value), floor)):
            return _ended(leaky, g + step, found)
        g = g + step
    assert found is not None
    return found


def _ended(leaky: Leaky, g: Tensor, found: Potentials) -> Potentials:
    """The last step's end, or where it began if that was better."""
    here = soft(leaky.problem, g, want_grad=True)
    f = leaky.damping * here.f
    value = dual(leaky, f, g)
    return Potentials(f, g, value, _sent(leaky, here)) if value >= found.value else found


def _residual(leaky: Leaky, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, float]:
    """What a sweep adds to g, the dual's slope in g, and the mass of the plan."""
    a, b, rho, eps = leaky.problem.log_a.exp(), leaky.problem.log_b.exp(), leaky.rho, leaky.problem.eps
    back = soft(leaky.problem.turned, f).f
    slope = b * (kept(g, rho) - ((g - back) / eps).clamp(-700.0, 50.0).exp())
    best = leaky.damping * back
    return best - _shift(leaky, f, best) - g, slope, float(a @ kept(f, rho))


def _shift(leaky: Leaky, f: Tensor, g: Tensor) -> float:
    """The constant which, added to f and taken off g, raises the dual most."""
    p, rho = leaky.problem, leaky.rho
    return 0.5 * rho * float((p.log_a - f / rho).logsumexp(0) - (p.log_b - g / rho).logsumexp(0))


def _annealed(leaky: Leaky) -> Tensor:
    """A rough potential on y, from blurs as wide as the clouds on down."""
    problem = leaky.problem
    g = torch.zeros(len(problem.y), dtype=torch.float64, device=problem.x.device)
    for eps in temperatures(problem):
        damping = leaky.rho / (leaky.rho + eps)
        f = damping * soft(problem, g, eps=eps).f
        g = damping * soft(problem.turned, f, eps=eps).f
        g = g - _shift(leaky, f, g)
    return g


def solve_self(leaky: Leaky, effort: Effort, start: Tensor | None = None) -> Potentials:
    """The one potential of a cloud's transport onto itself, by averaged updates, which halve the error."""
    problem, p, pairs, last, grad = leaky.problem, start, None, None, None
    if p is None:
        p = torch.zeros(len(problem.x), dtype=torch.float64, device=problem.x.device)
        for eps in temperatures(problem):
            p = 0.5 * (p + leaky.rho / (leaky.rho + eps) * soft(problem, p, eps=eps).f)
    a, floor = problem.log_a.exp(), torch.finfo(problem.x.dtype).eps * problem.eps
    enough = max(effort.tolerance, reachable(problem))
    for _ in range(effort.iterations):
        here = soft(problem, p, want_grad=True)
        f = leaky.damping * here.f
        r, sent = f - p, a * kept(f, leaky.rho)
        drift = float(sent @ (-r / problem.eps).clamp(-50.0, 50.0).expm1().abs()) / max(float(sent.sum()), 1e-300)
        gap = 0.5 * float(sent @ r.square()) / problem.eps
        if drift <= enough and gap <= max(effort.share * effort.known, floor):
            grad = _sent(leaky, here)
            break
        if last is not None and drift < 1.0:
            pairs = remembered(pairs, p - last[0], r - last[1], a)
        last = (p, r)
        p = p + accelerated(r, pairs, a, 0.5)
    return Potentials(f, p, dual(leaky, f, p), grad)


def solve_small(leaky: Leaky, g: Tensor | None = None) -> Potentials:
    """Potentials to rounding error for two small clouds in float64: sweeps, each followed by a Newton step.

    Newton's method works on the potential of the smaller cloud, of which the other's best is a function.
    """
    problem = leaky.problem
    if len(problem.x) < len(problem.y):
        back = solve_small(leaky.turned, None if g is None else leaky.damping * soft(problem, g).f)
        return Potentials(back.g, leaky.damping * soft(problem.turned, back.g).f, back.value)
    cost = squares(problem.x, problem.y)
    table = _Table(leaky, 0.5 * cost if problem.p == 2 else cost.sqrt())
    if g is None:
        g = torch.zeros_like(problem.log_b)
        for eps in temperatures(problem, 0.5):
            for _ in range(3):
                g, _ = _newton(table, g, eps)
    smallest, idle = float("inf"), 0
    while idle < 3 and smallest > 1e-14:
        g, drift = _newton(table, g, problem.eps)
        idle = 0 if drift < 0.5 * smallest else idle + 1
        smallest = min(smallest, drift)
    f, _, _ = table.rows(g, problem.eps)
    return Potentials(f, g, dual(leaky, f, g))


class _Table(NamedTuple):
    """A small problem with all its costs."""

    leaky: Leaky
    cost: Tensor  # (N, M)

    def rows(self, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """The best f for g, the plan's rows as shares (N, M), and the mass that each row sends."""
        p, rho = self.leaky.problem, self.leaky.rho
        z = (p.log_b + g / eps) - self.cost / eps
        total = z.logsumexp(1)
        f = -eps * rho / (rho + eps) * total
        return f, (z - total[:, None]).exp(), (p.log_a - f / rho).exp()

    def sweep(self, f: Tensor, eps: float) -> Tensor:
        p, rho = self.leaky.problem, self.leaky.rho
        back = -eps * rho / (rho + eps) * (p.log_a[:, None] + (f[:, None] - self.cost) / eps).logsumexp(0)
        return back - _shift(self.leaky, f, back)

    def dual(self, g: Tensor, eps: float) -> tuple[float, Tensor]:
        """The dual without its constant, and its slope in g."""
        p, rho = self.leaky.problem, self.leaky.rho
        _, share, sent = self.rows(g, eps)
        stay = (p.log_b - g / rho).exp()
        return -float(rho * stay.sum() + (rho + eps) * sent.sum()), stay - sent @ share


def _newton(table: _Table, g: Tensor, eps: float) -> tuple[Tensor, float]:
    """One sweep, and from there the longest Newton step that raises the dual; and the slope's size over the mass."""
    rho, log_b = table.leaky.rho, table.leaky.problem.log_b
    g = table.sweep(table.rows(g, eps)[0], eps)
    _, share, sent = table.rows(g, eps)
    stay = (log_b - g / rho).exp()
    slope, before = stay - sent @ share, -float(rho * stay.sum() + (rho + eps) * sent.sum())
    error, mass = float(slope.abs().sum()), max(float(sent.sum()), 1e-300)
    if error <= 1e-14 * mass:
        return g, error / mass
    diagonal = stay * (eps / rho) + sent @ share
    # Scaled to a diagonal of ones, points that next to no mass reaches are no worse than others.
    unit = torch.where(diagonal > 1e-280, diagonal.clamp_min(1e-280).rsqrt(), 0.0)
    inner = share.T @ (sent[:, None] * share) * (rho / (rho + eps))
    hessian = torch.diag((unit > 0).double() * (unit.square() * diagonal) + (unit <= 0).double())
    hessian = hessian - unit[:, None] * inner * unit
    step = eps * unit * torch.linalg.solve_ex(hessian, (unit * slope)[:, None])[0][:, 0].nan_to_num()
    step = step * min(1.0, 2.0 * float(table.cost.max()) / max(float(step.abs().max()), 1e-300))
    for _ in range(16):
        after, rest = table.dual(g + step, eps)
        missed = float(rest.abs().sum())
        if missed < 0.5 * error or after - before > 1e-4 * float(step @ slope):
            return g + step, missed / mass
        step = 0.3 * step
    return g, error / mass
