r"""Kernel density estimates in tiles, by log-sum-exp: log densities, scores, and what moving a centre changes.

$$ q_h(z) = \sum_j a_j\, k(z - x_j), \qquad k(z) = (2\pi h^2)^{-D/2} e^{-|z|^2 / 2h^2},
   \qquad \nabla \log q_h(z) = \Bigl(\sum_j w_j x_j - z\Bigr) / h^2, \quad w_j \propto a_j k(z - x_j) $$

A point counts in its own density: left out, an isolated point would have none, and a score without bound.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import Cloud
from dmviz.losses import _compiled
from dmviz.losses._entropic import log_weight, softmin
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import DIRECT, differences, kernel_sums, tiles

_DEEP = 1e-20
"""Below this share of a bump's top the tail of a plain sum is no longer exact."""


class Density(NamedTuple):
    """Log density (K,) and score (K, D) at some points, float64."""

    log: Tensor
    score: Tensor


class Bumps(NamedTuple):
    """A Gaussian bump of width h on every point, with the point's weight.

    Plain sums of bumps are the quicker way, and exact where the density is not `_DEEP` below a bump's top; soft maxima
    serve the points beyond.
    """

    x: Tensor  # (N, D)
    a: Tensor  # (N,)
    h: float
    compiled: bool

    def log(self, at: Tensor) -> Tensor:
        """(K,) log density, without gradient."""
        s = kernel_sums(at, self.x, self.a, self._kernel, self.compiled, want_grad=False).s
        log, deep = s.log() - log_norm(self.x.shape[1], self.h), s < _DEEP
        if deep.any():
            log[deep] = self._softmax(at[deep], log_weight(self.a), False)[0]
        return log

    def __call__(self, at: Tensor) -> Density:
        s, grad = kernel_sums(at, self.x, self.a, self._kernel, self.compiled)
        log, score, deep = s.log() - log_norm(self.x.shape[1], self.h), grad / s[:, None], s < _DEEP
        if deep.any():
            log[deep], score[deep] = self._softmax(at[deep], log_weight(self.a), True)
        return Density(log, score)

    def pull(self, c: Tensor, log_q: Tensor, at: Tensor) -> Tensor:
        """(N, D) sum_k c_k grad_i k(z_k - x_i) / q(z_k) over the points z = `at` (K, D) with log density `log_q`.

        Far from the bumps positive and negative c are summed apart, so that k / q never leaves its range.
        """
        depth = log_q + log_norm(self.x.shape[1], self.h)
        deep = depth < math.log(_DEEP)
        w = torch.where(deep, 0.0, c * (-depth.clamp_min(math.log(_DEEP))).exp())
        total = kernel_sums(self.x, at, w, self._kernel, self.compiled).grad
        for sign in (1.0, -1.0):
            some = deep & (sign * c > 0)
            if some.any():
                turned = Bumps(at[some], self.a, self.h, self.compiled)
                log, way = turned._softmax(self.x, (sign * c[some]).log() - log_q[some], True)
                total += sign * log.clamp_max(600.0).exp()[:, None] * way
        return total

    @property
    def _kernel(self) -> Kernel:
        return Kernel("gaussian", (self.h,))

    def _softmax(self, at: Tensor, log_a: Tensor, want_grad: bool) -> tuple[Tensor, Tensor]:
        h2 = self.h * self.h
        soft = softmin(at, self.x, log_a, h2, 2, self.compiled, want_grad)
        log = soft.f * (-1.0 / h2) - log_norm(self.x.shape[1], self.h)
        return log, log if soft.grad is None else soft.grad * (-1.0 / h2)


def log_norm(d: int, h: float) -> float:
    return 0.5 * d * math.log(2.0 * math.pi * h * h)


def log_density(at: Tensor, x: Tensor, a: Tensor, h: float) -> Tensor:
    """(K,) log density of bumps on x, differentiable in `at` and in x; tiles are computed again on the way back.

    log S = L + (S e^-L - 1) at S = e^L: with L held fixed this has the value and the slope, and no exponent above 0.
    """
    with torch.no_grad():
        held = Bumps(x.detach(), a, h, False).log(at.detach())
    if not torch.is_grad_enabled() or not (at.requires_grad or x.requires_grad):
        return held
    log_a = log_weight(a) - log_norm(x.shape[1], h)
    rows: dict[int, Tensor] = {}
    for i, j in tiles(len(at), len(x), at):
        part = checkpoint(
            _shares, at[i], x[j], log_a[j], held[i], -0.5 / (h * h), use_reentrant=False, preserve_rng_state=False
        )
        rows[i.start] = rows[i.start] + part if i.start in rows else part
    return held + (torch.cat(list(rows.values())) - 1.0)


def _shares(at: Tensor, x: Tensor, log_a: Tensor, held: Tensor, scale: float) -> Tensor:
    """(B,) what the bumps on x add up to, as a share of the whole density at `at`."""
    z = scale * _squares(at, x).double() + log_a - held[:, None]
    return z.clamp(-80.0, 30.0).exp().sum(1)


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """(B, C) squared distances, differentiable; x and y must be near the origin in high dimension."""
    if x.shape[1] <= DIRECT:
        return sum(z * z for z in differences(x, y))  # type: ignore[return-value]
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2.0 * x @ y.T).clamp_min(0.0)


def near(x: Tensor, target: Cloud) -> tuple[Tensor, Tensor]:
    """Both clouds about one common middle, so that no digits are lost far from the origin."""
    middle = target.x.mean(0)
    return x - middle, target.x - middle


def scott(target: Cloud, otherwise: float) -> float:
    """Scott's width, s m^(-1/(D + 4)): s^2 is the mean variance of a coordinate, m counts weights as 1 / sum b^2.

    `otherwise` where the target does not spread.
    """
    memo = target.memo
    if memo and memo.get("of") is target.x and "scott" in memo:
        return float(memo["scott"])
    x, b = target.x.detach().double(), target.mass().double()
    x = x - x[:1]  # a point and its repetitions do not spread at all, not by rounding either
    spread = float((b @ (x - b @ x).square()).mean().sqrt())
    if not spread > 0:
        return otherwise
    crowd = float(b.square().sum())  # 1 / m
    return float(spread * crowd ** (1.0 / (target.dim + 4)))


def prepare_bumps(target: Cloud, h: float, scotts: bool) -> Cloud:
    """The target with which kernels the run will use, and with Scott's width where that is asked for."""
    memo: dict[str, Any] = {"of": target.x, "compiled": _compiled.chosen(None, target.x)}
    return replace(target, memo=memo | ({"scott": h} if scotts else {}))


def prepare_own_log(target: Cloud, h: float) -> Cloud:
    """A prepared target, with its log density at its own points (M,) too."""
    _, y = near(target.x, target)
    own = Bumps(y, target.mass(), h, _compiled.chosen(target.memo, y)).log(y)
    return replace(target, memo={**(target.memo or {}), "bumps": (h, own)})


def own_log(target: Cloud, bumps: Bumps) -> Tensor:
    """(M,) log density of the target's bumps at the target's points."""
    memo = target.memo
    if memo and memo.get("of") is target.x and "bumps" in memo and memo["bumps"][0] == bumps.h:
        return memo["bumps"][1]  # type: ignore[no-any-return]
    return bumps.log(bumps.x)


def led(x: Tensor, value: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """`value`, with the gradient -a v in x: for losses whose velocity is not the slope of what they report."""
    slope = (a[:, None] * v).detach()
    return value.detach() - ((x - x.detach()) * slope).sum()
