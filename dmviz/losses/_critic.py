r"""A critic that tells two clouds apart: logistic regression on features, solved exactly by Newton's method.

With labels 1 on y (weights b) and 0 on x (weights a), and equal shares of both, the weights w of the features solve

$$ \min_w\ \tfrac12 \sum_j b_j \log(1 + e^{-T(y_j)}) + \tfrac12 \sum_i a_i \log(1 + e^{T(x_i)})
   + \tfrac{\rho}{2} |w|^2, \qquad T = w \cdot \phi, $$

whose solution T estimates log p / q. It is unique for rho > 0, so a warm start saves work and changes nothing.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dmviz.cloud import seeded

Features = Literal["linear", "quadratic", "waves"]
_MOST_QUADRATIC = 24


class Frame(NamedTuple):
    """Where and in which units the critic sees the points, and which waves it knows."""

    middle: Tensor  # (D,) float64
    spread: float
    features: Features
    waves: Tensor | None  # (D, W), 1 / length


class Critic(NamedTuple):
    """A fitted critic: its frame and the weights of its features."""

    frame: Frame
    w: Tensor  # (F,) float64

    def log_ratio(self, at: Tensor) -> Tensor:
        """(K,) T, float64 and differentiable in `at`."""
        return features(at, self.frame) @ self.w

    def slope(self, at: Tensor) -> Tensor:
        """(K, D) gradient of T."""
        (middle, spread, kind, waves), d = self.frame, at.shape[1]
        z = at.double() - middle
        grad = (self.w[1 : d + 1] / spread).expand(len(z), d)
        if kind == "quadratic":
            table = torch.zeros(d, d, dtype=z.dtype, device=z.device)
            i, j = torch.triu_indices(d, d, device=z.device)
            table[i, j] = self.w[d + 1 :] * _turning(i, j, z)
            grad = grad + z @ (table + table.T) / spread**2
        if waves is not None:
            phase, count = z @ waves, waves.shape[1]
            turned = phase.cos() * self.w[d + 1 + count :] - phase.sin() * self.w[d + 1 : d + 1 + count]
            grad = grad + turned @ waves.T / math.sqrt(count)
        return grad


def _turning(i: Tensor, j: Tensor, like: Tensor) -> Tensor:
    """Factors under which the products z_i z_j, i <= j, keep their length when space turns."""
    return torch.where(i == j, like.new_tensor(1.0), like.new_tensor(math.sqrt(2.0)))


def features(at: Tensor, frame: Frame) -> Tensor:
    """(K, F): 1, the coordinates, and their products or waves; scaled so that turning space turns them too."""
    z = at.double() - frame.middle
    parts = [torch.ones_like(z[:, :1]), z / frame.spread]
    if frame.features == "quadratic":
        i, j = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
        parts.append(z[:, i] * z[:, j] * (_turning(i, j, z) / frame.spread**2))
    if frame.waves is not None:
        phase = z @ frame.waves
        parts += [part / math.sqrt(frame.waves.shape[1]) for part in (phase.cos(), phase.sin())]
    return torch.cat(parts, 1)


def frame_of(
    clouds: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], kind: Features, count: int, length: float, seed: int
) -> Frame:
    """Middle and spread of the two clouds together, half of the mass each, and the waves drawn once for a seed."""
    # Far from the origin weights whose float32 sum is not 1 would move the middle.
    (x, a), (y, b) = ((z.detach().double(), w.double() / w.double().sum()) for z, w in clouds)
    d = x.shape[1]
    if kind == "quadratic" and d > _MOST_QUADRATIC:
        raise ValueError(
            f"ClassifierDivergence: quadratic features serve up to {_MOST_QUADRATIC} dimensions, got {d}; take linear."
        )
    middle = 0.5 * (a @ x + b @ y)
    spread = (0.5 * (a @ (x - middle).square() + b @ (y - middle).square())).mean().sqrt()
    waves = None
    if kind == "waves":
        drawn = torch.randn(d, count, generator=seeded(seed, d, count), dtype=torch.float64)
        waves = (drawn / length).to(x.device)
    return Frame(middle, float(spread) if spread > 0 else 1.0, kind, waves)


def fitted(
    x: Tensor, a: Tensor, y: Tensor, b: Tensor, frame: Frame, ridge: float, start: Tensor | None = None
) -> Critic:
    """The best critic, by Newton's method with halved steps, from `start` where it fits."""
    phi = torch.cat([features(y, frame), -features(x, frame)])  # on the side where T should be large
    share = 0.5 * torch.cat([b, a]).double()
    w = torch.zeros_like(phi[0]) if start is None or start.shape != phi[0].shape else start
    cost = _cost(phi @ w, share, w, ridge)
    for _ in range(100):
        wrong = (-(phi @ w)).sigmoid()
        slope = ridge * w - phi.T @ (share * wrong)
        curve = phi.T @ (phi * (share * wrong * (1.0 - wrong))[:, None])
        curve.diagonal().add_(ridge)
        step = -_solved(curve, slope)
        size = 1.0
        while size > 1e-6:
            after = _cost(phi @ (w + size * step), share, w + size * step, ridge)
            if after <= cost + 1e-14 * cost.abs():
                break
            size *= 0.5
        w, cost = w + size * step, after
        if float(step.abs().max()) <= 1e-9 * (1.0 + float(w.abs().max())) or size <= 1e-6:
            break
    return Critic(frame, w)


def _solved(curve: Tensor, slope: Tensor) -> Tensor:
    """curve^-1 slope by Cholesky; a curve that rounding left singular is lifted until it is not."""
    lift, trace = 0.0, float(curve.diagonal().sum())
    while True:
        root, wrong = torch.linalg.cholesky_ex(curve)
        if int(wrong) == 0 or not math.isfinite(trace):
            return torch.cholesky_solve(slope[:, None], root)[:, 0]
        lift = max(10.0 * lift, 1e-15 * trace)
        curve = curve + lift * torch.eye(len(curve), dtype=curve.dtype, device=curve.device)


def _cost(margin: Tensor, share: Tensor, w: Tensor, ridge: float) -> Tensor:
    return share @ softplus(-margin) + 0.5 * ridge * (w @ w)
