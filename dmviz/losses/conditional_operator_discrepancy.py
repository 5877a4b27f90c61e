"""Conditional operator discrepancy: how the law of z given y differs, the last coordinate being y."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

MOST = 2000
"""Points that fit a table of all pairs and its inverse."""


@entry
class ConditionalOperatorDiscrepancy:
    r"""Compare what the other coordinates do at each value of the last one, whatever values that one takes.

    The last coordinate is the condition y, the others are z. With gaussian kernels for both, the operator that turns a
    value y into the mean embedding of Z given y is estimated by ridge regression,

    $$ C_P = \Phi_P W_P \Psi_P^*, \qquad W_P = A^{1/2} (A^{1/2} L_P A^{1/2} + \lambda I)^{-1} A^{1/2}, $$

    with features Phi of z and Psi of y, weights A = diag(a) and kernel tables K of z and L of y; for equal weights
    W = (L + n lambda I)^{-1}. The loss is the Hilbert-Schmidt distance squared of the two operators, by traces

    $$ F = \| C_P - C_Q \|^2 = \mathrm{tr}(K_P W_P L_P W_P) + \mathrm{tr}(K_Q W_Q L_Q W_Q)
         - 2\,\mathrm{tr}(K_{PQ} W_Q L_{QP} W_P). $$

    Unit: none. The root is a metric on the estimated operators: 0 where both clouds hold the same conditional law at
    the values of y that both have, as the ridge goes to 0 and points become many. With a finite ridge how often a value
    occurs still matters a little: where y is rare the estimate shrinks to 0.

    A small ridge trusts every point and makes steep, uneven pulls; a large one compares little more than joint laws. A
    small condition bandwidth looks at thin slices of y, which need many points each. It fails where the two clouds
    share no y at all. Particles move in z and in y.

    Of the paper that names it only a summary was at hand: a Hilbert-Schmidt discrepancy of conditional mean operators.
    The estimator above is derived from Song et al. 2009 and agrees with the conditional MMD of Ren et al. 2016, whose
    ridge is n times ours. All pairs are stored: at most 2,000 points on either side.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[5.0, 0.0]])
    >>> loss = ConditionalOperatorDiscrepancy(bandwidth=5.0, ridge=1.0)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # (2 - 2 exp(-1/2)) / (1 + 1)^2
    0.1967

    ```
    """

    title = "Conditional operator discrepancy"
    family = "kernels"
    source = ("song2009hilbert", "ren2016conditional")
    needs = "samples"
    cost = "N^3 + M^3 time, (N + M)^2 memory; at most 2,000 points"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle", "deterministic"})
    degree = 0.0
    root = 2.0
    dims = (2, None)

    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far a particle feels in z. Small: only close neighbours; large: only conditional means",
        ),
    ] = 0.5
    condition_bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far in y two points still share a condition. Small: thin slices; large: y hardly matters",
        ),
    ] = 0.5
    ridge: Annotated[
        float,
        Range(
            1e-4, 10.0, log=True, help="Small: each point is trusted, pulls are steep; large: joint laws are compared"
        ),
    ] = 0.05

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        there = self._there(target)
        here = self._side(x, mass_of(x, weight), there.centre)
        cross = (self._z(here, there) * (here.w @ self._y(here, there) @ there.w)).sum()
        return (self._own(here) + there.own - 2.0 * cross).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """The slope of the traces in K and in L, where dW = -W dL W, and of both in the particles."""
        there, a = self._there(target), mass_of(x, weight).double()
        p, q = self._side(x, a, there.centre), there
        k, l, k_across, l_across = self._z(p, p), self._y(p, p), self._z(p, q), self._y(p, q)
        by_k, by_k_across = p.w @ l @ p.w, p.w @ l_across @ q.w
        inner, across = p.w @ k @ p.w, p.w @ k_across @ q.w
        # d tr(K W L W) = tr(dL (W K W - W L W K W - W K W L W)), and the same for the cross term.
        mixed = by_k @ (k @ p.w)
        by_l = inner - mixed - mixed.T
        bent = across @ l_across.T @ p.w  # W_P K_PQ W_Q L_QP W_P
        by_l = by_l + bent + bent.T
        value = (k * by_k).sum() + there.own - 2.0 * (k_across * by_k_across).sum()
        grad_z = _slope(p.z, p.z, 2.0 * by_k * k, self.bandwidth) - _slope(
            p.z, q.z, 2.0 * by_k_across * k_across, self.bandwidth
        )
        grad_y = _slope(p.y, p.y, 2.0 * by_l * l, self.condition_bandwidth) - _slope(
            p.y, q.y, 2.0 * across * l_across, self.condition_bandwidth
        )
        grad = torch.cat((grad_z, grad_y), 1)
        v = torch.where(a[:, None] > 0, -grad / a.clamp_min(1e-300)[:, None], 0.0)
        return Velocity(v.to(x.dtype), value.to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """The target's tables, inverted once."""
        return replace(target, memo={"of": target.x, "loss": self, "side": self._there(target)})

    @torch.no_grad()
    def _there(self, target: Cloud) -> "_Side":
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["side"]  # type: ignore[no-any-return]
        side = self._side(target.x, target.mass(), target.x.double().mean(0))
        return side._replace(own=self._own(side))

    def _side(self, x: Tensor, a: Tensor, centre: Tensor) -> "_Side":
        if len(x) > MOST:
            raise ValueError(
                f"ConditionalOperatorDiscrepancy stores all pairs and takes at most {MOST:,} points, got {len(x):,}. "
                "Take fewer, or compare joint laws with MMD."
            )
        x, root = x.double() - centre, a.double().sqrt()
        z, y = x[:, :-1], x[:, -1:]
        gram = root[:, None] * _gaussian(y, y, self.condition_bandwidth) * root
        factor = torch.linalg.cholesky(gram + self.ridge * torch.eye(len(x), dtype=gram.dtype, device=gram.device))
        return _Side(z, y, root[:, None] * torch.cholesky_inverse(factor) * root, centre, centre.new_zeros(()))

    def _own(self, side: "_Side") -> Tensor:
        return (self._z(side, side) * (side.w @ self._y(side, side) @ side.w)).sum()

    def _z(self, p: "_Side", q: "_Side") -> Tensor:
        return _gaussian(p.z, q.z, self.bandwidth)

    def _y(self, p: "_Side", q: "_Side") -> Tensor:
        return _gaussian(p.y, q.y, self.condition_bandwidth)


class _Side(NamedTuple):
    """One cloud: what is conditioned, on what, and the ridge's inverse; all float64."""

    z: Tensor  # (N, D - 1)
    y: Tensor  # (N, 1)
    w: Tensor  # (N, N)
    centre: Tensor  # (D,) taken off
    own: Tensor  # () |C|^2, of the target alone


def _gaussian(x: Tensor, y: Tensor, length: float) -> Tensor:
    r2 = x.square().sum(1)[:, None] + y.square().sum(1) - 2.0 * x @ y.T
    return (r2 * (-0.5 / length**2)).clamp(-80.0, 0.0).exp()


def _slope(x: Tensor, y: Tensor, weighed: Tensor, length: float) -> Tensor:
    """sum_j weighed_ij times the way from x_i to y_j over l^2: the slope of a sum of gaussians."""
    return (weighed @ y - weighed.sum(1, keepdim=True) * x) / length**2
