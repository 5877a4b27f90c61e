"""Wasserstein barycentres: the law whose mean squared distance to several others is least."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import even_levels, levels
from dmviz.losses._mixtures import symmetric_root
from dmviz.losses.wasserstein import Wasserstein


def line_barycenter(clouds: Sequence[Cloud], share: Tensor) -> Cloud:
    """On a line: the mean of the quantile functions. (K, 1) points in order with their masses.

    With equally many points of equal mass everywhere these are the means of the sorted columns.
    """
    points, steps = [], []
    for cloud in clouds:
        order = cloud.x[:, 0].argsort()
        points.append(cloud.x[order, 0].double())
        even = cloud.weight is None
        steps.append(even_levels(len(order), cloud.x)[0] if even else levels(cloud.mass().double()[order][None])[0])
    merged = torch.cat([step[1:] for step in steps]).sort().values.unique_consecutive()  # type: ignore[no-untyped-call]
    mean = torch.zeros_like(merged)
    for part, point, step in zip(share.double(), points, steps, strict=True):
        mean += part * point[torch.searchsorted(step[1:].contiguous(), merged).clamp(max=len(point) - 1)]
    return Cloud(mean[:, None], merged.diff(prepend=merged.new_zeros(1)))


def bures_barycenter(
    mean: Tensor, covariance: Tensor, share: Tensor, tolerance: float = 1e-14, most: int = 1000
) -> tuple[Tensor, Tensor]:
    r"""Of Gaussians with means (S, D) and covariances (S, D, D): mean and covariance of their barycentre.

    The fixed point of $$ \Sigma \leftarrow \Sigma^{-1/2} \Bigl(\sum_s \lambda_s (\Sigma^{1/2} \Sigma_s
    \Sigma^{1/2})^{1/2}\Bigr)^2 \Sigma^{-1/2}, $$ from the mean of the covariances, which must not be singular.
    """
    share = share / share.sum()
    found = torch.einsum("s,sij->ij", share, covariance)
    for _ in range(most):
        root = symmetric_root(found)
        inner = torch.einsum("s,sij->ij", share, symmetric_root(root @ covariance @ root))
        whole = torch.linalg.solve(root, inner)
        after = whole @ whole.T
        change = (after - found).norm()
        found = (after + after.T) / 2
        if not change > tolerance * found.norm():
            break
    return share @ mean, found


def free_barycenter(
    start: Tensor, clouds: Sequence[Cloud], share: Tensor, weight: Tensor | None = None, steps: int = 100,
    tolerance: float = 1e-9,
) -> Tensor:  # fmt: skip
    """(N, D) support points, moved each to the mean of where exact plans to all clouds send it until they are still.

    Each move lowers the mean squared distance; which of its many local minima is found depends on the start.
    """
    x = start
    for _ in range(steps):
        move = torch.zeros_like(x)
        for part, cloud in zip(share / share.sum(), clouds, strict=True):
            move += 0.5 * part * Wasserstein().velocity(x, cloud, Generator(), weight).v
        x = x + move
        if not move.abs().max() > tolerance * x.abs().max():
            break
    return x


def spread_start(clouds: Sequence[Cloud], share: Tensor, count: int, rng: Generator) -> Tensor:
    """(N, D) points of the clouds to start from, drawn as in k-means++: seldom near one that was drawn before."""
    points = torch.cat([cloud.x for cloud in clouds])
    mass = torch.cat([part * mass_of(cloud.x, cloud.weight) for part, cloud in zip(share, clouds, strict=True)])
    near = torch.ones_like(mass)
    found = []
    for _ in range(count):
        odds = mass * near if (mass * near).sum() > 0 else mass
        found.append(points[torch.multinomial(odds.double().cpu(), 1, generator=rng)[0]])
        far = (points - found[-1]).square().sum(1)
        near = far if len(found) == 1 else torch.minimum(near, far)
    return torch.stack(found)
