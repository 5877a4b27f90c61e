"""A cloud's mean embedding under a Gaussian kernel, squeezed into a few landmarks (Nystrom)."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._kernels import Kernel, kernel_alone
from dmviz.losses._pairs import kernel_sums, squares

RIDGE = 1e-6
LLOYD = 20
MOST = 200_000  # points that landmarks are fitted on


class Embedding(NamedTuple):
    """sum_l share_l k(z_l, .), which stands for sum_j b_j k(y_j, .)."""

    z: Tensor  # (L, D) float64
    share: Tensor  # (L,) float64, of any sign


@torch.no_grad()
def embedding(target: Cloud, z: Tensor, kernel: Kernel, compiled: bool, ridge: float = RIDGE) -> Embedding:
    """Shares (K_ZZ + ridge I)^-1 mean_j k(Z, y_j): the projection of the target's embedding on those of z (L, D)."""
    y, z = target.x.double(), z.double()
    heard = kernel_sums(z, y, target.mass().double(), kernel, compiled, want_grad=False).s
    centre = z.mean(0)
    gram = kernel_alone(kernel, squares(z - centre, z - centre))
    gram.diagonal().fill_(kernel.at_zero + ridge)
    factor = torch.linalg.cholesky(gram)
    return Embedding(z, torch.cholesky_solve(heard[:, None].to(gram), factor)[:, 0])


@torch.no_grad()
def landmarks(target: Cloud, count: int, rng: Generator) -> Tensor:
    """(L, D) float64 k-means centres of the target, or all its points where they are few."""
    y, b = target.x.double(), target.mass().double()
    if len(y) <= count:
        return y
    centre = y.mean(0)
    y = y - centre
    rows = torch.randperm(len(y), generator=rng, device=rng.device).to(y.device)[:MOST]
    y, b = y[rows], b[rows]
    z = y[:count].clone()
    for _ in range(LLOYD):
        near, apart = nearest(y, z)
        mass = torch.zeros(count, dtype=b.dtype, device=b.device).index_add_(0, near, b)
        total = torch.zeros_like(z).index_add_(0, near, b[:, None] * y)
        empty = (mass <= 0.0).nonzero()[:, 0]
        z = total / mass.clamp_min(1e-300)[:, None]
        z[empty] = y[(apart * (b > 0)).topk(len(empty)).indices]  # an empty cluster starts again far from all centres
    return z + centre


def nearest(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of z for every y (M,), and its squared distance (M,)."""
    found = [squares(y[i : i + 4096], z).min(1) for i in range(0, len(y), 4096)]
    return torch.cat([f.indices for f in found]), torch.cat([f.values for f in found])
