"""Sliced Wasserstein distance: transport seen along many lines."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._slicing import (
    Kind,
    Slices,
    fixed_unit_vectors,
    sliced_power,
    sliced_velocity,
    sorted_target,
    unit_vectors,
)
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle"})


@entry
class SlicedWasserstein:
    r"""Look along many lines, match what you see in order on each, and average.

    $$ SW_p^p(\mu, \nu) = \frac1L \sum_{l=1}^{L} W_p^p(\theta_l \cdot \mu,\ \theta_l \cdot \nu) $$

    The mean over L unit directions of the exact transport cost on a line, for x (N, D) and y (M, D) with any weights.
    The value is the p-th power, without a factor 1/2; unit: length to the power p. One direction's pull moves a
    particle along that direction alone, so for p = 2 everything moves D times slower than under exact W2: a step size
    of about D suits. For p = 1 each line pulls with speed 1 or not at all, and particles jitter about the target.

    `directions`: "random" ones are independent; "orthogonal" ones come in right-angled frames; "quasi_random" ones are
    evenly spread angles in 2-D, a spiral in 3-D and Sobol points above, turned as a whole by chance; "auto" takes the
    most exact of these: quasi-random in 2-D and 3-D, orthogonal above (Sobol points do not spread there).

    Fails: fewer fixed directions than dimensions leave directions in which nothing moves, and zero is then no proof
    that the clouds are equal. Weights that are not uniform, and M other than N, are matched exactly, by merging levels.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    >>> loss = SlicedWasserstein(directions="orthogonal", slices=2)
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # |(3, 4)|^2 / 2, exact with one whole frame
    12.5

    ```
    """

    title = "Sliced Wasserstein"
    family = "slices"
    source = ("rabin2011", "bonneel2015", "rowland2019", "nguyen2023quasi")
    needs = "samples"
    cost = "L (N + M) (D + log) time; L M memory with fixed directions, else N + M"

    power: Annotated[int, Range(1, 2, help="1 pulls with a steady hand, 2 pulls harder from further away")] = 2
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
        return sliced_power(x, target, self._slices(target, rng), weight, self.power)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: on each line, the way to the mean target quantile (p = 2) or its sign (p = 1)."""
        # No carry: sorting afresh with `_sorting.ranked` took less time than mending the last order.
        return Velocity(*sliced_velocity(x, target, self._slices(target, rng), weight, self.power))

    def prepare(self, target: Cloud) -> Cloud:
        """Fixed directions: the target in order on each of them."""
        if self.draw == "fresh":
            return target
        kept = sorted_target(self._fixed(target), target)
        return replace(target, memo={**(target.memo or {}), self._key(target): kept})

    def _slices(self, target: Cloud, rng: Generator) -> Slices:
        if self.draw == "fresh":
            return Slices.even(unit_vectors(self.directions, self.slices, target.dim, rng))
        kept = (target.memo or {}).get(self._key(target))
        return self._fixed(target) if kept is None else kept

    def _fixed(self, target: Cloud) -> Slices:
        return Slices.even(fixed_unit_vectors(self.directions, self.slices, target.dim, self.direction_seed))

    def _key(self, target: Cloud) -> str:
        return f"{self!r} {tuple(target.x.shape)} {target.x.dtype} {target.x.device}"
