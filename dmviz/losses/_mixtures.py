"""Gaussian mixtures: fitted to a cloud, and transport between two of them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dmviz.losses._lines import accurate
from dmviz.losses.wasserstein import simplex_plan

_RIDGE = 1e-3
"""What every variance in a fit has at least, in the cloud's mean variance: no component shrinks onto one point."""

_PRODUCTS = 8
"""Up to this dimension a round of the fit is two matrix products."""

_STILL = 1e-7
"""Responsibilities that change by no more have arrived."""


class Mixture(NamedTuple):
    """Weights that sum to 1, means and covariances of K Gaussians, in float64."""

    weight: Tensor  # (K,)
    mean: Tensor  # (K, D)
    covariance: Tensor  # (K, D, D)


def fitted(x: Tensor, a: Tensor, components: int, rounds: int, start: Mixture | None = None) -> tuple[Mixture, Tensor]:
    """A mixture by expectation maximisation and (N, K) responsibilities under it, for points with masses a.

    From `start`, or from k-means that begins at points far from each other: chosen by place and mass, not by row and
    not by chance, so that neither the order of points nor a seed matters. Fewer components where the cloud has fewer
    different points.
    """
    x, a = x.detach().to(accurate(x)), a.detach().to(accurate(x))
    middle = a @ x
    x = x - middle
    ridge = _RIDGE * float(a @ x.square().sum(1)) / x.shape[1]
    powers = _powers(x) if x.shape[1] <= _PRODUCTS else None
    model = start._replace(mean=start.mean - middle) if start is not None else _begun(x, a, components, ridge)
    share = _shares(model, x, powers)
    for _ in range(rounds):
        model = _spread(moments_of(x, a, share) if powers is None else _moments(powers, a, share), ridge)
        before, share = share, _shares(model, x, powers)
        if not float((share - before).abs().max()) > _STILL:
            break
    return model._replace(mean=model.mean + middle), share


def _begun(x: Tensor, a: Tensor, components: int, ridge: float) -> Mixture:
    """Where the fit starts: what ten rounds of k-means make of points far apart."""
    share = _near(x, _centres(x, a, components))
    for _ in range(10):
        share = _near(x, moments_of(x, a, share).mean)
    return _spread(moments_of(x, a, share), ridge)


def _powers(x: Tensor) -> Tensor:
    """(N, 1 + D + D^2): 1, x and x x^T, of which sums and quadratic forms are one matrix product."""
    return torch.cat((torch.ones_like(x[:, :1]), x, (x[:, :, None] * x[:, None, :]).flatten(1)), dim=1)


def _moments(powers: Tensor, a: Tensor, share: Tensor) -> Mixture:
    """`moments_of` from the powers: quick, and exact enough while a fit is on its way."""
    sums = (a[:, None] * share).T @ powers  # (K, 1 + D + D^2)
    mass, sums = sums[:, 0], sums[:, 1:] / sums[:, :1].clamp_min(1e-300)
    d = math.isqrt(sums.shape[1])
    mean = sums[:, :d]
    return Mixture(mass, mean, sums[:, d:].reshape(-1, d, d) - mean[:, :, None] * mean[:, None, :])


def _shares(model: Mixture, x: Tensor, powers: Tensor | None) -> Tensor:
    """`responsibilities`, by one product with the powers where there are some."""
    if powers is None:
        return responsibilities(model, x)
    volume, inverse = _whitened(model)
    precision = inverse.mT @ inverse
    pull = (precision @ model.mean[:, :, None])[:, :, 0]
    known = model.weight.log() - volume - 0.5 * (pull * model.mean).sum(1)
    return (powers @ torch.cat((known[:, None], pull, -0.5 * precision.flatten(1)), dim=1).T).softmax(1)


def moments_of(x: Tensor, a: Tensor, share: Tensor) -> Mixture:
    """Mass, mean and covariance of each component, differentiable in x (N, D) with (N, K) shares held fixed."""
    part = a[:, None] * share  # (N, K)
    mass = part.sum(0)
    part = part / mass.clamp_min(1e-300)
    mean = part.T @ x
    wide = [(part[:, k, None] * (x - mean[k])).T @ (x - mean[k]) for k in range(len(mean))]
    return Mixture(mass, mean, torch.stack(wide))


def responsibilities(model: Mixture, x: Tensor) -> Tensor:
    """(N, K) probability that a point comes from each component."""
    volume, inverse = _whitened(model)
    far = [((x - mean) @ white.T).square().sum(1) for mean, white in zip(model.mean, inverse, strict=True)]
    found: Tensor = (model.weight.log() - volume - 0.5 * torch.stack(far, dim=1)).softmax(1)
    return found


def _whitened(model: Mixture) -> tuple[Tensor, Tensor]:
    """(K,) log root determinants and (K, D, D) inverse Cholesky factors."""
    root, bad = torch.linalg.cholesky_ex(model.covariance)
    lost = torch.where(bad > 0, torch.nan, 0.0)  # a run that has blown up ends by its NaN
    return root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + lost, torch.linalg.inv_ex(root)[0]


def _spread(model: Mixture, ridge: float) -> Mixture:
    one = torch.eye(model.mean.shape[1], dtype=model.mean.dtype, device=model.mean.device)
    return model._replace(covariance=model.covariance + max(ridge, 1e-280) * one)


def _centres(x: Tensor, a: Tensor, components: int) -> Tensor:
    """(K, D) points: each next one has the largest mass times squared distance from those before it."""
    far = (x - a @ x).square().sum(1)
    least = 1e-24 * float(far.max())
    found = [x[(a * far).argmax()]]
    far = (x - found[0]).square().sum(1)
    while len(found) < components:
        gain = a * far
        at = gain.argmax()
        if not (gain[at] > 0 and far[at] > least):
            break
        found.append(x[at])
        far = torch.minimum(far, (x - found[-1]).square().sum(1))
    return torch.stack(found)


def _near(x: Tensor, centres: Tensor) -> Tensor:
    """(N, K) one for the nearest centre, 0 elsewhere."""
    far = torch.stack([(x - centre).square().sum(1) for centre in centres], dim=1)
    return torch.nn.functional.one_hot(far.argmin(1), len(centres)).to(x.dtype)


class Between(NamedTuple):
    r"""Every Gaussian of one mixture against every one of another."""

    cost: Tensor  # (K, L) W2 squared
    shared: Tensor  # (K, L) 2 tr (S'^1/2 S S'^1/2)^1/2 - tr S'
    map: Tensor  # (K, L, D, D) the best maps' matrices T


def between(one: Mixture, other: Mixture) -> Between:
    """The table of squared Bures-Wasserstein distances; see `bures_wasserstein` for one pair."""
    lost = torch.where(torch.isfinite(one.covariance).all() & torch.isfinite(one.mean).all(), 0.0, torch.nan)
    root = symmetric_root(other.covariance)  # (L, D, D)
    product = root @ torch.nan_to_num(one.covariance, 0.0, 0.0, 0.0)[:, None] @ root  # (K, L, D, D)
    value, vector = torch.linalg.eigh((product + product.mT) / 2)
    # Eigenvalues that are rounding errors are zero, and so is the map along them (pseudo-inverse).
    unit = torch.finfo(value.dtype).eps
    floor = value.shape[-1] * unit * value[..., -1:].clamp_min(0.0)
    # So are variances of points that coincide but for the rounding of their mean.
    noise = (64 * unit) ** 2 * (one.mean.square().sum(1) + _trace(one.covariance)).max()
    floor = torch.maximum(floor, noise * _trace(other.covariance)[:, None])
    value = torch.where(value > floor, value, 0.0).sqrt()
    inverse = torch.where(value > 0, 1 / torch.where(value > 0, value, 1.0), 0.0)
    half = root @ vector
    shared = 2 * value.sum(-1) - _trace(other.covariance) + lost
    wide = (_trace(one.covariance)[:, None] - shared).clamp_min(0.0)
    apart = (one.mean[:, None] - other.mean).square().sum(-1)
    return Between(apart + wide, shared, (half * inverse[..., None, :]) @ half.mT)


def symmetric_root(matrix: Tensor) -> Tensor:
    """Symmetric roots of (..., D, D) covariances."""
    value, vector = torch.linalg.eigh(matrix)
    root: Tensor = (vector * value.clamp_min(0.0).sqrt()[..., None, :]) @ vector.mT
    return root


def _trace(matrix: Tensor) -> Tensor:
    total: Tensor = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    return total


def mixture_plan(one: Mixture, other: Mixture, cost: Tensor) -> Tensor:
    """(K, L) the cheapest plan that carries the components' weights."""
    plan = torch.zeros_like(cost)
    if not torch.isfinite(cost).all():
        return plan + math.nan
    if 1 in cost.shape:
        return torch.outer(one.weight, other.weight)
    i, j, mass = simplex_plan(cost.detach().cpu().numpy(), one.weight, other.weight)
    plan[torch.from_numpy(i).to(cost.device), torch.from_numpy(j).to(cost.device)] = torch.from_numpy(mass).to(cost)
    return plan


def mixture_distance(one: Mixture, other: Mixture) -> Tensor:
    """() MW2 squared: transport that carries whole Gaussians."""
    cost = between(one, other).cost
    return (mixture_plan(one, other, cost) * cost).sum()
