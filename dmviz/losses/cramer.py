"""Cramer distance: the squared area between distribution functions."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import Staircase, accurate
from dmviz.losses._ranks import standing
from dmviz.losses._sorting import ranked
from dmviz.params import entry
from dmviz.protocols import Velocity


@entry
class Cramer:
    r"""On each coordinate, add up how far the shares of both clouds to the left of a place differ, squared.

    $$ F = \frac1D \sum_d \int \bigl(F_d(t) - G_d(t)\bigr)^2 dt $$

    with the distribution functions F of the particles and G of the target on coordinate d, exact by sorting, for any
    weights and numbers of points. On a line it is half the energy distance; in more dimensions it sees one coordinate
    at a time. Unit: length; the root is a distance between the marginal laws. A particle moves along coordinate d with

    $$ v_d(x) = \tfrac2D \bigl(F_d(x_d) - G_d(x_d)\bigr), $$

    where a step is taken halfway up: to the right where more particles than target points lie to the left. No speed
    exceeds 2 / D, and no two particles can push each other harder for being close. Its gradient from a few target
    points is right on average, which that of a Wasserstein distance is not.

    Fails: blind to how coordinates hang together (a square and its diagonal are equal). Particles that meet stay one.

    Bellemare et al. 2017; as an energy, Szekely and Rizzo 2013.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]])
    >>> Cramer()(here, Cloud(there), seeded(0)).item()  # (1/2)^2 from 0 to 1, then 1 from 1 to 3
    2.25

    ```
    """

    title = "Cramer distance"
    family = "moments and order"
    source = ("bellemare2017cramer", "szekely2013energy")
    needs = "samples"
    cost = "(N + M) D log time, (N + M) D memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "triangle", "deterministic"})
    degree = 1.0
    root = 2.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        both = merged(x.T, mass_of(x, weight), target.x.T, target.mass())
        if not (torch.is_grad_enabled() and x.requires_grad):
            return both.value.mean().to(x.dtype)
        # F has degree 1 in all points together: it is the sum of each one's place times its slope (Euler).
        center = target.mass() @ target.x.detach()
        place = torch.cat((x, target.x.detach())).sub(center).to(both.surplus.dtype)
        return (-2.0 * (both.mass[:, None] * both.surplus.T * place).sum() / x.shape[1]).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """On each coordinate twice the surplus of particles to the left, over D."""
        both = merged(x.T, mass_of(x, weight), target.x.T, target.mass())
        v = (both.surplus[:, : len(x)].T * (2.0 / x.shape[1])).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, both.value.mean().to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same surplus at any points (K, D)."""
        rows = at.detach().T.contiguous()
        here, there = (Staircase.of(c.x.detach().T, c.weight) for c in (Cloud(x, weight), target))
        return (2.0 / x.shape[1] * (standing(here, rows) - standing(there, rows)).T).to(at.dtype)


class Merged(NamedTuple):
    """Two clouds in one order on each of R lines."""

    value: Tensor  # (R,) integral of (F - G)^2, float64
    surplus: Tensor  # (R, N + M) F - G at each point, particles first, halfway up its step
    mass: Tensor  # (N + M,) masses of the particles, and minus those of the target


@torch.no_grad()
def merged(x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> Merged:
    """From rows x (R, N) and y (R, M) with masses a (N,) and b (M,).

    >>> merged(torch.zeros(1, 1), torch.ones(1), torch.tensor([[2.0]]), torch.ones(1)).value
    tensor([2.], dtype=torch.float64)
    """
    rows, mass = torch.cat((x, y), dim=1), torch.cat((a, -b)).to(accurate(x))
    order = ranked(rows)
    gaps = rows.gather(1, order).to(mass.dtype).diff(dim=1)
    after = mass[order].cumsum(1)
    value = (after[:, :-1].square() * gaps).sum(1)
    before = torch.cat((torch.zeros_like(after[:, :1]), after[:, :-1]), dim=1)
    if (gaps <= 0).any():
        first, last = _groups(gaps > 0)
        before, after = before.gather(1, first), after.gather(1, last)
    surplus = torch.empty_like(after).scatter_(1, order, 0.5 * (before + after))
    return Merged(value, surplus, mass)


def _groups(rises: Tensor) -> tuple[Tensor, Tensor]:
    """(R, K) first and last place of the group of equal numbers that each place is in, given where they rise."""
    places = torch.arange(rises.shape[1] + 1, device=rises.device).expand(len(rises), -1)
    edge = torch.ones_like(rises[:, :1])
    first = torch.where(torch.cat((edge, rises), dim=1), places, 0).cummax(1).values
    last = torch.where(torch.cat((rises, edge), dim=1), places, rises.shape[1]).flip(1).cummin(1).values.flip(1)
    return first, last
