"""Central moment discrepancy: means, then variances, then higher moments of each coordinate."""

from typing import Annotated, Any

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._moments import Columns, columns, moment, root_slope, smooth_root
from dmviz.losses._waves import weighed
from dmviz.params import Range, entry
from dmviz.protocols import Velocity


@entry
class CentralMoments:
    r"""Match the means, then spread, lean and tails of each coordinate, one central moment after the other.

    $$ F = \frac{|m_X - m_Y|}{R} + \sum_{k=2}^{K} \frac{|c_k(X) - c_k(Y)|}{R^k},\qquad
       c_k(X) = \sum_i a_i (x_i - m_X)^k \text{ in each coordinate} $$

    with the span R of the interval in which coordinates lie (the release has them in [0, 1], with R = 1). Unit: none.
    Norms are not squared, so that each term pulls with a steady hand and particles jitter about the goal; where a
    squared norm is below 1e-12 a parabola takes the root's place.

    A span smaller than the cloud lets the highest moment outshout all others, and with it the outermost point; a large
    one leaves only means. Fails: blind to correlations, and K moments do not fix a law.

    Zellinger et al. 2017.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [5.0]])
    >>> round(CentralMoments(moments=2, span=2.0)(here, Cloud(there), seeded(0)).item(), 4)  # 3 / 2 + (4 - 1) / 4
    2.25

    ```
    """

    title = "Central moment discrepancy"
    family = "moments and order"
    source = ("zellinger2017central",)
    needs = "samples"
    cost = "K (N + M) D time, (N + M) D memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle", "deterministic"})
    degree = 0.0
    root = 1.0

    moments: Annotated[
        int, Range(1, 10, help="1 matches means, 2 spread too, 3 lean, 4 tails; high ones are noisy")
    ] = 5
    span: Annotated[
        float,
        Range(
            1e-3,
            1e4,
            unit="length",
            log=True,
            help="Width of the interval that holds the data. Small: high moments rule; large: only means count",
        ),
    ] = 4.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return self._value(self._columns(x, weight), self._columns(target.x.detach(), target.weight)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """A polynomial of each coordinate."""
        here, there = self._columns(x, weight), self._columns(target.x, target.weight)
        v = self._pull(here.z, here, there).to(x.dtype)
        return Velocity(weighed(v, weight), self._value(here, there).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same polynomial at any points (K, D)."""
        here, there = self._columns(x, weight), self._columns(target.x, target.weight)
        return self._pull(at / self.span - here.mean, here, there).to(at.dtype)

    def _columns(self, x: Tensor, weight: Tensor | None) -> Columns:
        """In units of the span."""
        found = columns(x, weight)
        return found._replace(mean=found.mean / self.span, z=found.z / self.span)

    def _value(self, here: Columns, there: Columns) -> Tensor:
        value = smooth_root((here.mean - there.mean).square().sum())
        for k in range(2, self.moments + 1):
            value = value + smooth_root((moment(here, k) - moment(there, k)).square().sum())
        return value

    def _pull(self, z: Tensor, here: Columns, there: Columns) -> Tensor:
        gap = here.mean - there.mean
        total = (2 * root_slope(gap.square().sum()) * gap).expand_as(z)
        for k in range(2, self.moments + 1):
            gap = moment(here, k) - moment(there, k)
            # Moving a point moves the mean too, about which the moment is taken; the first central moment is 0.
            lower = moment(here, k - 1) if k > 2 else 0.0
            total = total + (2 * k * root_slope(gap.square().sum()) * gap) * (z.pow(k - 1) - lower)
        return total / -self.span
