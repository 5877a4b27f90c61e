"""Mixture Wasserstein distance: transport between two Gaussian mixtures, one fitted to each cloud."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._mixtures import Between, Mixture, between, fitted, mixture_plan, moments_of, responsibilities
from dmviz.losses._slicing import centre_of
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_WARM = 10
"""Rounds that a step adds to the fit of the step before."""


class Aimed(NamedTuple):
    """Particles seen as a mixture, and where each of its components is to go."""

    z: Tensor  # (N, D) particles about the target's centre, float64
    share: Tensor  # (N, K) responsibilities
    model: Mixture  # under which these are
    here: Mixture  # moments of the particles with these shares
    there: Mixture
    gaps: Between
    plan: Tensor  # (K, L)


@entry
class GaussianMixtureWasserstein:
    r"""Group each cloud into a few Gaussians and carry these, whole, along the cheapest plan between them.

    $$ MW_2^2 = \min_{w \in \Pi(\pi, \pi')} \sum_{kl} w_{kl}\, W_2^2\bigl(N(m_k, S_k), N(m'_l, S'_l)\bigr) $$

    with the closed form of W2 between Gaussians. At least W2 squared between the two mixtures, and a metric between
    mixtures. Unit: length squared. With one component it is the Bures-Wasserstein distance; with as many as points it
    comes close to exact transport. Each component sends a particle by its own affine maps, in shares $r_{ik}$ of
    responsibility, with $T_{kl}$ as in the Bures-Wasserstein distance:

    $$ v_i = 2 \sum_k r_{ik} \sum_l \frac{w_{kl}}{\pi_k}\,\bigl(m'_l + T_{kl} (x_i - m_k) - x_i\bigr) $$

    The mixtures are fitted here by expectation maximisation, which is no part of the distance: it starts by k-means
    from points far apart (so no seed matters), keeps every variance at least a thousandth of the cloud's, and stops at
    what may be a local optimum. Responsibilities count as constants: the velocity is the gradient of the distance
    between mixtures in the means and covariances, not of the fit. In a flow the last step's fit is
    carried on by at most ten rounds.

    Fails: blind to what the components do not see, so with too few of them a ring is a disc. No particle changes its
    component because of the pull: where the masses of the components differ from the target's, one of them serves two
    and settles between. Where a fit jumps to another optimum the value jumps. D points or fewer in a component leave
    it flat, and flat directions feel no pull.

    Delon and Desolneux 2020.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-11.0], [-9.0], [9.0], [11.0]]), torch.tensor([[0.0]])
    >>> loss = GaussianMixtureWasserstein(components=2)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # both Gaussians to one point: 10^2 + 1 each
    101.0

    ```
    """

    title = "Gaussian mixture W2"
    family = "transport"
    source = ("delon2020wasserstein",)
    needs = "samples"
    cost = "rounds (N + M) K D^2 + K^2 D^3 time, N K + K^2 D^2 memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    degree = 2.0
    root = 2.0

    components: Annotated[
        int, Range(1, 30, log=True, help="Gaussians in each cloud. 1: only mean and covariance; many: each detail")
    ] = 3
    rounds: Annotated[
        int, Range(1, 1000, log=True, help="Most rounds of expectation maximisation. Few: little more than k-means")
    ] = 200

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            aimed = self._aimed(x.detach(), target, weight, None)
        here, gaps = moments_of(self._near(x, target), self._mass(x, weight), aimed.share), aimed.gaps
        # The root's derivative is T / 2 (envelope): no derivative of an eigenvector, which repeated eigenvalues lack.
        change = here.covariance - here.covariance.detach()
        bent = (gaps.map * change[:, None]).sum((-1, -2))
        wide = here.covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None] - bent
        apart = (here.mean[:, None] - aimed.there.mean).square().sum(-1)
        return (aimed.plan * (apart + (wide - gaps.shared).clamp_min(0.0))).sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Mixture | None = None
    ) -> Velocity:
        """Twice the way to where the maps of a particle's components send it."""
        aimed = self._aimed(x, target, weight, carry)
        v = _pull(aimed, aimed.z, aimed.share)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v.to(x.dtype), (aimed.plan * aimed.gaps.cost).sum().to(x.dtype), aimed.model)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same at any points (K, D), in shares of what the particles' mixture makes of them."""
        aimed = self._aimed(x, target, weight, None)
        z = self._near(at, target)
        return _pull(aimed, z, responsibilities(aimed.model, z)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's mixture, once a run."""
        return replace(target, memo={"mixture": self._there(target), "loss": self, "of": target.x})

    def _aimed(self, x: Tensor, target: Cloud, weight: Tensor | None, carry: Mixture | None) -> Aimed:
        z, a = self._near(x, target), self._mass(x, weight)
        if carry is not None and carry.mean.shape[1] != x.shape[1]:
            carry = None
        rounds = self.rounds if carry is None else min(self.rounds, _WARM)
        model, share = fitted(z, a, self.components, rounds, carry)
        here, there = moments_of(z, a, share), self._there(target)
        gaps = between(here, there)
        return Aimed(z, share, model, here, there, gaps, mixture_plan(here, there, gaps.cost))

    def _there(self, target: Cloud) -> Mixture:
        memo = target.memo
        if memo and memo.get("loss") == self and memo.get("of") is target.x:
            return memo["mixture"]  # type: ignore[no-any-return]
        y, b = self._near(target.x.detach(), target), self._mass(target.x, target.weight)
        return moments_of(y, b, fitted(y, b, self.components, self.rounds)[1])

    def _near(self, x: Tensor, target: Cloud) -> Tensor:
        """Points about the target's centre, with all digits."""
        return (x - centre_of(target.x)).to(accurate(x))

    def _mass(self, x: Tensor, weight: Tensor | None) -> Tensor:
        mass = mass_of(x, weight).to(accurate(x))
        return mass / mass.sum()


def _pull(aimed: Aimed, z: Tensor, share: Tensor) -> Tensor:
    """Twice the way to the mean of what all pairs of components make of points z (K, D) with given shares."""
    here, there = aimed.here, aimed.there
    goes = aimed.plan / aimed.plan.sum(1, keepdim=True).clamp_min(1e-300)  # (K, L) rows sum to 1
    total = torch.zeros_like(z)
    for k in range(len(goes)):
        turn = (goes[k, :, None, None] * aimed.gaps.map[k]).sum(0)
        goal = goes[k] @ there.mean + (z - here.mean[k]) @ turn.T
        total += share[:, k, None] * (goal - goes[k].sum() * z)
    return 2 * total
