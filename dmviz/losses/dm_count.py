"""DM-Count: particles and target as density maps, compared by count, entropic transport and total variation."""

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_STEEP = 600.0  # largest cost over regularization whose exponential, and its inverse, float64 still holds


@entry
class DmCount:
    r"""Make a density map of each cloud, as crowd counting does, and match mass, places and shape.

    $$ F = \bigl|\,|p| - |q|\,\bigr| + \lambda_1\, OT_\varepsilon\Bigl(\frac{p}{|p|}, \frac{q}{|q|}\Bigr)
         + \lambda_2\, |q| \sum_c \Bigl|\frac{p_c}{|p|} - \frac{q_c}{|q|}\Bigr| $$

    p and q are maps of G x G cells on [-reach, reach] squared, |p| their mass, lambda the `transport` and `variation`
    weights. A point splits its mass between the four cell centres around it; what lies more than a cell beyond the
    outer centres is lost. Costs are squared distances in cells, and epsilon is `regularization` in squared cells: 10
    blurs plans over three cells. OT is the dual value after `iterations` sweeps, with entropy relative to p x q; its
    pull is that of the potential on p, held constant, as in the released code. Total variation is an L1 distance
    without the 1/2 of the paper, as released. Unit: none.

    How the cloud form departs: maps come from particles instead of a network, so the pull on a cell reaches a particle
    through the slopes of its four shares; the masses of a cloud sum to 1, so the count term is the part of either
    cloud outside the window, and only there it pulls; and the released entropy, relative to nothing, has no finite
    slope in an empty cell.

    Fails: outside the window nothing pulls, and without mass inside, only the count is left. OT is not debiased: the
    value is not 0 where the maps agree, and particles gather more tightly than the target. In two dimensions only.

    Wang et al. 2020.

    ```python
    >>> from dmviz.cloud import seeded
    >>> loss = DmCount(grid=3, reach=1.0)  # centres at -1, 0 and 1
    >>> here, there = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    >>> round(loss(here, Cloud(there), seeded(0)).item(), 4)  # 0.1 * 2^2 + 0.01 * (1 + 1)
    0.42

    ```
    """

    title = "DM-Count"
    family = "moments and order"
    source = ("wang2020distribution",)
    needs = "samples"
    cost = "N + M + I G^3 time, N + M + G^2 memory, for I sweeps"
    laws = frozenset({"nonnegative", "deterministic"})
    degree = 0.0
    root = 1.0
    dims = (2, 2)

    grid: Annotated[int, Range(3, 64, log=True, help="cells a side: few are fast and coarse, many fine and slow")] = 32
    reach: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="outermost centres: points beyond are not counted")
    ] = 4.0
    transport: Annotated[float, Range(0.0, 10.0, help="weight of transport: pulls over any distance")] = 0.1
    variation: Annotated[float, Range(0.0, 10.0, help="weight of total variation: pulls between neighbours")] = 0.01
    regularization: Annotated[
        float, Range(0.1, 1e3, log=True, help="in squared cells: small is sharp and slow to settle, large is blurred")
    ] = 10.0
    iterations: Annotated[
        int, Range(1, 2000, log=True, help="sweeps of Sinkhorn's method: few are fast, many exact")
    ] = 100

    def __post_init__(self) -> None:
        least = 2.0 * (self.grid - 1) ** 2 / _STEEP
        if self.regularization < least:
            raise ValueError(
                f"DmCount: regularization must be at least {least:.3g} for a grid of {self.grid}, got "
                f"{self.regularization:g}. Take fewer cells or more regularization."
            )

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        p, q = density_map(x, mass_of(x, weight), self.reach, self.grid), self._there(target)
        count, variation = count_and_variation(p, q)
        value = count + self.variation * variation
        if p.sum() > 0 and q.sum() > 0:
            found = self._potentials(p, q)
            share = p / p.sum()
            value = value + self.transport * ((found.f * share).sum() + (found.g * q).sum() / q.sum())
        return value.to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Tensor | None = None
    ) -> Velocity:
        """Down the slope of the map's derivative, as it lies between the four centres around a particle."""
        p, q = density_map(x, mass_of(x, weight), self.reach, self.grid), self._there(target)
        total, wanted = p.sum(), q.sum()
        count, variation = count_and_variation(p, q)
        value, slope = count + self.variation * variation, (total - wanted).sign().expand_as(p)
        if total > 0:
            sign = (p / total - _share(q)).sign()
            slope = slope + self.variation * wanted * _through_share(sign, p)
        if total > 0 and wanted > 0:
            found = self._potentials(p, q, carry)
            carry = found.g
            value = value + self.transport * ((found.f * p).sum() / total + (found.g * q).sum() / wanted)
            slope = slope + self.transport * _through_share(found.f, p)
        v = -map_slope(x, slope, self.reach).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, value.to(x.dtype), carry)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's map."""
        return replace(target, memo={"of": target.x, "loss": self, "map": self._there(target)})

    def _there(self, target: Cloud) -> Tensor:
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["map"]  # type: ignore[no-any-return]
        return density_map(target.x.detach(), target.mass(), self.reach, self.grid)

    def _potentials(self, p: Tensor, q: Tensor, start: Tensor | None = None) -> "Potentials":
        if start is not None and start.shape != q.shape:
            start = None
        return grid_transport(_share(p.detach()), _share(q), self.regularization, self.iterations, start)


class Potentials(NamedTuple):
    """Dual potentials of entropic transport between two maps, finite in every cell."""

    f: Tensor  # (G, G)
    g: Tensor  # (G, G)


@torch.no_grad()
def grid_transport(
    p: Tensor, q: Tensor, regularization: float, iterations: int, start: Tensor | None = None
) -> Potentials:
    """Potentials between maps p and q (G, G) of mass 1, for squared distances in cells, from a potential g on q.

    exp(-cost / regularization) is a product of one factor for each axis, so that a sweep is four G x G products.
    """
    device, dtype = p.device, p.dtype
    p, q = p.cpu().double(), q.cpu().double()  # float64 alone holds these exponentials
    at = torch.arange(len(p), dtype=torch.float64)
    bell = (at[:, None] - at).square().div(-regularization).exp()
    v = torch.ones_like(q) if start is None else (start.cpu().double() / regularization).exp()
    last = v
    for sweep in range(iterations):
        u = (bell @ (v * q) @ bell).reciprocal()
        v = (bell @ (u * p) @ bell).reciprocal()
        if sweep % 10 == 9:
            if (v / last).log().abs().max() < 1e-9:
                break
            last = v
    u = (bell @ (v * q) @ bell).reciprocal()
    return Potentials(*((regularization * z.log()).to(device, dtype) for z in (u, v)))


def count_and_variation(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Difference of the masses of two maps, and the L1 distance of their shares times the mass of q.

    >>> count_and_variation(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]))
    (tensor(2.), tensor(1.))
    """
    return (p.sum() - q.sum()).abs(), q.sum() * (_share(p) - _share(q)).abs().sum()


def density_map(x: Tensor, mass: Tensor, reach: float, size: int) -> Tensor:
    """(G, G) float64: each point's mass split between the four centres around it; differentiable in x (N, 2)."""
    corner, above = _corner(x, reach, size)
    flat = above.new_zeros((size + 2) ** 2)  # a rim of one cell takes what falls out of the window
    mass = mass.to(above.dtype)
    for i in (0, 1):
        for j in (0, 1):
            part = (above[:, 0] if i else 1.0 - above[:, 0]) * (above[:, 1] if j else 1.0 - above[:, 1])
            flat = flat.index_add(0, (corner[:, 0] + i) * (size + 2) + corner[:, 1] + j, mass * part)
    return flat.view(size + 2, size + 2)[1:-1, 1:-1]


def map_slope(x: Tensor, values: Tensor, reach: float) -> Tensor:
    """(N, 2) gradient at x of a map (G, G), linear between its centres and 0 a cell beyond them."""
    size = len(values)
    corner, above = _corner(x, reach, size)
    held = torch.nn.functional.pad(values, (1, 1, 1, 1))
    (a, b), (c, d) = ([held[corner[:, 0] + i, corner[:, 1] + j] for j in (0, 1)] for i in (0, 1))
    across = (c - a) + above[:, 1] * ((d - b) - (c - a))
    along = (b - a) + above[:, 0] * ((d - c) - (b - a))
    far = (x < -reach - _cell(reach, size)) | (x > reach + _cell(reach, size))
    return torch.where(far.any(1, keepdim=True), 0.0, torch.stack((across, along), dim=1) / _cell(reach, size))


def _corner(x: Tensor, reach: float, size: int) -> tuple[Tensor, Tensor]:
    """(N, 2) the centre below each point, counted from the rim, and how far above it the point lies, in cells."""
    u = (x.to(accurate(x)) + reach) / _cell(reach, size) + 1.0
    u = u.clamp(0.0, size + 1.0)
    corner = u.detach().long().clamp_(0, size)
    return corner, u - corner


def _cell(reach: float, size: int) -> float:
    return 2.0 * reach / (size - 1)


def _share(p: Tensor) -> Tensor:
    """A map over its mass, which may be 0."""
    total = p.sum()
    return p / torch.where(total > 0, total, 1.0)


def _through_share(slope: Tensor, p: Tensor) -> Tensor:
    """Derivative in a map p of what has derivative `slope` in its share: no change of scale matters."""
    total = p.sum()
    return (slope - (slope * p).sum() / total) / total
