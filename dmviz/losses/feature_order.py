"""Exact feature distribution matching: every coordinate takes the target's values, in its own order."""

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._lines import Staircase, even_levels, power_on_lines, pull_on_lines
from dmviz.losses._slicing import centre_of
from dmviz.losses._sorting import ranked
from dmviz.params import entry
from dmviz.protocols import Velocity

_KEY = "feature_order"


@entry
class FeatureOrder:
    r"""Sort each coordinate by itself, and match the smallest with the smallest, the next with the next.

    $$ F = \frac1D \sum_{d=1}^{D} W_2^2(X_{\cdot d}, Y_{\cdot d})
         = \text{mean of } (x - \text{matched } y)^2 \text{ over all entries} $$

    Exact transport in each coordinate, with any weights, N and M; where N = M the matched value is the one of equal
    rank. Unit: length squared. A particle moves with $v = \frac2D (\text{mean matched } y - x)$ in each coordinate, and
    all arrive at `efdm`, the style transfer in this file. It is sliced W2 squared along the axes alone.

    Fails: blind to how coordinates belong together. A cloud on a diagonal and its mirror image are equal to it, and
    particles keep the correlation of ranks that they begin with.

    Zhang et al. 2022.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[3.0], [1.0]]), torch.tensor([[2.0], [6.0]])
    >>> FeatureOrder()(here, Cloud(there), seeded(0)).item()  # 1 to 2, 3 to 6: (1 + 9) / 2
    5.0

    ```
    """

    title = "Exact feature distribution matching"
    family = "moments and order"
    source = ("zhang2022exact",)
    needs = "samples"
    cost = "D (N log N + M log M) time, (N + M) D memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle", "deterministic"})
    degree = 2.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        centre = centre_of(target.x)
        here, there = (x - centre).T, (target.x.detach() - centre).T
        return power_on_lines(here, weight, there, target.weight, 2).mean().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """In each coordinate, the way to the mean matched value."""
        there = _there(target)
        found = pull_on_lines((x - there.centre).T.contiguous(), weight, there.stairs, 2)
        return Velocity((found.v / x.shape[1]).T.contiguous(), found.value.mean().to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """The target in order, coordinate by coordinate."""
        return replace(target, memo={**(target.memo or {}), _KEY: _sorted(target)})


class _There(NamedTuple):
    of: Tensor  # (M, D) the target's points
    centre: Tensor  # (1, D) taken off both clouds
    stairs: Staircase  # (D, M)


def _sorted(target: Cloud) -> _There:
    centre = centre_of(target.x)
    return _There(target.x, centre, Staircase.of((target.x.detach() - centre).T.contiguous(), target.weight))


def _there(target: Cloud) -> _There:
    kept = (target.memo or {}).get(_KEY)
    return kept if isinstance(kept, _There) and kept.of is target.x else _sorted(target)


def efdm(content: Tensor, style: Tensor) -> Tensor:
    """(N, D) content with each column's values replaced by the style's, in the content's order.

    Another number of style rows is matched by mean quantiles. Gradients pass to the content as if nothing had been
    replaced, as released; none reach the style.
    """
    rows, order = content.detach().T.contiguous(), ranked(content.detach().T)
    stairs = Staircase.of(style.detach().T.contiguous(), None)
    values = stairs.y
    if len(style) != len(content):
        values = stairs.means(even_levels(len(content), rows).expand(len(rows), -1)).to(rows.dtype)
    matched = rows.scatter(-1, order, values.to(rows.dtype)).T
    return content + (matched - content.detach())
