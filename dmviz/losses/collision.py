r"""Collision loss: how often points share a cell, within a cloud and across clouds.

Two points that differ by z fall into one cell of a grid with cells `cell` wide, laid at random, with probability

    k(z) = prod_d max(0, 1 - |z_d| / cell),

so that expected collision counts are sums of k over pairs. k is 0 beyond one cell: points sorted along one coordinate
meet only a window of the others.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.checkpoint import checkpoint

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._compiled import chosen, over_rows
from dmviz.losses._lines import accurate
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_KEY = "collision"
_COLUMNS = 4096  # a tile of 64 rows and so many columns is 1 MB in float32


@entry
class Collision:
    r"""Count how often two points fall into one cell: particles with particles, target with target, and across.

    $$ F = E_{grid} \sum_c (p_c - q_c)^2 = E\,k(X, X') + E\,k(Y, Y') - 2\,E\,k(X, Y),\qquad
       k(x, y) = \prod_d \max\Bigl(0,\ 1 - \frac{|x_d - y_d|}{cell}\Bigr) $$

    p_c and q_c are the masses of both laws in cell c. Samples alone give an unbiased estimate of the sum: of n draws
    with counts n_c, the pairs that collide, $n_c (n_c - 1)$ over $n (n - 1)$, estimate p_c^2 without bias, and so on.
    One grid's counts have no slope. Here the grid is laid at random and the mean over all its places is taken, which
    is exact: two points collide with probability k, a product of tents. Unit: none. "unbiased" leaves each point's
    meeting with itself out (with weights: divided by 1 - sum a^2), is right on average and can be negative; "plug_in"
    keeps it: a squared distance, too large by about 1/n + 1/m. Both have nearly one gradient. `cell` is how far a
    particle feels, and what counts as the same place.

    Fails: further than a cell from all others a particle feels nothing; in high dimension hardly two points ever share
    a cell. That a loss from samples alone is proper only as a polynomial of the masses, and of two draws or more from
    each law for this one, is the result of Kimpara et al. 2023; the cells and the mean over grids are ours.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [0.25]]), torch.tensor([[0.0], [9.0]])
    >>> Collision(cell=1.0)(here, Cloud(there), seeded(0)).item()  # 3/4 + 0 - 2 * (1 + 3/4) / 4
    -0.125

    ```
    """

    title = "Collision loss"
    family = "moments and order"
    source = ("kimpara2023proper",)
    needs = "samples"
    cost = "(N + M) W D time for W points within a cell along the widest coordinate, N + M memory"
    degree = 0.0
    root = 2.0

    cell: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="small sees detail and reaches no further; large blurs")
    ] = 1.0
    estimator: Annotated[
        Literal["unbiased", "plug_in"], Help("unbiased: right on average, can be negative; plug_in: never negative")
    ] = "unbiased"

    @property
    def laws(self) -> frozenset[Law]:
        found: frozenset[Law] = frozenset({"symmetric", "shift_free", "deterministic"})
        return found | {"zero_at_target", "nonnegative", "triangle"} if self.estimator == "plug_in" else found

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        a, axis = mass_of(x, weight), _widest(target.x)
        own = self._pairs_apart(collisions(x, a, x, a, self.cell, axis), a)
        cross = collisions(x, a, target.x, target.mass(), self.cell, axis)
        return (own + self._own(target) - 2.0 * cross).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Up the slope of the chance to meet the target, down that of meeting another particle."""
        a, axis, compiled = mass_of(x, weight), _widest(target.x), chosen(target.memo, x)
        own = _felt(x, x, a, self.cell, axis, compiled)
        cross = _felt(x, target.x, target.mass(), self.cell, axis, compiled)
        v = (2.0 * (cross.grad - self._scale(a) * own.grad)).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        wide = a.to(own.s.dtype)
        value = self._pairs_apart(wide @ own.s, a) + self._own(target) - 2.0 * (wide @ cross.s)
        return Velocity(v, value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same pull at any points (K, D)."""
        a, axis, compiled = mass_of(x, weight), _widest(target.x), chosen(target.memo, x)
        own = _felt(at, x, a, self.cell, axis, compiled)
        cross = _felt(at, target.x, target.mass(), self.cell, axis, compiled)
        return (2.0 * (cross.grad - self._scale(a) * own.grad)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target's own collisions."""
        compiled = chosen(None, target.x)
        return replace(target, memo={"of": target.x, "loss": self, _KEY: self._own(target), "compiled": compiled})

    def _own(self, target: Cloud) -> Tensor:
        memo = target.memo
        if memo and _KEY in memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo[_KEY]  # type: ignore[no-any-return]
        with torch.no_grad():
            b = target.mass()
            return self._pairs_apart(collisions(target.x, b, target.x, b, self.cell, _widest(target.x)), b)

    def _pairs_apart(self, all_pairs: Tensor, a: Tensor) -> Tensor:
        """The mean over pairs of different points, from the sum over all pairs; unchanged for plug_in."""
        if self.estimator == "plug_in":
            return all_pairs
        return (all_pairs - a.to(all_pairs.dtype).square().sum()) * self._scale(a)

    def _scale(self, a: Tensor) -> Tensor:
        """1 / (1 - sum a^2), the share of pairs of different points; 0 for a single point, which has no pair."""
        rest = 1.0 - a.to(accurate(a)).square().sum()
        if self.estimator == "plug_in":
            return torch.ones_like(rest)
        return torch.where(rest > 1e-12, 1.0 / torch.where(rest > 1e-12, rest, 1.0), 0.0)


class Felt(NamedTuple):
    """What each x hears from all y: sum_j b_j k(x_i - y_j), and its gradient in x_i."""

    s: Tensor  # (N,) float64
    grad: Tensor  # (N, D) float64


def collisions(x: Tensor, a: Tensor, y: Tensor, b: Tensor, cell: float, axis: int = 0) -> Tensor:
    """() sum_ij a_i b_j k(x_i - y_j), float64 and differentiable in x and y.

    >>> one = torch.ones(1)
    >>> collisions(torch.zeros(1, 2), one, torch.tensor([[0.5, 0.5]]), one, 1.0)  # (1/2)^2
    tensor(0.2500, dtype=torch.float64)
    """
    x, a, y, b = _sorted(x, a, cell, axis) + _sorted(y, b, cell, axis)
    total = x.new_zeros((), dtype=accurate(x))
    needs = x.requires_grad or y.requires_grad
    for rows, columns in _windows(x.detach(), y.detach(), axis):
        inputs = (x[rows], y[columns], b[columns])
        part = checkpoint(_tile, *inputs, use_reentrant=False) if needs else _tile(*inputs)
        total = total + a[rows].to(total.dtype) @ part.to(total.dtype)
    return total


@torch.no_grad()
def _felt(x: Tensor, y: Tensor, b: Tensor, cell: float, axis: int, compiled: bool) -> Felt:
    order, wide = x[:, axis].argsort(), accurate(x)
    x = x[order] / cell
    y, b = _sorted(y, b, cell, axis)
    s, grad = x.new_zeros(len(x), dtype=wide), x.new_zeros(x.shape, dtype=wide)
    if compiled:
        _add_compiled(x, y, b, axis, s, grad)
        back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        return Felt(s[back], grad[back] / cell)
    for rows, columns in _windows(x, y, axis):
        chance, slopes = _tile_and_slopes(x[rows], y[columns], b[columns])
        s[order[rows]] += chance.to(wide)
        grad[order[rows]] += slopes.to(wide) / cell
    return Felt(s, grad)


def _add_compiled(x: Tensor, y: Tensor, b: Tensor, axis: int, s: Tensor, grad: Tensor) -> None:
    """Adds to s and grad, in cells, what each x hears from the window of y that it can meet; both are sorted."""
    from dmviz.losses import _fused_more

    along, other = x[:, axis].contiguous(), y[:, axis].contiguous()
    low, high = torch.searchsorted(other, along - 1.0), torch.searchsorted(other, along + 1.0, right=True)
    across, share = y.T.contiguous().numpy(), b.contiguous().numpy()
    mine = (x.contiguous(), low, high, s, grad)

    def work(i: slice) -> None:
        points, first, last, sums, slopes = (t[i].numpy() for t in mine)
        _fused_more.tent_rows(points, across, share, first, last, sums, slopes, True)

    over_rows(work, len(x), int((high - low).sum()))


def _sorted(x: Tensor, a: Tensor, cell: float, axis: int) -> tuple[Tensor, Tensor]:
    """Points in cells, in order along `axis`, with their masses."""
    order = x.detach()[:, axis].argsort()
    return x[order] / cell, a[order].to(x.dtype)


def _widest(y: Tensor) -> int:
    """The coordinate along which windows are smallest."""
    return int((y.amax(0) - y.amin(0)).argmax())


def _windows(x: Tensor, y: Tensor, axis: int) -> Iterator[tuple[slice, slice]]:
    """Rows of x and the columns of y within 1 of any of them, both sorted along `axis`; none where none are."""
    along, other = x[:, axis].contiguous(), y[:, axis].contiguous()
    step = 64  # few rows, so that their windows are short
    first = along[::step] - 1.0
    last = torch.cat((along[step - 1 :: step], along[-1:]))[: len(first)] + 1.0
    low, high = torch.searchsorted(other, first).tolist(), torch.searchsorted(other, last, right=True).tolist()
    for k, (begin, end) in enumerate(zip(low, high, strict=True)):
        for start in range(begin, end, _COLUMNS):
            yield slice(k * step, (k + 1) * step), slice(start, min(start + _COLUMNS, end))


def _tents(x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """For each coordinate the difference and its tent, (B, C) each."""
    apart = [x[:, d, None] - y[None, :, d] for d in range(x.shape[1])]
    return apart, [torch.relu(1.0 - z.abs()) for z in apart]


def _product(tents: list[Tensor]) -> Tensor:
    return reduce(torch.mul, tents)


def _tile(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """(B,) sum over the columns of b k."""
    return _product(_tents(x, y)[1]) @ b


def _tile_and_slopes(x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and its gradient in x (B, D), in cells."""
    apart, tents = _tents(x, y)
    k = _product(tents)
    tiny = torch.finfo(x.dtype).tiny
    # Without its own tent k is the slope's size; where that tent is 0, so is k.
    slopes = [
        tent.clamp_min(tiny).reciprocal_().mul_(k).mul_(z.sign_()) @ b for z, tent in zip(apart, tents, strict=True)
    ]
    return k @ b, -torch.stack(slopes, dim=1)
