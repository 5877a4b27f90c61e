"""SFRIK: directions of particles spread evenly over the sphere, by moments up to the third."""

from typing import Annotated

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._polynomial import Polynomial, heard, mean
from dmviz.params import Range, entry
from dmviz.protocols import Velocity

_CUBE = Polynomial(3, 1.0, 0.0)


@entry
class Sfrik:
    r"""Spread the directions of particles over the sphere until their first three moments are those of an even spread.

    $$ F = \sum_{ij} a_i a_j \sum_{l=1}^{3} b_l\,P_l(u_i\cdot u_j), \qquad u = \frac{x}{|x|} $$

    with the Legendre polynomials of dimension D, scaled so that P_l(1) = 1: with c = 1 / (D - 1),

    $$ P_1 = t, \quad P_2 = (1 + c)\,t^2 - c, \quad P_3 = (1 + 3c)\,t^3 - 3c\,t. $$

    In the plane P_l is the cosine of l times the angle between two particles. It is the squared MMD between the
    directions and the even law on the sphere for a kernel that knows no direction by name; pairs of a particle with
    itself count. It reads no target. Unit: none; 0 for any set with the moments of the sphere, such as plus and minus
    every axis, up to the sum of the weights (1, 40 and 40, as in the authors' code) for one direction alone; about that
    sum over n for n particles by chance.

    Degree 1 pulls the mean direction to the centre, degree 2 evens out axes, degree 3 tells a direction from its
    opposite. Lengths do not matter, and particles move at right angles to their direction, so that steps make them
    slowly longer; hold them on the sphere. It fails to see anything beyond third moments: in the plane, four directions
    at right angles are already even. A particle at the origin has no direction, and does not count.

    Zheng et al. 2023 (where its views are also pulled together, which a cloud of particles does not have).

    ```python
    >>> from dmviz.cloud import seeded
    >>> opposite = torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, -1.0]])
    >>> Sfrik()(opposite, Cloud(opposite), seeded(0)).item()  # odd degrees cancel, the second has 40
    40.0

    ```
    """

    title = "Rotation-invariant kernel (SFRIK)"
    family = "regularizers"
    source = ("zheng2023self",)
    needs = "nothing"
    cost = "N D^3 time in few dimensions, else N^2 D; N memory"
    laws = frozenset({"nonnegative", "rotation_free", "deterministic"})
    degree = 0.0
    root = 2.0
    dims = (2, None)

    first: Annotated[float, Range(0.0, 100.0, help="Weight of degree 1: no side of the sphere is favoured")] = 1.0
    second: Annotated[float, Range(0.0, 100.0, help="Weight of degree 2: no axis is favoured")] = 40.0
    third: Annotated[float, Range(0.0, 100.0, help="Weight of degree 3: opposite directions balance")] = 40.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        return (self.energies(x, weight) @ self._weights(x)).to(x.dtype)

    def energies(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """(3,) the mean of P_1, P_2, P_3 over all pairs, float64: what each degree still misses."""
        u, _, a = _directions(x, mass_of(x, weight))
        c = 1.0 / (x.shape[1] - 1)
        one, two = (a @ u).square().sum(), (u.T @ (a[:, None] * u)).square().sum()
        cube = mean(u, u, a, a, _CUBE) if u.requires_grad else a @ heard(u, u, a, _CUBE).s
        return torch.stack((one, (1 + c) * two - c * a.sum().square(), (1 + 3 * c) * cube - 3 * c * one))

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """Across each particle's direction, by moments."""
        v = self.probe(x, x, target, rng, weight)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, (self.energies(x, weight) @ self._weights(x)).to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The same at any points (K, D) among particles x."""
        u, _, a = _directions(x, mass_of(x, weight))
        here, length, _ = _directions(at, at.new_ones(len(at)))
        first, second, third = self._weights(x)
        c, centre = 1.0 / (x.shape[1] - 1), a @ u
        slope = (first - 3 * c * third) * centre + 2 * (1 + c) * second * (here @ (u.T @ (a[:, None] * u)))
        slope = slope + (1 + 3 * c) * third * heard(here, u, a, _CUBE).grad
        across = slope - (slope * here).sum(1, keepdim=True) * here
        return torch.where(length > 0, -2.0 * across / length.clamp_min(1e-300), 0.0).to(at.dtype)

    def _weights(self, x: Tensor) -> Tensor:
        return torch.tensor([self.first, self.second, self.third], dtype=torch.float64, device=x.device)


def _directions(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors (N, D), lengths (N, 1), and weights (N,), 0 where there is no direction; all float64."""
    x = x.double()
    squared = x.square().sum(1, keepdim=True)
    away = squared > 0
    length = torch.where(away, squared, 1.0).sqrt()
    return torch.where(away, x / length, 0.0), torch.where(away, length, 0.0), torch.where(away[:, 0], a.double(), 0.0)
