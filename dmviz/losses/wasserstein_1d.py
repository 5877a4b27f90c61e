"""Transport on a line, for any exponent: sort both sides, and send mass on in order."""

from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import Staircase, accurate, power_on_lines
from dmviz.losses.wasserstein import Plan, line_plan
from dmviz.params import Range, entry
from dmviz.protocols import Velocity


@entry
class Wasserstein1d:
    r"""On a line the best plan keeps the order, so sorting both sides solves transport exactly.

    $$ W_p^p(\mu, \nu) = \int_0^1 |Q_\mu(u) - Q_\nu(u)|^p\, du $$

    with quantile functions Q: staircases whose steps are as wide as the masses of the points. Any sizes, any masses,
    any p from 1 to 4; for points in one column only. Unit: length^p. A particle moves with

    $$ v_i = \frac{1}{a_i} \sum_j P_{ij}\; p\, |y_j - x_i|^{p-1} \operatorname{sign}(y_j - x_i) : $$

    with p = 1 at speed 1 whatever the distance, with p = 2 twice the way, with p = 4 the farthest in a rush and the
    nearest hardly at all, so a step that is stable near the target may overshoot far from it.

    Fails: particles tremble about the target by the length of a step for p = 1 and creep the last of the way for p
    above 2. With few particles against many points the value stays above zero.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [1.0]])
    >>> Wasserstein1d(p=3.0)(here, Cloud(there), seeded(0)).item()  # in order: 0 to 1 and 1 to 3, (1 + 8) / 2
    4.5

    ```
    """

    title = "Wasserstein on a line"
    family = "transport"
    source = ("villani2009", "peyre2019computational")
    needs = "samples"
    cost = "(N + M) log(N + M) time, N + M memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    dims = (1, 1)

    p: Annotated[float, Range(1.0, 4.0, help="1: every distance pulls alike; larger: the farthest pull the most")] = 2.0

    @property
    def degree(self) -> float:
        return self.p

    @property
    def root(self) -> float:
        return self.p

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        _check(x, target)
        return power_on_lines(x.T, weight, target.x.detach().T, target.weight, self.p)[0].to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """The mean pull of the points that a particle's mass goes to."""
        plan = self.plan(x, target, weight)
        gap = target.x[plan.j, 0].to(plan.mass.dtype) - x[plan.i, 0].to(plan.mass.dtype)  # (K,)
        pull = torch.zeros_like(x[:, 0], dtype=gap.dtype).index_add_(0, plan.i, plan.mass * self._force(gap))
        sent = torch.zeros_like(pull).index_add_(0, plan.i, plan.mass)
        v = pull / torch.where(sent > 0, sent, 1.0)  # a particle without mass is sent nowhere
        return Velocity(v[:, None].to(x.dtype), (plan.mass * gap.abs().pow(self.p)).sum().to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull of the target's quantile at the level that a point has among the particles."""
        _check(at, target)
        wide = accurate(x)
        order = x[:, 0].sort()
        below = torch.cat((x.new_zeros(1, dtype=wide), mass_of(x, weight).to(wide)[order.indices].cumsum(0)))
        level = below[torch.searchsorted(order.values, at[:, 0].contiguous())]
        stairs = Staircase.of(target.x.T, target.weight)
        goal = stairs.y[0, stairs.step_at(level[None])[0]]
        return self._force((goal - at[:, 0]).to(wide))[:, None].to(at.dtype)

    def plan(self, x: Tensor, target: Cloud, weight: Tensor | None = None) -> Plan:
        """The pairs that carry mass, at most N + M - 1 of them."""
        _check(x, target)
        return line_plan(x.detach()[:, 0], weight, target.x.detach()[:, 0], target.weight)

    def _force(self, gap: Tensor) -> Tensor:
        return self.p * gap.abs().pow(self.p - 1) * gap.sign()


def _check(x: Tensor, target: Cloud) -> None:
    for z in (x, target.x):
        if z.shape[1] != 1:
            raise ValueError(
                f"Wasserstein1d: points must lie on a line, one column, got {z.shape[1]}. Take Sliced Wasserstein."
            )
