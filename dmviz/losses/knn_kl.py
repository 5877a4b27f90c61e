"""KL between two clouds from distances to nearest neighbours."""

import math
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._neighbours import held, neighbours, rounding
from dmviz.params import Help, Range, entry

_TIES = 8
"""So many further neighbours are looked at for points at the very distance of the k-th."""


@entry
class KnnKl:
    r"""Ask every point how much farther its neighbours in the other cloud are than those in its own.

    $$ F = \frac{D}{n} \sum_i \log \frac{\nu_k(i)}{\rho_k(i)} + \log \frac{m}{n - 1} $$

    with rho the distance to the k-th nearest of the other particles and nu that to the k-th nearest target point: an
    estimate of KL(q | p), q of the particles, or with `direction` "kl" of KL(p | q) with the roles exchanged. With
    weights the mean is weighted, and the counts k / (n - 1) and k / m become the mass of those neighbours. Unit: nats.

    k = 1 has the least bias and the most noise; 3 to 5 are steadier. No bandwidth is chosen, and moving, turning or
    scaling both clouds changes nothing. The estimate can be negative, is not 0 on equal clouds, and is biased upwards
    in many dimensions. It fails on copies: a point that lies on another has distance 0, which counts as 1e-9 of the
    clouds' size (1e-6 in float32), so that a cloud held against itself is far below 0. A single particle has no
    neighbour: the value is 0. It only judges: the slope is that of a few pairs, and too rough to follow.

    Wang, Kulkarni and Verdu 2009.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [1.0]]), torch.tensor([[4.0], [5.0]])
    >>> round(KnnKl(neighbours=1)(here, Cloud(there), seeded(0)).item(), 4)  # (log 4 + log 3) / 2 + log 2
    1.9356

    ```
    """

    title = "KL by nearest neighbours"
    family = "evaluation"
    source = ("wang2009divergence",)
    needs = "samples"
    drives = False
    cost = "(N + M) log time by a k-d tree up to 10 dimensions, (N + M) N D above; (N + M) k memory"
    laws = frozenset({"shift_free", "rotation_free", "deterministic"})
    degree = 0.0
    root = 1.0

    neighbours: Annotated[
        int, Range(1, 50, help="Which neighbour's distance counts: 1 is sharp and noisy, 50 smooth and coarse")
    ] = 3
    direction: Annotated[
        Literal["reverse_kl", "kl"],
        Help("reverse_kl asks the particles, and punishes those off the target; kl asks the target, what is missed"),
    ] = "reverse_kl"

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, there = held(x, mass_of(x, weight)), held(target.x, target.mass())
        if self.direction == "kl":
            here, there = there, here
        (x, a), (y, b) = here, there
        if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
            return x.new_tensor(math.nan)
        k = min(self.neighbours, len(x) - 1, len(y))
        if k < 1:
            return x.new_zeros(())
        least = rounding(x, y)
        rho, mass = _reached(x, x, a, k, least, own=True)
        nu, found = _reached(x, y, b, k, least)
        floor = least if least > 0 else 1.0
        gap = x.shape[1] * (nu.clamp_min(floor) / rho.clamp_min(floor)).log()
        return (a @ (gap + (mass / (1.0 - a)).log() - found.log())).to(x.dtype)


def _reached(x: Tensor, y: Tensor, b: Tensor, k: int, tie: float, own: bool = False) -> tuple[Tensor, Tensor]:
    """Distance to the k-th nearest y (N,), and the mass of the k; those at the same distance share the last places."""
    most = min(k + _TIES, len(y) - int(own))
    distance, index = neighbours(x, y, most, own)
    last, mass = distance[:, k - 1 : k], b[index]
    inside, tied = distance < last - tie, (distance - last).abs() <= tie
    left = k - inside.sum(1)
    return last[:, 0], (mass * inside).sum(1) + left * (mass * tied).sum(1) / tied.sum(1)
