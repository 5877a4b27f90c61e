"""Entropic transport between sets of Gaussians: every particle is a whole Gaussian, not a point."""

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses.sinkhorn import Sinkhorn
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

WIDEST = 7.0
"""Log deviations beyond it count as this: deviations from e^-7 to e^7, about 0.001 to 1,000."""

_WARM = 25
"""Most sweeps of a step from the last step's plan."""


@entry
class GaussianSets:
    r"""Let every particle be a Gaussian with a place and a width, and move both to match another set of Gaussians.

    $$ F = 2 S_{\varepsilon},\qquad C_{ij} = \tfrac12 W_2^2\bigl(N(m_i, s_i^2), N(m'_j, s_j'^2)\bigr)
       = \tfrac12 |m_i - m'_j|^2 + \tfrac12 |s_i - s'_j|^2 $$

    with S the Sinkhorn divergence of these costs at the temperature eps = blur^2. Columns are read so: the first half
    of the D columns is the mean m, the second half the logarithms of the standard deviations s along the same axes, so
    that the Gaussians are diagonal, and this is their exact W2 squared (Bures). Where D is odd there is one mean more
    than deviations, and along that last axis the Gaussians are flat. With D = 2, the height of a particle is how wide
    a Gaussian on the line it stands for. Unit: length squared, for means in units of length. As the blur goes to 0, F
    becomes the exact transport cost between the two sets, MW2 squared between the mixtures.

    $$ v^m_i = 2\,(T_{xy} - T_{xx})^m(x_i),\qquad v^{\log s}_i = 2\, s_i\, (T_{xy} - T_{xx})^s(x_i) $$

    with T the barycentric maps of means and deviations. Gaussians are carried whole: two narrow ones side by side are
    not equal to a wide one. Not debiased, the set shrinks and all widths become alike. Log deviations count up to +-7,
    beyond which they feel no pull. Moving all columns by one number multiplies the widths, so the loss is not
    shift-free. It fails where widths are tiny: a log deviation moves in proportion to the width itself, so very narrow
    Gaussians hardly grow. It is slow where some widths are far above the others and the blur far below them.

    After WaSt-3D (Kotovenko et al. 2024), which transports sets of 3-D Gaussians in chunks and with colours; neither
    is done here. The divergence is that of Feydy et al. 2019.

    ```python
    >>> import math
    >>> from dmviz.cloud import seeded
    >>> here = torch.tensor([[0.0, math.log(1.0)]])  # N(0, 1)
    >>> there = torch.tensor([[3.0, math.log(5.0)]])  # N(3, 25)
    >>> round(GaussianSets()(here, Cloud(there), seeded(0)).item(), 4)  # 3^2 + (5 - 1)^2
    25.0

    ```
    """

    title = "Sets of Gaussians"
    family = "transport"
    source = ("kotovenko2024wast", "feydy2019interpolating", "delon2020wasserstein")
    needs = "samples"
    cost = "sweeps (2 M + N) N D time, N + M memory"
    degree = float("nan")
    root = 2.0
    dims = (2, None)

    blur: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Gaussians nearer than this are one. Small: exact transport, slow; large: only mean place and width",
        ),
    ] = 0.5
    debias: Annotated[bool, Help("Take out what the blur alone costs; without it the set shrinks")] = True
    tolerance: Annotated[
        float, Range(1e-12, 0.5, log=True, help="Share of mass that may be misplaced when the sweeps stop")
    ] = 0.05
    iterations: Annotated[int, Range(1, 10_000, log=True, help="Most sweeps of a solve")] = 100

    @property
    def laws(self) -> frozenset[Law]:
        always: set[Law] = {"nonnegative", "symmetric", "deterministic"}
        return frozenset(always | {"zero_at_target"}) if self.debias else frozenset(always)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        _check(x)
        return 2 * self._divergence(flattened(x), self._flat(target), rng, weight)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """The pull on means and deviations, the latter in the logarithm."""
        _check(x)
        pull = self._divergence.velocity(flattened(x), self._flat(target), rng, weight, carry)
        return Velocity(2 * pull.v * _slope(x), 2 * pull.value, pull.carry)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """What any Gaussian (K, D) would feel among the others."""
        _check(at)
        pull = self._divergence.probe(flattened(at), flattened(x), self._flat(target), rng, weight)
        return 2 * pull * _slope(at)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's means and deviations with their own term, once a run."""
        flat = self._divergence.prepare(Cloud(flattened(target.x), target.weight))
        return replace(target, memo={"flat": flat, "loss": self, "of": target.x})

    @property
    def _divergence(self) -> Sinkhorn:
        return Sinkhorn(self.blur, 2, self.debias, self.tolerance, self.iterations, min(self.iterations, _WARM))

    def _flat(self, target: Cloud) -> Cloud:
        memo = target.memo
        if memo and memo.get("loss") == self and memo.get("of") is target.x:
            return memo["flat"]  # type: ignore[no-any-return]
        return Cloud(flattened(target.x.detach()), target.weight)


def means(x: Tensor) -> int:
    """How many of the columns are means: half, and the middle one."""
    return (x.shape[1] + 1) // 2


def flattened(x: Tensor) -> Tensor:
    """(N, D) means and deviations, between which W2 squared is the squared distance."""
    half = means(x)
    return torch.cat((x[:, :half], x[:, half:].clamp(-WIDEST, WIDEST).exp()), dim=1)


def _slope(x: Tensor) -> Tensor:
    """(N, D) how fast each entry of `flattened` follows its column."""
    half = means(x)
    wide = x[:, half:]
    inside = torch.where(wide.abs() <= WIDEST, wide.clamp(-WIDEST, WIDEST).exp(), 0.0)
    return torch.cat((torch.ones_like(x[:, :half]), inside), dim=1)


def _check(x: Tensor) -> None:
    if x.shape[1] < 2:
        raise ValueError("GaussianSets: needs at least two columns, a mean and a log deviation, got 1.")
