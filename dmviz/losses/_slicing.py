"""Directions on the sphere, and the mean over them of transport on a line."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of, seeded
from dmviz.losses._lines import Pull, Staircase, accurate, even_levels, power_on_lines, pull_on_lines
from dmviz.losses._sorting import ranked

Kind = Literal["auto", "quasi_random", "orthogonal", "random"]
_BLOCK = 1 << 18  # numbers handled at once: they stay in the processor's cache
_KEPT = 1 << 25  # bytes of sorted target that a run may keep


def unit_vectors(kind: Kind, count: int, dim: int, rng: Generator) -> Tensor:
    """(L, D) float64 unit vectors, uniform on the sphere each; one vector is all there is on a line."""
    if dim == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if kind == "random":
        return unit(gaussian((count, dim), rng))
    if kind == "orthogonal" or (kind == "auto" and dim > 3):
        blocks = frames(-(-count // dim), dim, min(count, dim), rng)  # (B, D, k)
        return blocks.transpose(1, 2).reshape(-1, dim)[:count]
    if dim == 2:
        turn = torch.rand(1, generator=rng, device=rng.device).to("cpu", torch.float64)  # of all, by less than one gap
        angle = (torch.arange(count, dtype=torch.float64) + turn) * (math.pi / count)
        return torch.stack((angle.cos(), angle.sin()), dim=1)
    return even_directions(count, dim) @ frames(1, dim, dim, rng)[0]


@lru_cache(maxsize=32)
def fixed_unit_vectors(kind: Kind, count: int, dim: int, seed: int) -> Tensor:
    """The same for one seed, drawn once; kept, since a run asks for them at every step."""
    return unit_vectors(kind, count, dim, seeded(seed, 51))


@lru_cache(maxsize=32)
def even_directions(count: int, dim: int) -> Tensor:
    """(L, D) a fixed set spread more evenly than chance: a spiral on the half sphere in 3-D, Sobol points elsewhere."""
    if dim == 3:
        step = torch.arange(count, dtype=torch.float64)
        height = (step + 0.5) / count  # equal areas; the other half of the sphere gives the same slices
        around, radius = step * (math.pi * (3 - math.sqrt(5))), (1 - height.square()).sqrt()
        return torch.stack((radius * around.cos(), radius * around.sin(), height), dim=1)
    if dim > torch.quasirandom.SobolEngine.MAXDIM:
        raise ValueError(
            f"SlicedWasserstein: quasi_random directions exist in at most 21,201 dimensions, got {dim}. Choose auto."
        )
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=1)  # type: ignore[no-untyped-call]
    points: Tensor = engine.draw(count, dtype=torch.float64)
    normal: Tensor = torch.special.ndtri(points.clamp(1e-6, 1 - 1e-6))
    return unit(normal)


def unit(rows: Tensor) -> Tensor:
    """(L, D) the same directions, of length 1."""
    length: Tensor = rows.square().sum(1, keepdim=True).sqrt()
    return rows / length.clamp_min(1e-300)


def frames(count: int, dim: int, size: int, rng: Generator) -> Tensor:
    """(B, D, k) blocks of k orthonormal columns, uniform among all such (Haar)."""
    q, r = torch.linalg.qr(gaussian((count, dim, size), rng))
    signs: Tensor = torch.where(torch.diagonal(r, dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None, :]
    turned: Tensor = signs * q
    return turned


def gaussian(shape: tuple[int, ...], rng: Generator) -> Tensor:
    """Standard normal float64 numbers on the CPU: float32 and float64 runs, on any device, see the same draw."""
    kind = torch.float32 if rng.device.type == "mps" else torch.float64
    return torch.randn(shape, generator=rng, device=rng.device, dtype=kind).to("cpu", torch.float64)


def centre_of(y: Tensor) -> Tensor:
    """(1, D) a point amid the target. Taken off both clouds first, so that far from the origin no digits are lost."""
    return y.detach().to(accurate(y)).mean(0, keepdim=True).to(y.dtype)


class Slices(NamedTuple):
    """Lines to project on, and how much each counts; `target` where its order on them is kept."""

    theta: Tensor  # (L, D) unit vectors, float64, on the CPU
    share: Tensor  # (L,) sums to 1
    target: "Sorted | None" = None

    @classmethod
    def even(cls, theta: Tensor) -> "Slices":
        return cls(theta, theta.new_full((len(theta),), 1.0 / len(theta)))


@dataclass(frozen=True, eq=False)
class Sorted:
    """A target in order on every line, kept for a run, with its mean quantiles for the last number of particles."""

    stairs: Staircase
    centre: Tensor
    known: dict[int, Tensor]

    def means(self, n: int) -> Tensor | None:
        """(L, N) mean quantiles over N equal masses, worked out once; None where they would take too much room."""
        y = self.stairs.y
        if (self.stairs.mass is None and y.shape[-1] == n) or len(y) * n * 8 > _KEPT:
            return None
        found = self.known.get(n)
        if found is None:
            found = self.stairs.means(even_levels(n, y).expand(len(y), -1))
            self.known.clear()
            self.known[n] = found
        return found


def sorted_target(slices: Slices, target: Cloud) -> Slices:
    """`slices` with the target's own work done, where the result is small enough to keep."""
    size = len(slices.theta) * len(target) * (target.x.element_size() + (0 if target.weight is None else 8))
    if size > _KEPT:
        return slices
    centre = centre_of(target.x)
    theta = slices.theta.to(target.x)
    return slices._replace(target=Sorted(Staircase.of(theta @ (target.x - centre).T, target.weight), centre, {}))


def sliced_velocity(
    x: Tensor, target: Cloud, slices: Slices, weight: Tensor | None, power: int
) -> tuple[Tensor, Tensor]:
    """(N, D) velocity and () value of the mean over lines of $W_p^p$, a block of lines at a time."""
    v, value = torch.zeros_like(x), torch.zeros((), dtype=accurate(x), device=x.device)
    theta, share = slices.theta.to(x), slices.share.to(x)
    for part, pull in line_pulls(x, target, slices, weight, power):
        v.addmm_(pull.v.T, share[part, None] * theta[part])
        value += (pull.value * share[part]).sum()
    return v, value.to(x.dtype)


def line_pulls(
    x: Tensor, target: Cloud, slices: Slices, weight: Tensor | None, power: int
) -> Iterator[tuple[slice, Pull]]:
    """Blocks of lines, and what transport says on each of them."""
    kept = slices.target
    centre = centre_of(target.x) if kept is None else kept.centre
    means = None if kept is None or weight is not None or power == 1 else kept.means(len(x))
    x, y = x - centre, target.x - centre
    theta = slices.theta.to(x)
    for part in _parts(len(theta), max(len(x), len(target))):
        stairs = Staircase.of(theta[part] @ y.T, target.weight) if kept is None else kept.stairs.rows(part)
        yield part, pull_on_lines(theta[part] @ x.T, weight, stairs, power, None if means is None else means[part])


def sliced_power(x: Tensor, target: Cloud, slices: Slices, weight: Tensor | None, power: int) -> Tensor:
    """() the mean over lines of $W_p^p$, differentiable in x."""
    costs = sliced_costs(x, target, slices, weight, power)
    return (costs * slices.share.to(costs)).sum().to(x.dtype)


def sliced_costs(x: Tensor, target: Cloud, slices: Slices, weight: Tensor | None, power: int) -> Tensor:
    """(L,) $W_p^p$ on each line, float64, differentiable in x."""
    centre = centre_of(target.x)
    x, y = x - centre, target.x.detach() - centre
    theta = slices.theta.to(x)
    costs = [
        power_on_lines(theta[part] @ x.T, weight, theta[part] @ y.T, target.weight, power)
        for part in _parts(len(theta), len(x) + len(target))
    ]
    return torch.cat(costs)


def sliced_slopes(x: Tensor, target: Cloud, theta: Tensor, weight: Tensor | None, power: int) -> tuple[Tensor, Tensor]:
    """(R,) costs on lines (R, D) and (R, D) their derivatives in the lines, the same couplings kept.

    Both clouds are taken as they stand; take a common centre off them first.
    """
    y, costs, slopes = target.x, [], []
    for part in _parts(len(theta), len(x) + len(y)):
        p, q = theta[part] @ x.T, theta[part] @ y.T
        if weight is None and target.weight is None and len(x) == len(y):
            order, order_y = ranked(p), ranked(q)
            gap = p.gather(-1, order) - q.gather(-1, order_y)
            push = (2 * gap if power == 2 else gap.sign()) / len(x)
            costs.append((gap.square() if power == 2 else gap.abs()).mean(-1, dtype=accurate(gap)))
            slopes.append(p.scatter(-1, order, push) @ x - q.scatter(-1, order_y, push) @ y)
            continue
        there = pull_on_lines(p, weight, Staircase.of(q, target.weight), power)
        back = pull_on_lines(q, target.weight, Staircase.of(p, weight), power)
        costs.append(there.value)
        slopes.append(-(there.v * mass_of(x, weight)) @ x - (back.v * target.mass()) @ y)
    return torch.cat(costs), torch.cat(slopes)


def _parts(count: int, width: int) -> list[slice]:
    """Blocks of lines, none of more than about `_BLOCK` numbers."""
    size = max(1, _BLOCK // max(width, 1))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
