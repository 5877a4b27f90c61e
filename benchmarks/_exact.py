"""Entropic transport to rounding error in float64, with all pairs in memory: what Sinkhorn methods are held to."""

import torch
from torch import Tensor


def sinkhorn_gradient(x: Tensor, y: Tensor, blur: float) -> Tensor:
    """(N, D) gradient in X of the Sinkhorn divergence, cost |x - y|^2 / 2, uniform weights: (T_xx(x) - T_xy(x)) / N."""
    x, y = x.double(), y.double()
    return (shares(x, x, blur) @ x - shares(x, y, blur) @ y) / len(x)


def shares(x: Tensor, y: Tensor, blur: float) -> Tensor:
    """(N, M) where each x sends its mass, rows summing to 1, by Newton's method on the potential of y.

    f is kept as the soft minimum of g, so that rows always fit, and g is moved until columns do. Annealed from a blur
    as wide as the clouds. Raises ArithmeticError where the columns are still off by more than 1e-9 in the end.
    """
    cost = 0.5 * (x[:, None] - y[None]).square().sum(-1)  # (N, M)
    g, eps, last = torch.zeros(len(y), dtype=torch.float64), float(cost.max()), blur**2
    while eps > last:
        g = _newton(cost, g, eps, 1)
        eps *= 0.4
    g = _newton(cost, g, last, 60)
    plan, missed = _plan(cost, g, last)
    if float(missed.abs().sum()) > 1e-9:
        raise ArithmeticError(
            f"the reference did not converge: {float(missed.abs().sum()):.1e} of the mass is misplaced"
        )
    return plan


def _plan(cost: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Shares (N, M), and what each column lacks (M,)."""
    share = torch.softmax((g - cost) / eps, dim=1)
    return share, 1.0 / cost.shape[1] - share.mean(0)


def _newton(cost: Tensor, g: Tensor, eps: float, steps: int) -> Tensor:
    n, m = cost.shape
    for _ in range(steps):
        # One sweep first: it brings back columns that nobody sends anything to.
        f = -eps * ((g - cost) / eps).logsumexp(1, keepdim=True)
        g = -eps * ((f - cost) / eps).logsumexp(0)
        share, missed = _plan(cost, g, eps)
        error = float(missed.abs().sum())
        if error < 1e-12:
            break
        hessian = torch.diag(share.mean(0)) - share.T @ share / n
        # A constant added to g changes nothing: fix it, so that the system can be solved.
        step = eps * torch.linalg.solve(hessian + 1.0 / m**2 + 1e-15 * torch.eye(m, dtype=g.dtype), missed)
        for size in (1.0, 0.3, 0.1, 0.03):
            trial = g + size * step
            if float(_plan(cost, trial, eps)[1].abs().sum()) < error:
                g = trial
                break
    return g
