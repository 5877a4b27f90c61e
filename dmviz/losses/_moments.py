"""Means, deviations and central moments of clouds, column by column, and a root that is smooth at zero."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.cloud import mass_of
from dmviz.losses._lines import accurate

_EPS = 1e-12  # below this square a parabola takes the place of the root


class Columns(NamedTuple):
    """Points about their mean, in float64."""

    mass: Tensor  # (N,)
    mean: Tensor  # (D,)
    z: Tensor  # (N, D)
    floor: Tensor  # (D,) deviations up to here are rounding


def columns(x: Tensor, weight: Tensor | None) -> Columns:
    """Weighted mean of points (N, D), and the points about it; differentiable in x."""
    wide, mass = x.to(accurate(x)), mass_of(x, weight).to(accurate(x))
    mean = wide.mean(0) if weight is None else mass @ wide
    floor = 64 * torch.finfo(wide.dtype).eps * wide.detach().abs().amax(0)
    return Columns(mass, mean, wide - mean, floor)


def moment(cloud: Columns, power: int) -> Tensor:
    """(D,) central moments, divided by the number of points."""
    return cloud.mass @ cloud.z.pow(power)


def deviation(cloud: Columns) -> Tensor:
    """(D,) standard deviations; 0 with gradient 0 where a column is constant."""
    variance = moment(cloud, 2)
    spread = variance > cloud.floor.square()
    return torch.where(spread, torch.where(spread, variance, 1.0).sqrt(), 0.0)


def unbiased(mass: Tensor) -> Tensor:
    """() what turns a covariance into its unbiased one: 1 / (1 - sum a_i^2), n / (n - 1) for n equal weights.

    0 for a single point, which has no spread.
    """
    rest = 1.0 - mass.to(accurate(mass)).square().sum()
    return torch.where(rest > 1e-12, 1.0 / rest.clamp_min(1e-12), 0.0)


def smooth_root(square: Tensor) -> Tensor:
    """The root, but a parabola below 1e-12, so that its slope stays finite and the value at 0 is 0."""
    u = square / _EPS
    small = math.sqrt(_EPS) * (1.5 - 0.5 * u.clamp_max(1.0)) * u
    return torch.where(u < 1, small, square.clamp_min(_EPS).sqrt())


def root_slope(square: Tensor) -> Tensor:
    """The derivative of `smooth_root`."""
    return torch.where(square < _EPS, (1.5 - square / _EPS) / math.sqrt(_EPS), 0.5 / square.clamp_min(_EPS).sqrt())
