"""Quantile regression: each particle looks for its own quantile of the target."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import Staircase, accurate
from dmviz.losses._ranks import middle_levels, standing
from dmviz.losses._sorting import places, ranked
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_KEY = "quantile_regression"


@entry
class QuantileRegression:
    r"""Give each particle on a line one quantile to find, and let target points to its right and left bid for it.

    $$ F = \sum_i a_i\, E_Y\, \bigl|\tau_i - 1\{Y < \theta_i\}\bigr|\, \frac{L_\kappa(Y - \theta_i)}{\kappa}, \qquad
       L_\kappa(u) = \begin{cases} u^2 / 2 & |u| \le \kappa \\ \kappa (|u| - \kappa / 2) & \text{else} \end{cases} $$

    The particles theta, in order, are quantiles at levels tau halfway up their masses: (i + 1/2) / n for n equal ones,
    which is where n points come closest to the target in W1. kappa = 0 is the pinball loss,
    $\max(\tau u, (\tau - 1) u)$. Unit: length. A particle moves with $v = \tau_i - G(\theta_i)$ where kappa is 0, G
    the target's distribution function; kappa rounds the corner at the cost of a place between quantile and expectile.
    The gradient from a few target points is right on average, so that the loss can be learned from samples.

    How the cloud form departs: the sum over quantiles is a mean here, that speeds do not grow with n, and levels are
    given anew in order at each step, so quantiles never cross. kappa is 1 in the published agents.

    Fails: on a line only. It is not 0 where particles and target agree: the least value is the target's own spread.

    Koenker and Bassett 1978; Dabney et al. 2018.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> QuantileRegression(kappa=0.0)(here, Cloud(there), seeded(0)).item()  # the median is half of 3 away
    1.5

    ```
    """

    title = "Quantile regression"
    family = "moments and order"
    source = ("koenker1978regression", "dabney2018quantile")
    needs = "samples"
    cost = "(N + M) log time, N + M memory"
    laws = frozenset({"nonnegative", "shift_free", "rotation_free", "deterministic"})
    degree = 1.0
    root = 1.0
    dims = (1, 1)

    kappa: Annotated[
        float,
        Range(0.0, 1e3, unit="length", help="0: exact quantiles, in steps; larger: softer, drawn to the mean"),
    ] = 0.1

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a = mass_of(x, weight)
        tau, _ = middle_levels(x.detach().T, a)
        each = quantile_huber(x[:, 0], tau[0], self._sorted(target), self.kappa)
        return (a.to(each.dtype) @ each).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """The mean bid: tau for target points above, 1 - tau for those below, less within kappa."""
        a, there = mass_of(x, weight), self._sorted(target)
        tau, _ = middle_levels(x.T, a)
        v = quantile_pull(x[:, 0], tau[0], there, self.kappa).to(x.dtype)[:, None]
        value = a.to(tau.dtype) @ quantile_huber(x[:, 0], tau[0], there, self.kappa)
        return Velocity(v if weight is None else torch.where(weight[:, None] > 0, v, 0.0), value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull on a point of no weight: its level is its own standing among the particles."""
        tau = standing(Staircase.of(x.detach().T, weight), at.detach().T.contiguous())[0]
        return quantile_pull(at[:, 0], tau, self._sorted(target), self.kappa).to(at.dtype)[:, None]

    def prepare(self, target: Cloud) -> Cloud:
        """The target in order, with its running sums."""
        return replace(target, memo={_KEY: samples_in_order(target.x[:, 0], target.mass()), "of": target.x})

    def _sorted(self, target: Cloud) -> "Samples":
        memo = target.memo
        if memo and _KEY in memo and memo.get("of") is target.x:
            return memo[_KEY]  # type: ignore[no-any-return]
        return samples_in_order(target.x[:, 0], target.mass())


class Samples(NamedTuple):
    """A law on a line, in order, with running sums of 1, y and y^2 over its masses, about its mean."""

    y: Tensor  # (M,) rising, float64
    center: Tensor  # ()
    sums: Tensor  # (3, M + 1) float64


def samples_in_order(y: Tensor, b: Tensor) -> Samples:
    wide = accurate(y)
    order = ranked(y[None])[0]
    y, b = y.detach().to(wide)[order], b.to(wide)[order]
    b = b / b.sum()
    center = b @ y
    z = y - center
    sums = torch.stack((b, b * z, b * z.square())).cumsum(1)
    return Samples(y, center, torch.cat((sums.new_zeros(3, 1), sums), dim=1))


def quantile_huber(theta: Tensor, tau: Tensor, there: Samples, kappa: float) -> Tensor:
    """(N,) mean bid on each quantile theta (N,) at level tau (N,), float64 and differentiable in theta."""
    at, near_left, near_right, left, right = _parts(theta, there, kappa)
    above, below = tau, 1.0 - tau
    linear = above * (right[1] - at * right[0]) + below * (at * left[0] - left[1])
    if kappa == 0:
        return linear
    linear = linear - 0.5 * kappa * (above * right[0] + below * left[0])
    near = above * near_right + below * near_left  # (3, N)
    return linear + (near[2] - 2.0 * at * near[1] + at.square() * near[0]) / (2.0 * kappa)


def quantile_pull(theta: Tensor, tau: Tensor, there: Samples, kappa: float) -> Tensor:
    """(N,) minus the derivative of `quantile_huber` in theta."""
    at, near_left, near_right, left, right = _parts(theta, there, kappa)
    pull = tau * right[0] - (1.0 - tau) * left[0]
    if kappa == 0:
        return pull
    near = tau * near_right + (1.0 - tau) * near_left
    return pull + (near[1] - at * near[0]) / kappa


def _parts(theta: Tensor, there: Samples, kappa: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """theta about the center (N,), and sums (3, N) over target points within kappa left and right of it, and beyond."""
    here = theta.detach().to(there.y.dtype)
    low, middle = (places(there.y[None], cut[None])[0] for cut in (here - kappa, here))
    high = places(there.y[None], (here + kappa)[None], right=True)[0]
    left, through, up_to = (there.sums[:, k] for k in (low, middle, high))
    at = theta.to(there.y.dtype) - there.center
    return at, through - left, up_to - through, left, there.sums[:, -1:] - up_to


def nearest_quantiles(quantile: Callable[[Tensor], Tensor], n: int) -> Tensor:
    """(n,) the n equal masses closest in W1 to a law with that quantile function: its levels (i + 1/2) / n.

    >>> nearest_quantiles(lambda u: 4 * u, 2).tolist()
    [1.0, 3.0]
    """
    levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return torch.as_tensor(quantile(levels), dtype=torch.float64)
