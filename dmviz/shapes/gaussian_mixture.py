import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.params import Help, Range, entry
from dmviz.shapes._law import gauss, mixture


@entry
class GaussianMixture:
    r"""Several round clouds around a common middle, which may hold different shares of the mass.

    $$ p(x) = \sum_j w_j \, \mathcal N(x;\, m_j,\, s^2 I) $$

    The middles $m_j$ lie at distance `radius` from the origin: on a line in 1-D, evenly on a circle in 2-D; above that
    at the corners of a regular simplex if there are at most D + 1 of them, and in fixed directions far from each other
    if there are more. Labels are the components.

    >>> GaussianMixture(components=2, radius=1.0).middles().round().tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """

    title: ClassVar[str] = "Gaussian mixture"
    source: ClassVar[tuple[str, ...]] = ()

    components: Annotated[int, Range(1, 64, help="number of clouds")] = 3
    weights: Annotated[str, Help("share of each cloud, such as 1,2,5; empty: equal shares", most=1000)] = ""
    radius: Annotated[float, Range(0, 10, unit="length", help="distance of each cloud from the origin")] = 2.0
    spread: Annotated[float, Range(0.01, 10, unit="length", log=True, help="standard deviation of each cloud")] = 0.35
    dim: Annotated[int, Range(1, 512, help="number of dimensions")] = 2

    def __post_init__(self) -> None:
        self.shares()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(f"cloud {i + 1}" for i in range(self.components))

    def sample(self, n: int, rng: Generator) -> Cloud:
        return mixture(self.middles(), self.shares(), self.spread, n, rng)

    def shares(self) -> Tensor:
        """(k,) weights that sum to 1.

        Raises ValueError where the text is not one number, at least 0, a component.
        """
        if not self.weights.strip():
            return torch.full((self.components,), 1 / self.components, dtype=torch.float64)
        must = (
            f"GaussianMixture: weights must be {self.components} numbers of at least 0, not all 0, such as 1,2,5; got"
        )
        try:
            shares = [float(part) for part in self.weights.split(",")]
        except ValueError:
            raise ValueError(f"{must} {self.weights!r}") from None
        total = sum(shares)
        if len(shares) != self.components or min(shares) < 0 or not 0 < total < math.inf:
            raise ValueError(f"{must} {self.weights!r}")
        return torch.tensor(shares, dtype=torch.float64) / total

    def middles(self) -> Tensor:
        """(k, D) centres of the clouds."""
        k, d = self.components, self.dim
        if k == 1:
            way = torch.eye(1, d, dtype=torch.float64)
        elif d == 1:
            way = torch.linspace(-1, 1, k, dtype=torch.float64)[:, None]
        elif d == 2:
            angle = 2 * math.pi * torch.arange(k, dtype=torch.float64) / k
            way = torch.stack([angle.cos(), angle.sin()], 1)
        elif k <= d + 1:
            way = _simplex(k, d)
        else:
            way = _apart(k, d)
        return self.radius * way


def _apart(k: int, d: int) -> Tensor:
    """(k, d) directions, each the candidate farthest from those before it."""
    some = gauss((64 * k, d), seeded(0, k, d))
    some = some / some.norm(dim=1, keepdim=True)
    at = [0]
    gap = (some - some[0]).norm(dim=1)
    while len(at) < k:
        at.append(int(gap.argmax()))
        gap = torch.minimum(gap, (some - some[at[-1]]).norm(dim=1))
    found: Tensor = some[at]
    return found


def _simplex(k: int, d: int) -> Tensor:
    """(k, d) corners of a regular simplex at distance 1 from the origin, k <= d + 1."""
    corners = torch.zeros(k, d, dtype=torch.float64)
    for i in range(k - 1):  # each corner closes the ones before it at the cosine -1 / (k - 1)
        corners[i, i] = math.sqrt(max(0.0, 1 - float(corners[i, :i].square().sum())))
        corners[i + 1 :, i] = (-1 / (k - 1) - corners[i, :i] @ corners[i + 1, :i]) / corners[i, i]
    return corners
