r"""Soft histograms: each coordinate's mass shared out over K bins, and what a slope on the bins does to a particle.

A point at u bin widths from the first centre, held within the first and the last centre, gives bin k the share
phi_k(u); the mass of bin k is $h_k = \sum_i a_i \phi_k(u_i)$.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.losses._lines import accurate

Bump = Literal["gaussian", "triangular", "sigmoid"]

_FLOOR = 1e-6  # mass that every bin is given before a logarithm


class Bins(NamedTuple):
    """K equally spaced centres on each of D axes."""

    first: Tensor  # (D,) lowest centre, float64
    width: Tensor  # (D,) from one centre to the next
    size: int

    @classmethod
    def around(cls, middle: Tensor, reach: Tensor, count: int) -> "Bins":
        """Centres from middle - reach to middle + reach, both (D,)."""
        return cls(middle - reach, 2.0 * reach / (count - 1), count)

    def place(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) position in bin widths from the first centre, held within the centres, and where nothing held it."""
        free = (x.to(self.first.dtype) - self.first) / self.width
        held = free.clamp(0.0, self.size - 1.0)
        return held, held == free


def histogram(x: Tensor, mass: Tensor, bins: Bins, bump: Bump, softness: float = 1.0) -> Tensor:
    """(D, K) mass in each bin, float64 and differentiable in x (N, D); time N D K, or N D for triangular bumps."""
    u, _ = bins.place(x)
    mass = mass.to(u.dtype)
    if bump == "triangular":
        return _linear_histogram(u, mass, bins.size)
    total = u.new_zeros((u.shape[1], bins.size))
    if bump == "gaussian":  # differences of a box's two edges need all digits; a bell does not
        u, mass = u.to(x.dtype), mass.to(x.dtype)
    for rows in _row_tiles(len(u), u.shape[1] * bins.size):
        if u.requires_grad:
            part = checkpoint(_tile, u[rows], mass[rows], bins.size, bump, softness, use_reentrant=False)
        else:
            part = _tile(u[rows], mass[rows], bins.size, bump, softness)
        total = total + part
    return total


@torch.no_grad()
def pull(x: Tensor, slope: Tensor, bins: Bins, bump: Bump, softness: float = 1.0) -> Tensor:
    """(N, D) gradient of sum_k slope_k phi_k at each point: what a derivative (D, K) on the bins says to it."""
    u, inside = bins.place(x)
    if bump == "triangular":
        rise = slope.diff(dim=1)  # (D, K - 1) between neighbouring centres
        grad = rise.gather(1, _cell(u, bins.size).T).T
    else:
        grad = torch.empty_like(u)
        if bump == "gaussian":
            u, slope = u.to(x.dtype), slope.to(x.dtype)
        for rows in _row_tiles(len(u), u.shape[1] * bins.size):
            grad[rows] = (
                _gaussian_rise(u[rows], slope, softness) if bump == "gaussian" else _edge_rise(u[rows], slope, softness)
            )
    return torch.where(inside, grad / bins.width, 0.0)


def spread_of(target: Tensor, reach: float, widen: float) -> tuple[Tensor, Tensor]:
    """Middle and half-width of the target's own range, (D,) each, widened; `reach` where the target has no width."""
    y = target.detach().to(accurate(target))
    low, high = y.amin(0), y.amax(0)
    half = 0.5 * (high - low)
    return low + half, torch.where(half > 0, widen * half, reach)


def normalised(h: Tensor) -> Tensor:
    """(D, K) shares that sum to 1 on each axis."""
    return h / h.sum(1, keepdim=True)


def floored(p: Tensor) -> Tensor:
    """(D, K) shares with a little mass in every bin, so that each has a logarithm."""
    return (p + _FLOOR) / (1.0 + p.shape[1] * _FLOOR)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """(D,) sum p log(p / q) on each axis, in nats."""
    return (p * (p / q).log()).sum(1)


def through_floor(slope: Tensor, h: Tensor) -> Tensor:
    """(D, K) derivative in the raw masses h of what has derivative `slope` in `floored(normalised(h))`."""
    slope = slope / (1.0 + h.shape[1] * _FLOOR)
    total = h.sum(1, keepdim=True)
    return (slope - (slope * h).sum(1, keepdim=True) / total) / total


def _row_tiles(n: int, columns: int) -> Iterator[slice]:
    """Ranges of rows of about 1 MB of float64."""
    step = max(1, (1 << 17) // max(columns, 1))
    for i in range(0, n, step):
        yield slice(i, i + step)


def _cell(u: Tensor, count: int) -> Tensor:
    """(N, D) the centre at or below each point, the last but one at most."""
    return u.detach().long().clamp_(0, count - 2)


def _linear_histogram(u: Tensor, mass: Tensor, count: int) -> Tensor:
    """Each point's mass split between its two neighbouring centres, nearer ones getting more."""
    cell = _cell(u, count)
    above = u - cell
    rows = torch.arange(u.shape[1], device=u.device) * count + cell
    flat = u.new_zeros(u.shape[1] * count)
    flat = flat.index_add(0, rows.flatten(), (mass[:, None] * (1.0 - above)).flatten())
    flat = flat.index_add(0, (rows + 1).flatten(), (mass[:, None] * above).flatten())
    return flat.view(u.shape[1], count)


def _tile(u: Tensor, mass: Tensor, count: int, bump: Bump, softness: float) -> Tensor:
    """(D, K) from a few rows u (B, D)."""
    if bump == "gaussian":
        phi = _away(u, count).div(softness).square().mul(-0.5).softmax(-1)
        return torch.einsum("n,ndk->dk", mass, phi)
    edge = torch.einsum("n,ndk->dk", mass, torch.sigmoid(_to_edges(u, count) / softness))
    return edge[:, :-1] - edge[:, 1:]


def _away(u: Tensor, count: int) -> Tensor:
    """(B, D, K) from each point to each centre, in bin widths."""
    return torch.arange(count, dtype=u.dtype, device=u.device) - u[..., None]


def _to_edges(u: Tensor, count: int) -> Tensor:
    """(B, D, K + 1) how far each point is above each edge between bins."""
    return u[..., None] - torch.arange(count + 1, dtype=u.dtype, device=u.device) + 0.5


def _gaussian_rise(u: Tensor, slope: Tensor, softness: float) -> Tensor:
    away = _away(u, slope.shape[1]).div_(softness)
    phi = away.square().mul_(-0.5).softmax(-1)
    mean = (phi * slope).sum(-1)
    away = away.mul_(phi)
    return ((away * slope).sum(-1) - mean * away.sum(-1)) / softness


def _edge_rise(u: Tensor, slope: Tensor, softness: float) -> Tensor:
    s = torch.sigmoid(_to_edges(u, slope.shape[1]).div_(softness))
    bell = s * (1.0 - s) / softness  # (B, D, K + 1)
    step = torch.cat((slope[:, :1], slope.diff(dim=1), -slope[:, -1:]), dim=1)
    return (bell * step).sum(-1)
