"""Cramer-Wold distance: smoothed shadows on all lines at once, in closed form."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._kernels import Kernel, Radial, kernel_of
from dmviz.losses._pairs import (
    DIRECT,
    discrepancy,
    discrepancy_probe,
    discrepancy_value,
    discrepancy_velocity,
    kernel_mean,
    own_sums,
    prepare_discrepancy,
)
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

Form = Literal["exact", "asymptotic"]
_CELLS = 8192  # of the table of phi: three numbers each leave an error below 1e-11


@entry
class CramerWold:
    r"""Blur the clouds' shadows on every line, and compare them there, without drawing a single line.

    $$ F = E_\theta \|N_\gamma * \theta_\# \mu - N_\gamma * \theta_\# \nu\|_{L^2}^2 = \frac{1}{2\sqrt{\pi\gamma}}
       \Bigl[E\,\varphi_d\bigl(\tfrac{|X-X'|^2}{4\gamma}\bigr) + E\,\varphi_d\bigl(\tfrac{|Y-Y'|^2}{4\gamma}\bigr)
       - 2 E\,\varphi_d\bigl(\tfrac{|X-Y|^2}{4\gamma}\bigr)\Bigr],\qquad
       \varphi_d(s) = {}_1F_1(\tfrac12; \tfrac d2; -s) $$

    The mean over all directions of the squared L2 distance between Gaussian kernel density estimates of variance
    gamma on the line; the bandwidth here is its root, a length. Diagonals are kept, so F is never negative, and 0 only
    if the laws are equal. Unit: 1/length. Its pull falls as one over distance squared, far more slowly than a Gaussian
    bump's, since from some direction even distant points lie close. Small bandwidth: sharp and noisy; large: only
    means.

    "exact" is $e^{-s}$ on a line and otherwise a table of $\varphi_d$ by quadrature, within 1e-11. "asymptotic" is
    $(1 + 4s/(2d-3))^{-1/2}$, which the authors use from 20 dimensions on; it has no meaning on a line, where the exact
    form stays. `silverman` takes gamma = (4/3n)^(2/5), n the mean effective size of the clouds: a
    rule for data of unit spread.
    The released code leaves 1/(2 sqrt(pi)) out of the asymptotic form and descends its logarithm; here neither.

    It fails in high dimension, where phi hardly changes between any two points and noise outweighs the pull.

    Knop et al. 2020.

    ```python
    >>> import torch
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[2.0]])
    >>> round(CramerWold(bandwidth=1.0)(here, Cloud(there), seeded(0)).item(), 4)  # (1 - exp(-1)) / sqrt(pi)
    0.3566

    ```
    """

    title = "Cramer-Wold distance"
    family = "characteristic functions"
    source = ("knop2020cramer",)
    needs = "samples"
    cost = "(N + M) N D time, N + M memory"
    root = 2.0

    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="Blur of the shadows, the root of gamma. Small: sharp and noisy; large: only means",
            when={"silverman": (False,)},
        ),
    ] = 0.5
    silverman: Annotated[bool, Help("Take the blur from the number of points, for data of about unit spread")] = False
    form: Annotated[
        Form, Help("exact: right in every dimension; asymptotic: a simpler curve, close from about 20 dimensions on")
    ] = "exact"

    @property
    def laws(self) -> frozenset[Law]:
        held: set[Law] = {
            "zero_at_target", "nonnegative", "symmetric", "shift_free", "rotation_free", "deterministic"
        }  # fmt: skip
        return frozenset(held if self.silverman else held | {"triangle"})

    @property
    def degree(self) -> float:
        return math.nan if self.silverman else -1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        kernel, scale, target = self._asked(x, target, weight)
        if torch.is_grad_enabled() and x.requires_grad:
            return discrepancy(x, target, kernel, weight) * scale
        return discrepancy_value(x, target, kernel, weight) * scale

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """-2 grad f at the particles, f the mean difference between the smoothed shadows."""
        kernel, scale, target = self._asked(x, target, weight)
        found = discrepancy_velocity(x, target, kernel, weight)
        return Velocity(found.v * scale, found.value * scale)

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same at any points (K, D), the particles x themselves unmoved."""
        kernel, scale, target = self._asked(x, target, weight)
        return discrepancy_probe(at, x, target, kernel, weight) * scale

    def prepare(self, target: Cloud) -> Cloud:
        """The target's own term, where the blur does not depend on the number of particles."""
        if self.silverman:
            return target
        kernel, _, target = self._asked(target.x, target, None)
        return _prepared(target, kernel) if _is_eager(kernel, target.dim) else prepare_discrepancy(target, kernel)

    def _asked(self, x: Tensor, target: Cloud, weight: Tensor | None) -> tuple[Kernel, float, Cloud]:
        """The kernel of these clouds, its height, and the target with word where a table has no compiled form."""
        width = self.bandwidth
        if self.silverman:
            width = math.sqrt(silverman((_count(mass_of(x, weight)) + _count(target.mass())) / 2))
        kernel = kernel_for(x.shape[1], 2 * width, self.form)
        if _is_eager(kernel, x.shape[1]):
            target = replace(target, memo={**(target.memo or {}), "compiled": False})
        return kernel, 0.5 / (math.sqrt(math.pi) * width), target


def silverman(n: float) -> float:
    """gamma, a squared length, for n points of unit spread on a line.

    >>> round(silverman(256), 4)
    0.1221
    """
    return float((4.0 / (3.0 * n)) ** 0.4)


def _count(mass: Tensor) -> float:
    """How many equal points are worth as much as these."""
    return 1.0 / float(mass.square().sum())


def to_normal(x: Tensor, weight: Tensor | None = None, bandwidth: float = 0.5, form: Form = "exact") -> Tensor:
    """() the same distance from a cloud (N, D) to the standard normal law, in closed form and differentiable in x."""
    gamma, a, dim = bandwidth**2, mass_of(x, weight), x.shape[1]
    own = kernel_mean(x, x, a, a, kernel_for(dim, 2 * bandwidth, form)) / bandwidth
    cross = kernel_of(kernel_for(dim, math.sqrt(2 + 4 * gamma), form), x.square().sum(1))
    total = own + (1 + gamma) ** -0.5 - 2 * (gamma + 0.5) ** -0.5 * (a @ cross)
    distance: Tensor = total / (2 * math.sqrt(math.pi))
    return distance.to(x.dtype)


def kernel_for(dim: int, length: float, form: Form) -> Kernel:
    """phi_d(|z|^2 / length^2) as a kernel: a Gaussian on a line, an inverse multiquadric where asymptotic."""
    if dim == 1:
        return Kernel("gaussian", (length / math.sqrt(2),))
    if form == "asymptotic":
        return Kernel("imq", (length * math.sqrt((2 * dim - 3) / 4),))
    return Shadow("imq", (length, float(dim)))


def _is_eager(kernel: Kernel, dim: int) -> bool:
    """A table is read compiled only where differences are formed one coordinate at a time."""
    return isinstance(kernel, Radial) and dim > DIRECT


class Shadow(Kernel):
    """phi_d(|z|^2 / length^2) from a table; its lengths are the length and the dimension."""

    def cells(self, dtype: torch.dtype) -> tuple[Any, Any]:
        return _cells(int(self.lengths[1]), self.lengths[0], dtype)

    @property
    def at_zero(self) -> float:
        return 1.0

    def with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        at = self._at(r2)
        return at.read(0), at.read(3).mul_(2 / self.lengths[0] ** 2)

    def of(self, r2: Tensor) -> Tensor:
        value: Tensor = _Read.apply(r2, self) if r2.requires_grad else self._at(r2.clone()).read(0)  # type: ignore[no-untyped-call]
        return value

    def _at(self, r2: Tensor) -> "_Place":
        """Where to read for squared distances, which are used up: at sigma = (1 + s / c)^(-1/2), in _CELLS cells."""
        dim = int(self.lengths[1])
        sigma = r2.mul_(1 / (self.lengths[0] ** 2 * _bend(dim))).add_(1.0).rsqrt_().mul_(_CELLS)
        # Where a run has blown up, the number of a cell is not defined: any cell does, the rest is NaN anyway.
        cell = sigma.int().clamp_(0, _CELLS - 1)
        # (torch subtracts numbers of another type four times as slowly)
        return _Place(cell, sigma.sub_(cell.to(sigma.dtype)).sub_(0.5), _table(dim).to(sigma))


class _Place(NamedTuple):
    cell: Tensor
    off: Tensor  # from the middle of the cell, in cells
    table: Tensor  # (6, cells)

    def read(self, row: int) -> Tensor:
        """A parabola in each cell, from three rows of the table; a line is enough for float32."""
        slope = self._of(row + 1)
        if slope.dtype == torch.float64:
            slope.addcmul_(self._of(row + 2), self.off)
        return self._of(row).addcmul_(slope, self.off)

    def _of(self, row: int) -> Tensor:
        return self.table[row].index_select(0, self.cell.view(-1)).view_as(self.off)


class _Read(torch.autograd.Function):
    """phi of squared distances, whose derivative is read from the table too."""

    @staticmethod
    def forward(ctx: Any, r2: Tensor, kernel: Shadow) -> Tensor:
        k, w = kernel.with_slope(r2.clone())
        ctx.save_for_backward(w)
        return k

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (w,) = ctx.saved_tensors
        return grad * w / 2, None


def _bend(dim: int) -> float:
    """The s at which phi_d begins to fall as its asymptotic form."""
    return (2 * dim - 3) / 4


@lru_cache(maxsize=16)
def _table(dim: int, cells: int = _CELLS) -> Tensor:
    """(6, cells) float64: three coefficients of phi_d and three of its derivative by s, in each cell of sigma."""
    reach = math.sqrt(3) / 4  # Chebyshev points of a cell that is one wide
    at = (np.arange(cells) + 0.5)[:, None] + np.array([-reach, 0.0, reach])  # (cells, 3)
    s = _bend(dim) * ((cells / at) ** 2 - 1)
    rows = []
    for values in _shadow(s, dim):
        low, middle, high = values.T
        rows += [middle, (high - low) / (2 * reach), (high + low - 2 * middle) / (2 * reach**2)]
    return torch.from_numpy(np.stack(rows))


@lru_cache(maxsize=16)
def _cells(dim: int, length: float, dtype: torch.dtype) -> tuple[Any, Any]:
    """The table with a row for each cell, and 1 / (length^2 c); for float32 so few cells that they stay at hand."""
    table = _table(dim, _CELLS if dtype == torch.float64 else _CELLS // 16).clone()
    table[3:] *= 2 / length**2  # k'(r) / r
    scale = torch.tensor(1 / (length**2 * _bend(dim)), dtype=dtype)
    return table.T.to(dtype).contiguous().numpy(), scale.numpy()[()]


def _shadow(s: "np.ndarray[Any, np.dtype[np.float64]]", dim: int) -> tuple[Any, Any]:
    r"""phi_d and its derivative: means of $e^{-s u^2}$ and $-u^2 e^{-s u^2}$, u a coordinate of the unit sphere.

    By 128 Gauss-Legendre points in the angle, as far as there is anything to sum.
    """
    node, share = np.polynomial.legendre.leggauss(128)
    far = np.minimum(math.pi / 2, 10 / np.sqrt(np.maximum(s, 0.0) + dim / 2))
    height = 2 / math.sqrt(math.pi) * math.exp(math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2))
    value, slope = np.zeros_like(s), np.zeros_like(s)
    for one, part in zip((node + 1) / 2, share / 2, strict=True):
        u2 = np.sin(far * one) ** 2
        weight = part * far * height * np.exp(-s * u2) * np.cos(far * one) ** (dim - 2)
        value += weight
        slope -= weight * u2
    return value, slope


def _prepared(target: Cloud, kernel: Kernel) -> Cloud:
    """As `prepare_discrepancy`, in eager tiles."""
    own, _ = own_sums(target.x.detach(), target.mass(), kernel, compiled=False, want_grad=False)
    return replace(target, memo={"kernel": kernel, "of": target.x, "unbiased": False, "compiled": False, "own": own})
