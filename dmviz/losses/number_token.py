"""Number-token loss: Wasserstein distance between what two clouds of logits say about an ordered label."""

from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Help, Range, entry
from dmviz.protocols import Velocity


@entry
class NumberToken:
    r"""Read each point as logits over ordered values, and ask how far mass must move along the values.

    $$ F = \int |P(t) - Q(t)|\,dt = \sum_k |P_k - Q_k|\,(v_{k+1} - v_k), \qquad
       p = \sum_i a_i \operatorname{softmax}(x_i),\quad q = \sum_j b_j \operatorname{softmax}(y_j) $$

    A point of D coordinates holds logits of D values v; P and Q sum p and q up to a value. "wasserstein" is W1 between
    the mean laws p and q, with the gaps between values counted; "mean" is $(p \cdot v - q \cdot v)^2$, which a wrong
    law of the right mean also brings to 0. Unit: that of the values (squared for "mean"). Values start at 0; the first
    gap is `gap`, each further one `growth` times the one before: 1 gives even steps, 2 doubles them.

    How the cloud form departs: on tokens the loss compares each row with its own label and averages; here one mean law
    is compared with another, so that rows may share the work. With one row on each side it is the token loss, with a
    soft label: as the target's logits grow, a hard one. Pulls never change the sum of a row.

    Fails: rows whose softmax is saturated hardly move, and many clouds have one mean law.

    Zausinger et al. 2025, whose released sum for soft labels leaves the gaps out; they are counted here.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 100.0]])  # (1/3, 1/3, 1/3) and all on the value 2
    >>> round(NumberToken()(here, Cloud(there), seeded(0)).item(), 4)  # 2/3 + 1/3
    1.0

    ```
    """

    title = "Number-token loss"
    family = "moments and order"
    source = ("zausinger2025regress",)
    needs = "samples"
    cost = "(N + M) D time, N + M memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "triangle", "deterministic"})
    degree = float("nan")
    dims = (2, None)

    compare: Annotated[
        Literal["wasserstein", "mean"], Help("wasserstein: how far mass must move; mean: only the mean value, squared")
    ] = "wasserstein"
    gap: Annotated[float, Range(1e-3, 1e3, log=True, help="first value to second: larger pulls harder")] = 1.0
    growth: Annotated[float, Range(0.5, 2.0, help="each gap is this many times the one before; 1 for even steps")] = 1.0

    @property
    def root(self) -> float:
        return 1.0 if self.compare == "wasserstein" else 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        values = self.values(x)
        p, q = mean_law(x, mass_of(x, weight)), mean_law(target.x.detach(), target.mass())
        compared = ordinal_w1 if self.compare == "wasserstein" else mean_gap_squared
        return compared(p, q, values).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Logits rise where a value's slope is below what the row expects of it, and fall where it is above."""
        p, q = mean_law(x, mass_of(x, weight)), mean_law(target.x, target.mass())
        v = self._pull(x, p, q)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        compared = ordinal_w1 if self.compare == "wasserstein" else mean_gap_squared
        return Velocity(v, compared(p, q, self.values(x)).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull on any logits (K, D)."""
        return self._pull(at, mean_law(x, mass_of(x, weight)), mean_law(target.x, target.mass()))

    def values(self, like: Tensor) -> Tensor:
        """(D,) the values that the columns of `like` stand for, in order."""
        growing = self.growth ** torch.arange(like.shape[1] - 1, device=like.device, dtype=accurate(like))
        return self.gap * torch.cat((growing.new_zeros(1), growing.cumsum(0)))

    def _pull(self, at: Tensor, p: Tensor, q: Tensor) -> Tensor:
        values = self.values(at)
        if self.compare == "wasserstein":
            # Mass moved to value k changes every running sum from k on.
            signed = _running_gap(p, q).sign() * values.diff()
            slope = torch.cat((signed.flip(0).cumsum(0).flip(0), values.new_zeros(1)))
        else:
            slope = 2.0 * ((p - q) @ values) * values
        share = at.to(slope.dtype).softmax(1)
        return (share * ((share @ slope)[:, None] - slope)).to(at.dtype)


def mean_law(logits: Tensor, mass: Tensor) -> Tensor:
    """(D,) mean of the rows' softmax, float64."""
    wide = accurate(logits)
    return mass.to(wide) @ logits.to(wide).softmax(1)


def ordinal_w1(p: Tensor, q: Tensor, values: Tensor) -> Tensor:
    """W1 between shares p and q (D,) of sorted values (D,): running sums that differ, times the gap they span.

    >>> ordinal_w1(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 5.0]))
    tensor(5.)
    """
    return (_running_gap(p, q).abs() * values.diff()).sum()


def mean_gap_squared(p: Tensor, q: Tensor, values: Tensor) -> Tensor:
    """Squared difference of the mean values of p and q (D,)."""
    return ((p - q) @ values).square()


def _running_gap(p: Tensor, q: Tensor) -> Tensor:
    """(D - 1,) difference of the running sums; at the last value both are 1."""
    return (p - q).cumsum(0)[:-1]
