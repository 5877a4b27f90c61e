"""Frechet distance as it judges generators (FID): Gaussians with unbiased covariances."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._moments import unbiased
from dmviz.losses._waves import weighed
from dmviz.losses.bures_wasserstein import Gap, Moments, Rooted, gap_between, moments, rooted
from dmviz.params import entry
from dmviz.protocols import Velocity

_KEY = "frechet"


@entry
class Frechet:
    r"""The number that FID reports, on the points themselves: how far apart two clouds are as Gaussians.

    $$ F = |m_1 - m_2|^2 + \operatorname{tr}\bigl(C_1 + C_2 - 2 (C_1 C_2)^{1/2}\bigr) $$

    with unbiased covariances (divided by n - 1, or by $1 - \sum_i a_i^2$ with weights), which is all that sets it apart
    from Bures-Wasserstein. Unit: length squared; no root is taken. The eigenvalues are those of the symmetric product
    $C_2^{1/2} C_1 C_2^{1/2}$, which needs no jitter where a covariance is singular (the usual code adds 1e-6 I there).

    Fails as an estimate: covariances of few points are noisy, and the number is far too large for small n; compare it
    only at equal n. For n <= D the clouds are flat, and directions without spread feel no pull. Two moments are all it
    sees.

    Dowson and Landau 1982; as a judge of generators, Heusel et al. 2017.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [5.0]])
    >>> round(Frechet()(here, Cloud(there), seeded(0)).item(), 4)  # means 0 and 3, deviations sqrt(2) and sqrt(8)
    11.0

    ```
    """

    title = "Frechet distance (FID)"
    family = "moments and order"
    source = ("dowson1982frechet", "heusel2017gans")
    needs = "samples"
    cost = "(N + M) D^2 + D^3 time, N + M + D^2 memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    degree = 2.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        here, scale, gap = _between(x, weight, target)
        # The root's derivative is T / 2 (envelope): no derivative of an eigenvector, which repeated eigenvalues lack.
        change = (gap.map * (here.covariance - here.covariance.detach())).sum()
        trace = scale * (here.covariance.diagonal().sum() - change)
        return ((here.mean - gap.mean).square().sum() + (trace - gap.shared).clamp_min(0.0)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """One affine map for all particles."""
        here, scale, gap = _between(x, weight, target)
        spread = (scale * here.covariance.diagonal().sum() - gap.shared).clamp_min(0.0)
        value = (here.mean - gap.mean).square().sum() + spread
        return Velocity(weighed(_pull(here.z, here.rest, here, scale, gap), weight), value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """What mass at any points (K, D) would feel among particles x."""
        here, scale, gap = _between(x, weight, target)
        near = (here.mean - here.rest).to(x.dtype)  # where here.z is counted from
        return _pull(at - near, here.rest, here, scale, gap)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's mean and the root of its covariance."""
        return replace(target, memo={**(target.memo or {}), _KEY: _seen(target)})


class _There(NamedTuple):
    of: Tensor  # (M, D) the target's points
    rooted: Rooted


def _seen(target: Cloud) -> _There:
    biased, scale = rooted(target), unbiased(target.mass())
    return _There(target.x, biased._replace(trace=scale * biased.trace, root=scale.sqrt() * biased.root))


def _between(x: Tensor, weight: Tensor | None, target: Cloud) -> tuple[Moments, Tensor, Gap]:
    """Moments of the particles, the factor that makes their covariance unbiased, and the way to the target."""
    kept = (target.memo or {}).get(_KEY)
    there = kept if isinstance(kept, _There) and kept.of is target.x else _seen(target)
    here, scale = moments(x, weight), unbiased(mass_of(x, weight))
    return here, scale, gap_between(here.covariance.detach() * scale, there.rooted)


def _pull(z: Tensor, rest: Tensor, here: Moments, scale: Tensor, gap: Gap) -> Tensor:
    """2 (m2 - m1) + 2 n / (n - 1) (T - I) (x - m1) at points whose distance from m1 is z - rest."""
    turn = scale * (gap.map - torch.eye(len(gap.map), dtype=gap.map.dtype, device=gap.map.device))
    shift = gap.mean - here.mean - turn @ rest
    return torch.addmm(shift.to(z.dtype), z, turn.to(z.dtype), beta=2, alpha=2)
