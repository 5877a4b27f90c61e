"""Bures-Wasserstein distance: transport between the Gaussians that match the clouds' means and covariances."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import entry
from dmviz.protocols import Velocity

_KEY = "bures_wasserstein"


@entry
class BuresWasserstein:
    r"""See only mean and covariance of each cloud, and move as between two Gaussians that have them.

    $$ F = |m_1 - m_2|^2 + \operatorname{tr}\bigl(S_1 + S_2 - 2 (S_2^{1/2} S_1 S_2^{1/2})^{1/2}\bigr) $$

    with weighted means $m$ and covariances $S$ (of the clouds as they are: divided by N, not N - 1). It is W2 squared
    between Gaussians, at most W2 squared between the clouds, and the squared Frechet distance that is used to judge
    pictures. Unit: length squared. All particles follow one affine map,

    $$ v(x) = 2\,\bigl(m_2 + T (x - m_1) - x\bigr),\qquad
       T = S_2^{1/2} (S_2^{1/2} S_1 S_2^{1/2})^{-1/2} S_2^{1/2}. $$

    Fails: blind to everything but two moments, so two moons and a Gaussian of the same covariance are equal. Particles
    in a flat (N <= D, or on a line) stay in it: directions in which they do not spread at all feel no pull.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [5.0]])
    >>> round(BuresWasserstein()(here, Cloud(there), seeded(0)).item(), 4)  # means 0 and 3, deviations 1 and 2
    10.0

    ```
    """

    title = "Bures-Wasserstein"
    family = "transport"
    source = ("gelbrich1990", "bhatia2019")
    needs = "samples"
    cost = "(N + M) D^2 + D^3 time, N + M + D^2 memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    degree = 2.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here = moments(x, weight)
        gap = gap_between(here.covariance.detach(), _there(target))
        # The root's derivative is T / 2 (envelope): no derivative of an eigenvector, which repeated eigenvalues lack.
        trace = here.covariance.diagonal().sum() - (gap.map * (here.covariance - here.covariance.detach())).sum()
        return ((here.mean - gap.mean).square().sum() + (trace - gap.shared).clamp_min(0.0)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Twice the way to where the best map between the two Gaussians sends a particle."""
        here = moments(x, weight)
        gap = gap_between(here.covariance, _there(target))
        value = (here.mean - gap.mean).square().sum() + (here.covariance.diagonal().sum() - gap.shared).clamp_min(0.0)
        v = _pull(here.z, here.rest, here, gap)
        return Velocity(v if weight is None else torch.where(weight[:, None] > 0, v, 0.0), value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same affine pull, at any points (K, D) among particles x."""
        here = moments(x, weight)
        near = (here.mean - here.rest).to(x.dtype)  # where here.z is counted from
        return _pull(at - near, here.rest, here, gap_between(here.covariance, _there(target)))

    def prepare(self, target: Cloud) -> Cloud:
        """The target's mean and the root of its covariance."""
        return replace(target, memo={**(target.memo or {}), _KEY: rooted(target)})


class Moments(NamedTuple):
    """Mean and covariance, in float64, and the points about their mean, as they came."""

    mean: Tensor  # (D,)
    covariance: Tensor  # (D, D)
    z: Tensor  # (N, D)
    rest: Tensor  # (D,) mean of z: what rounding left of it


class Rooted(NamedTuple):
    """Moments of a target, with a root of the covariance."""

    mean: Tensor  # (D,)
    trace: Tensor  # ()
    root: Tensor  # (D, D) some R with R R^T the covariance
    dtype: torch.dtype


class Gap(NamedTuple):
    """From one Gaussian to another."""

    mean: Tensor  # (D,) of the target
    map: Tensor  # (D, D) the matrix T
    shared: Tensor  # () 2 tr (S2^1/2 S1 S2^1/2)^1/2 - tr S2


def moments(x: Tensor, weight: Tensor | None) -> Moments:
    """Weighted mean and covariance of (N, D) points, divided by their number."""
    wide = accurate(x)
    near = _mean(x.detach(), weight)
    z = x - near
    rest = _mean(z, weight).to(wide)  # near the origin a mean in the points' own precision is as good as they are
    return Moments(near.to(wide) + rest, _second_moment(z, weight) - torch.outer(rest, rest), z, rest)


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.mean(0) if weight is None else weight.to(x.dtype) @ x


def _second_moment(z: Tensor, weight: Tensor | None) -> Tensor:
    """(D, D) weighted mean of z z^T: in float64 where that is cheap or where a flat cloud may hang on its digits."""
    wide = accurate(z)
    n, d = z.shape
    rows = n if d <= 16 or n < 4 * d else 2048
    if rows == n:
        z = z.to(wide)
    total = z.new_zeros((d, d), dtype=wide)
    for part, mass in zip(torch.split(z, rows), torch.split(mass_of(z, weight), rows), strict=True):
        other = part if weight is None else part * mass[:, None]
        total = total + (other.T @ part).to(wide)
    return total / n if weight is None else total


def rooted(target: Cloud) -> Rooted:
    """The target's part of `gap_between`."""
    mean, covariance, *_ = moments(target.x.detach(), target.weight)
    return Rooted(mean, covariance.diagonal().sum(), _root(covariance), target.x.dtype)


def _root(covariance: Tensor) -> Tensor:
    """R with R R^T = S: triangular, which costs little, and from the eigenvectors where S is flat."""
    on_cpu = covariance.device.type == "cpu"  # elsewhere a look at how it went would stall the device
    if on_cpu and bool(torch.isfinite(covariance).all()):
        found = torch.linalg.cholesky_ex(covariance)
        if not found.info:
            triangle: Tensor = found.L
            return triangle
    value, vector = _eigen(torch.nan_to_num(covariance, 0.0, 0.0, 0.0) if on_cpu else covariance)
    root: Tensor = vector * value.clamp_min(0.0).sqrt()
    return root


def gap_between(covariance: Tensor, there: Rooted) -> Gap:
    r"""The best map $T = R (R^T S_1 R)^{-1/2} R^T$ between two Gaussians, R any root of the target's covariance."""
    product = there.root.T @ covariance @ there.root
    # eigh stops at numbers that are not finite; a run that has blown up is to end by its NaN instead.
    lost = torch.where(torch.isfinite(product).all(), 0.0, torch.nan)
    value, vector = _eigen(torch.nan_to_num((product + product.T) / 2, 0.0, 0.0, 0.0))
    # Eigenvalues that are rounding errors are zero, and so is the map along them (pseudo-inverse).
    floor = len(value) * torch.finfo(value.dtype).eps * value[-1].clamp_min(0.0)
    root = torch.where(value > floor, value, 0.0).sqrt()
    inverse = torch.where(root > 0, 1 / torch.where(root > 0, root, 1.0), 0.0)
    half = there.root @ vector
    return Gap(there.mean, (half * inverse) @ half.T + lost, 2 * root.sum() - there.trace + lost)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rising, and eigenvectors of a symmetric matrix; on the CPU where the device cannot."""
    value, vector = torch.linalg.eigh(matrix.cpu() if matrix.device.type == "mps" else matrix)
    return value.to(matrix), vector.to(matrix)


def _there(target: Cloud) -> Rooted:
    kept = (target.memo or {}).get(_KEY)
    if isinstance(kept, Rooted) and kept.root.device == target.x.device and kept.dtype == target.x.dtype:
        return kept
    return rooted(target)


def _pull(z: Tensor, rest: Tensor, here: Moments, gap: Gap) -> Tensor:
    """2 (m2 + T (x - m1) - x) at points whose distance from m1 is z - rest: nothing is lost far from the origin."""
    turn = gap.map - torch.eye(len(gap.map), dtype=gap.map.dtype, device=gap.map.device)
    shift = gap.mean - here.mean - turn @ rest
    return torch.addmm(shift.to(z.dtype), z, turn.to(z.dtype), beta=2, alpha=2)
