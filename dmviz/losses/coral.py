"""CORAL: covariance against covariance, entry by entry."""

import math
from typing import Annotated, Any, Literal, NamedTuple

from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._moments import unbiased
from dmviz.losses._waves import weighed
from dmviz.losses.bures_wasserstein import moments
from dmviz.params import Help, entry
from dmviz.protocols import Velocity


@entry
class Coral:
    r"""Match the covariances of two clouds, entry by entry, wherever the clouds lie.

    $$ F = \frac{1}{4 d^2} \|C_X - C_Y\|_F^2 $$

    with unbiased covariances (divided by n - 1, or by $1 - \sum_i a_i^2$ with weights). Unit: length to the fourth
    power. "benchmark" is the form of a much used domain generalisation benchmark: the mean of the squared entries, four
    times as much, plus the mean squared difference of the means (two units at once). A particle moves with

    $$ v(x) = -\frac{1}{d^2} \frac{n}{n-1} (C_X - C_Y)(x - m_X). $$

    Fails: "paper" does not see means at all, so the cloud changes its shape where it stands; neither sees more than two
    moments. The pull grows with the cube of the cloud's size, so a wide cloud needs a small step, and directions in
    which the particles do not spread stay flat.

    Sun and Saenko 2016.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[-1.0], [1.0]]), torch.tensor([[1.0], [5.0]])
    >>> Coral()(here, Cloud(there), seeded(0)).item()  # variances 2 and 8: 6^2 / 4
    9.0

    ```
    """

    title = "CORAL"
    family = "moments and order"
    source = ("sun2016deep",)
    needs = "samples"
    cost = "(N + M) D^2 time, N D + D^2 memory"
    laws = frozenset(
        {"zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "triangle", "deterministic"}
    )
    root = 2.0

    form: Annotated[
        Literal["paper", "benchmark"], Help("paper: covariances alone; benchmark: four times as much, and means too")
    ] = "paper"

    @property
    def degree(self) -> float:
        return 4.0 if self.form == "paper" else math.nan  # the benchmark adds a length to a fourth power

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return self._value(_seen(x, weight), _seen(target.x.detach(), target.weight)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """One matrix, and with the benchmark's form one shift, for all particles."""
        here, there = _seen(x, weight), _seen(target.x, target.weight)
        v = self._pull(here.z, here, there)
        return Velocity(weighed(v, weight), self._value(here, there).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """What mass at any points (K, D) would feel among particles x."""
        here = _seen(x, weight)
        near = (here.mean - here.rest).to(x.dtype)  # where here.z is counted from
        return self._pull(at - near, here, _seen(target.x, target.weight))

    def _value(self, here: "_Seen", there: "_Seen") -> Tensor:
        shape, place = self._factors(len(here.mean))
        value = shape * (here.covariance - there.covariance).square().sum()
        return value + place * (here.mean - there.mean).square().sum() if place else value

    def _pull(self, z: Tensor, here: "_Seen", there: "_Seen") -> Tensor:
        shape, place = self._factors(len(here.mean))
        turn = (-4 * shape * here.scale) * (here.covariance - there.covariance)
        shift = 2 * place * (there.mean - here.mean) - turn @ here.rest
        return z @ turn.to(z.dtype) + shift.to(z.dtype)

    def _factors(self, dim: int) -> tuple[float, float]:
        return (0.25 / dim**2, 0.0) if self.form == "paper" else (1.0 / dim**2, 1.0 / dim)


class _Seen(NamedTuple):
    """Mean and unbiased covariance of a cloud."""

    mean: Tensor  # (D,)
    covariance: Tensor  # (D, D)
    scale: Tensor  # () by which the biased covariance was multiplied
    z: Tensor  # (N, D) points about a place near the mean
    rest: Tensor  # (D,) mean of z


def _seen(x: Tensor, weight: Tensor | None) -> _Seen:
    found, scale = moments(x, weight), unbiased(mass_of(x, weight))
    return _Seen(found.mean, found.covariance * scale, scale, found.z, found.rest)
