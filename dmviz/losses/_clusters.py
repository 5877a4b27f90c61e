"""Two clouds as histograms over clusters of both: what measures between discrete laws are read from."""

from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of

Space = Literal["auto", "raw", "released"]
MOST = 500
"""Clusters at most, where their number is chosen by the rule."""


class Histograms(NamedTuple):
    """Shares of the particles and of the target in each cluster, float64, each summing to 1."""

    q: Tensor  # (K,)
    p: Tensor  # (K,)


@torch.no_grad()
def histograms(
    x: Tensor, target: Cloud, weight: Tensor | None, rng: Generator, clusters: int, space: Space, smoothed: bool
) -> Histograms | None:
    """k-means of both clouds together, best of 5 starts drawn from rng; None where a point is not finite.

    `clusters` 0 is a tenth of the smaller cloud, at least 2 and at most `MOST`. `smoothed` adds 0.5 to every count.
    """
    (x, a), (y, b) = (
        (z.detach().double(), w.double()) for z, w in ((x, mass_of(x, weight)), (target.x, target.mass()))
    )
    n, m = len(x), len(y)
    both, share = torch.cat((x, y)), torch.cat((a * n, b * m)) / (n + m)
    if not torch.isfinite(both).all():
        return None
    both = both - both.mean(0)
    if space == "released" or (space == "auto" and x.shape[1] > 3):
        both = _main_axes(torch.nn.functional.normalize(torch.cat((x, y)), dim=1), share)
    wanted = clusters or min(max(2, round(min(n, m) / 10)), MOST)
    label = _labels(both, share, wanted, int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device)))
    counts = [w.new_zeros(wanted).index_add(0, part, w * k) for w, part, k in ((a, label[:n], n), (b, label[n:], m))]
    return Histograms(*((c + 0.5 * smoothed) / (c + 0.5 * smoothed).sum() for c in counts))


def _main_axes(z: Tensor, share: Tensor) -> Tensor:
    """z along its first principal axes, as many as hold nine tenths of the variance, unscaled."""
    z = z - share @ z
    value, axis = torch.linalg.eigh(z.T @ (z * share[:, None]))
    held = value.flip(0).cumsum(0)
    count = int((held < 0.9 * held[-1]).sum()) + 1
    main: Tensor = axis.flip(1)[:, :count]
    return z @ main


def _labels(z: Tensor, share: Tensor, wanted: int, seed: int) -> Tensor:
    """(N,) cluster of every point; no more clusters than there are different points with weight."""
    from sklearn.cluster import KMeans  # takes a second to load, which a menu need not wait for

    some = share > 0
    different = len(torch.unique(z[some], dim=0))
    means = KMeans(min(wanted, different), n_init=5, max_iter=500, random_state=seed)
    # In units of the cloud, since the stopping rule of k-means is not for numbers near the smallest.
    size = float(z.abs().max().clamp_min(1e-300))
    means.fit((z[some] / size).cpu().numpy(), sample_weight=(share[some] * some.sum()).cpu().numpy())
    return torch.as_tensor(means.predict((z / size).cpu().numpy()), dtype=torch.int64, device=z.device)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """sum p log p / q, with 0 log 0 = 0; q must not be 0 where p is not."""
    return torch.where(p > 0, p * (p.clamp_min(1e-300) / q.clamp_min(1e-300)).log(), 0.0).sum(-1)
