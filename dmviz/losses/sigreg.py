"""SIGReg: every shadow of the cloud on a line should look standard normal (LeJEPA)."""

from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._slicing import Kind, fixed_unit_vectors, unit_vectors
from dmviz.losses._waves import Waves, follow_lines, knots, line_gap, line_slope, line_waves, pull_lines
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class Sigreg:
    r"""Look along many lines, and ask of each that the cloud looks standard normal from there.

    $$ F = \frac1K \sum_{k=1}^K \int |\phi_k(t) - e^{-t^2/2}|^2 e^{-t^2/2}\,dt,\qquad
       \phi_k(t) = \sum_i a_i e^{i t\,\theta_k\cdot x_i} $$

    The Epps-Pulley statistic, averaged over K unit directions, with the weight as released (no $1/\sqrt{2\pi}$) and the
    released rule: 17 knots on [0, 3], a trapezoid doubled by symmetry. The target is not looked at: every cloud goes to
    mean 0 and covariance I. Unit: none, since the goal fixes the scale.

    F is without the factor n of the release, so that here as everywhere a velocity is minus the gradient over the
    particle's weight, that is minus the gradient of the released statistic. `statistic` gives n F, or F over
    $\sum_i a_i^2$ with weights. It does not go to 0: for points that are truly normal its mean is
    $\sqrt{2\pi}(1 - 1/\sqrt3) = 1.0594$ for any n (1.0527 within the knots' reach).

    "fresh" directions are drawn at every step, as released; the release takes 256 or 1,024 independent ones, and "auto"
    spreads them evenly, so that fewer do. It fails for outliers: a cloud that starts far off centre pushes some points
    outwards, which come back slowly, and 17 knots can not resolve points beyond about 16, which feel pulls that are not
    meant, so a far cloud should be standardised first. Few fixed directions leave others unseen.

    Balestriero and LeCun 2025; Epps and Pulley 1983.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> point = torch.zeros(1, 1)  # on the whole line sqrt(2 pi) (1 - sqrt(2) + 1 / sqrt(3)) = 0.409
    >>> round(Sigreg()(point, Cloud(point), seeded(0)).item(), 2)
    0.4

    ```
    """

    title = "SIGReg (LeJEPA)"
    family = "characteristic functions"
    source = ("balestriero2025lejepa", "epps1983test")
    needs = "nothing"
    cost = "K N (D + 17) time, N + M memory"
    degree = float("nan")
    root = 2.0

    slices: Annotated[
        int, Range(1, 4096, log=True, help="lines to look along: few are fast and rough, many slow and smooth")
    ] = 64
    directions: Annotated[Kind, Help("how the lines are spread; random as released, auto the most exact")] = "auto"
    draw: Annotated[
        Literal["fresh", "fixed"], Help("fresh: new lines at every step, right on average; fixed: the same all along")
    ] = "fresh"
    direction_seed: Annotated[
        int, Range(0, 2**31 - 1, help="another number, other fixed lines", when={"draw": ("fixed",)})
    ] = 0

    @property
    def laws(self) -> frozenset[Law]:
        held: set[Law] = {"nonnegative"}
        return frozenset(held | {"deterministic"}) if self.draw == "fixed" else frozenset(held)

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return line_gap(line_waves(x, weight, self._lines(x, rng)), _normal(x)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Closed form: one sine and cosine for each point and line, turned on to the other knots."""
        return Velocity(*follow_lines(x, weight, self._lines(x, rng), _normal(x)))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D), the particles x themselves unmoved."""
        theta = self._lines(x, rng)
        return pull_lines(at, theta, line_slope(line_waves(x, weight, theta), _normal(x), len(theta)))

    def statistic(self, x: Tensor, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """() the statistic as released: F times the number of points (the effective one, where they have weights)."""
        return self(x, Cloud(x), rng, weight) / mass_of(x, weight).square().sum()

    def _lines(self, x: Tensor, rng: Generator) -> Tensor:
        if self.draw == "fixed":
            return fixed_unit_vectors(self.directions, self.slices, x.shape[1], self.direction_seed).to(x)
        return unit_vectors(self.directions, self.slices, x.shape[1], rng).to(x)


def _normal(x: Tensor) -> Waves:
    """(1, 17) the characteristic function of N(0, 1) at the knots."""
    phi = (-0.5 * knots()[0].square()).exp()[None].to(x.device, torch.float64 if x.device.type != "mps" else x.dtype)
    return Waves(phi, torch.zeros_like(phi))
