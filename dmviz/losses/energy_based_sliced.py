"""Energy-based sliced Wasserstein distance: lines on which the clouds differ more count more."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._lines import Pull
from dmviz.losses._slicing import (
    Kind,
    Slices,
    fixed_unit_vectors,
    line_pulls,
    sliced_costs,
    sorted_target,
    unit_vectors,
)
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_KEPT = 1 << 23  # numbers of pulls kept at once
_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free"})


@entry
class EnergyBasedSliced:
    r"""Look along many lines, and listen more to those on which the clouds look more different.

    $$ F = \sum_l w_l W_l,\qquad w_l = \frac{f(W_l)}{\sum_k f(W_k)},\qquad W_l = W_p^p(\theta_l \cdot \mu,\
       \theta_l \cdot \nu) $$

    Lines are drawn evenly and weighted by an increasing f, so the value lies between sliced and max-sliced Wasserstein
    on the same lines; it is the p-th power, in length to the power p. `energy`: "exp" is e^(W / s^p) with the length s
    = `scale` (the authors have s = 1), "identity" is W itself, "poly2" its square.

    The gradient goes through the weights, as in the authors' experiments: line l then pulls with the factor
    w_l + f'(W_l) (W_l - F) / sum f, which is negative on lines of little cost. With `through_weights` off the weights
    are taken as given: every line pulls by w_l, but that is no gradient of F.

    Fails: where costs are far above s^p the exponential leaves one line, as max-sliced does, and where they are far
    below it all lines count the same. The other two energies know no scale; where all costs are 0 they count all lines
    evenly. No triangle inequality is known.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> round(EnergyBasedSliced()(here, Cloud(there), seeded(0)).item(), 4)  # on a line there is one direction: 3^2
    9.0

    ```
    """

    title = "Energy-based sliced Wasserstein"
    family = "slices"
    source = ("nguyen2023energy",)
    needs = "samples"
    cost = "L (N + M) (D + log) time; L M memory with fixed directions, else N + M"

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
    energy: Annotated[
        Literal["exp", "identity", "poly2"],
        Help("how much more a line counts that costs more: exponentially, in proportion, or by the square"),
    ] = "exp"
    scale: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="small: only the worst line counts; large: all lines count the same",
            when={"energy": ("exp",)},
        ),
    ] = 1.0
    through_weights: Annotated[bool, Help("The pull also counts how moving changes the weights of lines")] = True
    slices: Annotated[
        int, Range(1, 4096, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 64
    directions: Annotated[Kind, Help("how the lines are spread; auto takes the most exact for the dimension")] = "auto"
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new lines at every step, right on average; fixed: the same all along")
    ] = "fresh"
    direction_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed lines", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"deterministic"} if self.draw == "fixed" else _LAWS

    @property
    def degree(self) -> float:
        return float(self.power)

    @property
    def root(self) -> float:
        return float(self.power)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        costs = sliced_costs(x, target, self._slices(target, rng), weight, self.power)
        share = self._shares(costs if self.through_weights else costs.detach())
        return (share * costs).sum().to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: the pulls of the lines, each times the derivative of F in its cost."""
        slices = self._slices(target, rng)

        def look() -> Iterable[tuple[slice, Pull]]:
            return line_pulls(x, target, slices, weight, self.power)

        # Factors need all costs. Pulls that take too much room are worked out again.
        pulls = list(look()) if len(slices.theta) * len(x) <= _KEPT else None
        costs = torch.cat([pull.value for _, pull in (look() if pulls is None else pulls)])
        share = self._shares(costs)
        value = (share * costs).sum()
        lines = (self._factors(costs, share, value)[:, None] * slices.theta.to(costs)).to(x)
        v = torch.zeros_like(x)
        for part, pull in look() if pulls is None else pulls:
            v.addmm_(pull.v.T, lines[part])
        return Velocity(v, value.to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed directions: the target in order on each of them."""
        if self.draw == "fresh":
            return target
        kept = sorted_target(self._fixed(target), target)
        return replace(target, memo={**(target.memo or {}), self._key(target): kept})

    def _shares(self, costs: Tensor) -> Tensor:
        """(L,) weights of lines by their costs, float64."""
        if self.energy == "exp":
            return torch.softmax(costs / self.scale**self.power, 0)
        most = costs.detach().max()
        if most <= 0:
            return torch.full_like(costs, 1 / len(costs))
        part = costs / most  # so that no power of a small cost vanishes
        part = part if self.energy == "identity" else part.square()
        return part / part.sum()

    def _factors(self, costs: Tensor, share: Tensor, value: Tensor) -> Tensor:
        r"""(L,) derivative of F in each cost, $w_l + f'(W_l)\,(W_l - F) / \sum f$; the weights if they are held."""
        if not self.through_weights:
            return share
        if self.energy == "exp":
            return share * (1 + (costs - value) / self.scale**self.power)
        # f' / f is 1 / W or 2 / W; a line without cost has no weight, and for f = W still a slope of -F / sum W.
        if self.energy == "poly2":
            return share * (3 - 2 * value / costs.clamp_min(torch.finfo(costs.dtype).tiny))
        return 2 * share - value / costs.sum() if value > 0 else share

    def _slices(self, target: Cloud, rng: Generator) -> Slices:
        if self.draw == "fresh":
            return Slices.even(unit_vectors(self.directions, self.slices, target.dim, rng))
        kept = (target.memo or {}).get(self._key(target))
        return self._fixed(target) if kept is None else kept

    def _fixed(self, target: Cloud) -> Slices:
        return Slices.even(fixed_unit_vectors(self.directions, self.slices, target.dim, self.direction_seed))

    def _key(self, target: Cloud) -> str:
        return f"{self!r} {tuple(target.x.shape)} {target.x.dtype} {target.x.device}"
