"""Categorical projection: both clouds put on a row of atoms, and the two laws on atoms compared."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._bins import Bins, floored, histogram, kl, normalised, pull, through_floor
from dmviz.losses._lines import accurate
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"zero_at_target", "nonnegative", "deterministic"})


@entry
class CategoricalProjection:
    r"""Put both clouds on a fixed row of atoms along each coordinate, and compare what the atoms hold.

    $$ p_{dk} = \sum_i a_i \max\Bigl(0,\ 1 - \frac{|x_{id} - z_k|}{\Delta}\Bigr), \qquad
       F = \frac{\Delta}{D} \sum_d \sum_{k < K} (P_{dk} - Q_{dk})^2 $$

    K atoms z lie evenly, Delta apart, on [-reach, reach]; a point between two atoms is split so that its mean stays,
    which is the closest law on the atoms in the Cramer distance; P and Q sum the shares of particles and target up to
    an atom. "cramer" is this formula, the Cramer distance between the two projections (unit: length; its root is a
    distance). "cross_entropy" is what the C51 agent descends, $-\sum_k q_{dk} \log p_{dk}$, less the target's own
    entropy so that 0 means equal (nats, same gradient): with a floor of 1e-6 in every atom, since particles, unlike
    the agent's softmax, can leave an atom empty. It has no idea of how far apart atoms are.

    Fails: a point beyond the outer atoms counts as if it stood on them and feels nothing; each coordinate is seen
    alone; two clouds that differ only between two atoms, with one mean there, are equal.

    Bellemare et al. 2017; the projection, Rowland et al. 2018. The published agent has 51 atoms on [-10, 10].

    ```python
    >>> from dmviz.cloud import seeded
    >>> loss = CategoricalProjection(atoms=3, reach=2.0)  # atoms at -2, 0 and 2
    >>> here, there = torch.tensor([[-1.0]]), torch.tensor([[1.0]])  # (1/2, 1/2, 0) and (0, 1/2, 1/2)
    >>> loss(here, Cloud(there), seeded(0)).item()  # 2 * ((1/2)^2 + (1/2)^2)
    1.0

    ```
    """

    title = "Categorical projection"
    family = "moments and order"
    source = ("bellemare2017distributional", "rowland2018categorical")
    needs = "samples"
    cost = "(N + M) D time and memory"

    atoms: Annotated[int, Range(2, 512, log=True, help="few see the rough shape, many see detail")] = 51
    reach: Annotated[
        float, Range(1e-3, 1e3, unit="length", log=True, help="outermost atom: points beyond it feel nothing")
    ] = 4.0
    compare: Annotated[
        Literal["cramer", "cross_entropy"],
        Help("cramer: how far mass must move counts; cross_entropy: atoms as mere names, as the C51 agent has it"),
    ] = "cramer"

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"symmetric", "triangle"} if self.compare == "cramer" else _LAWS

    @property
    def degree(self) -> float:
        return 1.0 if self.compare == "cramer" else 0.0

    @property
    def root(self) -> float:
        return 2.0 if self.compare == "cramer" else 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        p = projection(x, mass_of(x, weight), self._bins(x))
        return self._compared(p, self._there(target)).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Between two atoms all particles move at one speed: by what the two atoms' derivatives differ."""
        p, q = projection(x, mass_of(x, weight), self._bins(x)), self._there(target)
        v = -pull(x, self._slope(p, q), self._bins(x), "triangular").to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)
        return Velocity(v, self._compared(p, q).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same speeds at any points (K, D)."""
        slope = self._slope(projection(x, mass_of(x, weight), self._bins(x)), self._there(target))
        return -pull(at, slope, self._bins(x), "triangular").to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """The target on the atoms."""
        return replace(target, memo={"of": target.x, "loss": self, "there": self._there(target)})

    def _bins(self, like: Tensor) -> Bins:
        reach = like.new_full((like.shape[1],), self.reach, dtype=accurate(like))
        return Bins.around(torch.zeros_like(reach), reach, self.atoms)

    def _there(self, target: Cloud) -> Tensor:
        memo = target.memo
        if memo and memo.get("of") is target.x and memo.get("loss") == self:
            return memo["there"]  # type: ignore[no-any-return]
        return projection(target.x.detach(), target.mass(), self._bins(target.x))

    def _compared(self, p: Tensor, q: Tensor) -> Tensor:
        """Mean over coordinates of the distance between laws on the atoms, (D, K) each."""
        if self.compare == "cross_entropy":
            return kl(floored(q), floored(p)).mean()
        return cramer_on_atoms(p, q, 2.0 * self.reach / (self.atoms - 1)).mean()

    def _slope(self, p: Tensor, q: Tensor) -> Tensor:
        """(D, K) derivative of `_compared` in p."""
        if self.compare == "cross_entropy":
            return through_floor(-floored(q) / floored(p), p) / len(p)
        surplus = (p - q).cumsum(1)[:, :-1]
        rest = surplus.flip(1).cumsum(1).flip(1)  # mass added to an atom is in every running sum from there on
        width = 2.0 * self.reach / (self.atoms - 1)
        return 2.0 * width / len(p) * torch.cat((rest, torch.zeros_like(rest[:, :1])), dim=1)


def projection(x: Tensor, mass: Tensor, bins: Bins) -> Tensor:
    """(D, K) shares on the atoms, float64: each point split between its two neighbours, held within the outer ones."""
    return normalised(histogram(x, mass, bins, "triangular"))


def cramer_on_atoms(p: Tensor, q: Tensor, width: float) -> Tensor:
    """(D,) Cramer distance, the integral of (P - Q)^2, between laws (D, K) on atoms `width` apart.

    >>> cramer_on_atoms(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]]), 0.5)
    tensor([1.])
    """
    return width * (p - q).cumsum(1)[:, :-1].square().sum(1)
