r"""Transport on trees of lines that meet in one root, with masses split over the lines by distance.

A point x sends the share $\alpha_l(x) = \mathrm{softmax}_l(-\delta\, \mathrm{dist}(x, l))$ of its mass to its foot on
line l. Feet are counted from the root, so every line gets the root as a point at 0 that carries what balances the
line: then the mass left of an edge tells what crosses it, and both rays are served by one running sum.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._slicing import frames, gaussian, unit
from dmviz.losses._sorting import ranked

_BLOCK = 1 << 18  # numbers handled at once
_KEPT = 1 << 25  # bytes of a target's feet that a run may keep
_EXPLICIT = 4  # dimensions up to which the part across a line is worked out component by component


class Trees(NamedTuple):
    """T trees of k lines, float64, on the CPU."""

    root: Tensor  # (T, D) from the target's mean
    theta: Tensor  # (T, k, D) unit vectors

    def rows(self, part: slice, like: Tensor) -> "Trees":
        return Trees(self.root[part].to(like), self.theta[part].to(like))


def concurrent_trees(count: int, lines: int, dim: int, std: float, orthogonal: bool, rng: Generator) -> Trees:
    """Roots from a normal law about 0, and lines through each in independent or in orthogonal directions."""
    root = std * gaussian((count, dim), rng)
    if not orthogonal:
        return Trees(root, unit(gaussian((count * lines, dim), rng)).reshape(count, lines, dim))
    blocks = -(-lines // dim)  # several frames where there are more lines than dimensions
    turned = frames(count * blocks, dim, min(lines, dim), rng).transpose(1, 2)  # (T B, min(k, D), D)
    return Trees(root, turned.reshape(count, -1, dim)[:, :lines])


class Feet(NamedTuple):
    """Where points stand on the lines of C trees, and the shares they send there."""

    t: Tensor  # (C k, N) signed distance from the root
    share: Tensor  # (C k, N) sums to 1 over the lines of a tree
    across: Tensor | None  # (C k, D - 1, N) the rest of the way, in an orthonormal basis; only for D = 2 to 4
    far: Tensor  # (C k, N) length of that rest


def feet(x: Tensor, trees: Trees, delta: float) -> Feet:
    """For points (N, D) counted from the target's mean."""
    c, k, d = trees.theta.shape
    theta = trees.theta.reshape(c * k, d)
    t = foot_of(x, trees)
    across = None
    if d == 1:
        far = torch.zeros_like(t)
    elif d <= _EXPLICIT:
        # By Pythagoras a point near its line would lose all digits of its distance.
        basis = complement(theta)  # (C k, D - 1, D)
        start = (basis @ trees.root.repeat_interleave(k, 0)[:, :, None])[..., 0]
        across = (basis.reshape(-1, d) @ x.T).reshape(c * k, d - 1, -1) - start[:, :, None]
        far = across[:, 0].abs() if d == 2 else across.square().sum(1).sqrt()
    else:
        away = x.square().sum(1) + trees.root.square().sum(1, keepdim=True) - 2 * trees.root @ x.T  # (C, N) squared
        far = (away[:, None] - t.reshape(c, k, -1).square()).clamp_min_(0).sqrt_().reshape(c * k, -1)
    share = torch.softmax(far.reshape(c, k, -1) * -delta, dim=1).reshape(c * k, -1)
    return Feet(t, share, across, far)


def foot_of(x: Tensor, trees: Trees) -> Tensor:
    """(C k, N) signed distance of each foot from its root."""
    flat = trees.theta.reshape(-1, x.shape[1])
    start = (trees.theta * trees.root[:, None]).sum(-1).reshape(-1, 1)  # (C k, 1)
    return flat @ x.T - start


def complement(theta: Tensor) -> Tensor:
    """(L, D - 1, D) for each unit vector an orthonormal basis of what is across it."""
    # The mirror that sends theta to the first axis sends the other axes to such a basis.
    w = theta.clone()
    w[:, 0] += torch.where(theta[:, 0] < 0, -1.0, 1.0)
    shift = 2 * w[:, :, None] * w[:, None] / w.square().sum(1)[:, None, None]
    return (torch.eye(theta.shape[1], dtype=theta.dtype, device=theta.device) - shift)[:, 1:]


class Edges(NamedTuple):
    """Cost on R lines, and its derivatives in the place and in the mass of each point, in the order given."""

    value: Tensor  # (R,) float64
    slope: Tensor  # (R, K) over minus the point's signed mass
    price: Tensor  # (R, K) minus the derivative in the mass, up to a constant for each line


def edges(t: Tensor, mass: Tensor, power: int) -> Edges:
    """For places t (R, K) and signed masses (R, K) that add up to 0, the root among them.

    Sums run in float64 (torch's cumsum does) and are kept as t is. A place's slope is the cost |S| of the edge before
    it less that of the edge after, two numbers that nearly agree; by (|a| - |b|) (|a| + |b|) = (a - b) (a + b) it is
    the point's mass times a quotient that has no such loss.
    """
    order = ranked(t)
    t = t.gather(-1, order)
    crossing = crossing_of(mass.gather(-1, order), t.dtype)  # (R, K + 1)
    cost = crossing.abs() if power == 1 else crossing.square()
    length = t[:, 1:] - t[:, :-1]
    push = length * (crossing[:, 1:-1].sign() if power == 1 else 2 * crossing[:, 1:-1])
    price = torch.empty_like(t)
    price[:, 0] = 0
    torch.cumsum(push, dim=-1, out=price[:, 1:])
    slope = crossing[:, :-1] + crossing[:, 1:]
    if power == 1:
        slope.div_((cost[:, :-1] + cost[:, 1:]).clamp_min_(torch.finfo(t.dtype).tiny))
    value = length.mul_(cost[:, 1:-1]).sum(-1, dtype=accurate(t))
    return Edges(value, torch.empty_like(t).scatter_(-1, order, slope), torch.empty_like(t).scatter_(-1, order, price))


def crossing_of(mass: Tensor, dtype: torch.dtype) -> Tensor:
    """(R, K + 1) mass before each of K points and after the last; rounding errors count as 0."""
    total = torch.nn.functional.pad(mass.cumsum(-1), (1, 0))
    return torch.nn.functional.hardshrink(total, 2 * torch.finfo(dtype).eps)


def balanced(t_x: Tensor, mass_x: Tensor, t_y: Tensor, mass_y: Tensor) -> tuple[Tensor, Tensor]:
    """Places and signed masses of both clouds and, last, of the root at 0, for `edges`."""
    rest = mass_y.sum(-1, keepdim=True) - mass_x.sum(-1, keepdim=True)
    return torch.cat((t_x, t_y, torch.zeros_like(t_x[:, :1])), dim=-1), torch.cat((mass_x, -mass_y, rest), dim=-1)


@dataclass(frozen=True)
class Tree:
    """How trees split mass and count edges."""

    delta: float
    power: int  # 1: transport on the tree; 2: the authors' other choice, squared masses


def kept_feet(target: Cloud, trees: Trees, rule: Tree) -> tuple[Tensor, Tensor] | None:
    """(T k, M) places and masses of a target on fixed trees, where they are small enough to keep."""
    count = trees.theta.shape[0] * trees.theta.shape[1] * len(target)
    if 2 * count * target.x.element_size() > _KEPT:
        return None
    centre, trees = _centred(target, trees)
    y = target.x - centre
    parts = [_standing(y, target.weight, trees.rows(part, y), rule) for part in _parts(trees, len(y))]
    return torch.cat([t for t, _ in parts]), torch.cat([mass for _, mass in parts])


def _standing(y: Tensor, weight: Tensor | None, trees: Trees, rule: Tree) -> tuple[Tensor, Tensor]:
    found = feet(y, trees, rule.delta)
    return found.t, found.share * mass_of(y, weight)


def mean_of(target: Cloud) -> Tensor:
    """(1, D) the target's weighted mean, float64: where roots are counted from."""
    y = target.x.detach().to(accurate(target.x))
    return (y.mean(0) if target.weight is None else target.weight.to(y.dtype) @ y)[None]


def _centred(target: Cloud, trees: Trees) -> tuple[Tensor, Trees]:
    """(1, D) the mean as the points can hold it, to be taken off them, and the trees counted from there."""
    mean = mean_of(target)
    centre = mean.to(target.x.dtype)
    return centre, trees._replace(root=trees.root.to(mean) + (mean - centre))


def tree_velocity(
    x: Tensor,
    target: Cloud,
    trees: Trees,
    rule: Tree,
    weight: Tensor | None,
    kept: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(N, D) velocity and () value of the mean over trees, a block of trees at a time."""
    centre, trees = _centred(target, trees)
    x, y = x - centre, target.x - centre
    a, k = mass_of(x, weight), trees.theta.shape[1]
    v, value = torch.zeros_like(x), torch.zeros((), dtype=accurate(x), device=x.device)
    for part in _parts(trees, len(x) + len(y)):
        some = trees.rows(part, x)
        here, lines = feet(x, some, rule.delta), slice(part.start * k, part.stop * k)
        t_y, mass_y = _standing(y, target.weight, some, rule) if kept is None else (kept[0][lines], kept[1][lines])
        cost, slope, price = _by_lines(here, a, t_y, mass_y, rule)
        value += cost.sum()
        _add_pull(v, x, some, here, slope, price, rule.delta)
    count = len(trees.root)
    v = v.div_(count) if weight is None else torch.where(weight[:, None] > 0, v / count, 0.0)
    return v, (value / count).to(x.dtype)


def _by_lines(here: Feet, a: Tensor, t_y: Tensor, mass_y: Tensor, rule: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """(C k,) costs; (C k, N) derivatives over a particle's mass, in its place and in its share."""
    n = len(a)
    costs, slopes, prices = [], [], []
    for part in _blocks(len(t_y), n + t_y.shape[1]):
        t, mass = balanced(here.t[part], here.share[part] * a, t_y[part], mass_y[part])
        found = edges(t, mass, rule.power)
        costs.append(found.value)
        slopes.append(found.slope[:, :n] * -here.share[part])
        prices.append(found.price[:, -1:] - found.price[:, :n])
    return torch.cat(costs), torch.cat(slopes), torch.cat(prices)


def _add_pull(v: Tensor, x: Tensor, trees: Trees, here: Feet, slope: Tensor, price: Tensor, delta: float) -> None:
    """Add the trees' pull to v: along the lines, and across them, where nearer lines get a larger share."""
    c, k, d = trees.theta.shape
    theta = trees.theta.reshape(c * k, d)
    if d == 1 or delta == 0:
        v.addmm_(slope.T, theta, alpha=-1)
        return
    mean = (here.share * price).reshape(c, k, -1).sum(1)  # (C, N)
    turn = here.share * (price.reshape(c, k, -1) - mean[:, None]).reshape(c * k, -1) * delta
    turn = torch.where(here.far > 0, turn / here.far.clamp_min(torch.finfo(x.dtype).tiny), 0.0)  # (C k, N)
    if here.across is not None:
        v.addmm_(slope.T, theta, alpha=-1)
        v.addmm_((here.across * turn[:, None]).reshape(-1, len(x)).T, complement(theta).reshape(-1, d))
        return
    v.addmm_((slope + turn * here.t).T, theta, alpha=-1)
    v.addcmul_(turn.sum(0)[:, None], x)
    v.addmm_(turn.reshape(c, k, -1).sum(1).T, trees.root, alpha=-1)


def tree_value(x: Tensor, target: Cloud, trees: Trees, rule: Tree, weight: Tensor | None) -> Tensor:
    """() the mean over trees, differentiable in x."""
    centre, trees = _centred(target, trees)
    x, y = x - centre, target.x.detach() - centre
    a, b = mass_of(x, weight).to(accurate(x)), mass_of(y, target.weight).to(accurate(y))
    value = torch.zeros((), dtype=accurate(x), device=x.device)
    for part in _parts(trees, len(x) + len(y)):
        some = trees.rows(part, x)
        t_x, t_y = foot_of(x, some), foot_of(y, some)
        share_x, share_y = shares(x, some, rule.delta), shares(y, some, rule.delta)
        for line in _blocks(len(t_x), len(x) + len(y)):
            t, mass = balanced(t_x[line], share_x[line] * a, t_y[line], share_y[line] * b)
            value = value + _line_cost(t, mass, rule.power)
    return (value / len(trees.root)).to(x.dtype)


def _line_cost(t: Tensor, mass: Tensor, power: int) -> Tensor:
    """() summed over R lines, for places (R, K) and signed masses as in `edges`; differentiable in both."""
    order = ranked(t)
    crossing = crossing_of(mass.gather(-1, order), t.dtype)[:, 1:-1]
    length = t.gather(-1, order).diff(dim=-1)
    return (length * (crossing.abs() if power == 1 else crossing.square())).sum(dtype=mass.dtype)


def shares(x: Tensor, trees: Trees, delta: float) -> Tensor:
    """(C k, N) share of each point that goes to each line of its tree, differentiable in x."""
    c, k, _ = trees.theta.shape
    z = (x - trees.root[:, None])[:, None]  # (C, 1, N, D)
    t = foot_of(x, trees).reshape(c, k, -1, 1)
    square = (z - t * trees.theta[:, :, None]).square().sum(-1)  # (C, k, N)
    # A root has no slope at 0, where a point lies on the line: use 0 there.
    far = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
    return torch.softmax(far * -delta, dim=1).reshape(c * k, -1)


def _parts(trees: Trees, width: int) -> list[slice]:
    """Blocks of trees."""
    return _blocks(len(trees.root), trees.theta.shape[1] * width)


def _blocks(count: int, width: int) -> list[slice]:
    size = max(1, _BLOCK // max(width, 1))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
