"""Intrinsic sliced Wasserstein distance: transport of what the waves of a graph read at its nodes."""

from typing import Annotated, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud
from dmviz.losses._graph import Array, eigenpairs, neighbour_laplacian
from dmviz.losses._lines import power_on_lines
from dmviz.params import Help, Range, entry

Spectrum = Literal["heat", "biharmonic"]
_MOST = 5_000  # points of both clouds


@entry
class IntrinsicSliced:
    r"""Link each point to its neighbours, and compare the clouds by how the slowest waves on that web see them.

    $$ F = \sum_{l=1}^{L} \alpha(\lambda_l)\, W_2^2(\varphi_l \# \mu,\ \varphi_l \# \nu),\qquad
       \alpha(\lambda) = e^{-t\lambda}\ \text{(heat)}\quad\text{or}\quad \lambda^{-2}\ \text{(biharmonic)} $$

    $\varphi_l$ are eigenvectors, of length 1, of the Laplacian D - A of a graph, and $\lambda_l$ its eigenvalues but
    for the first, which is 0 and belongs to the constant. Distances are so taken along the data and not through empty
    space. The paper has graphs and surfaces; our choice for clouds is the graph of nearest neighbours among the points
    of both together, each link of weight 1, coinciding points one node, parts that are not linked joined by their
    shortest links. No unit: doubling all lengths changes nothing. Any weights, N and M, up to 5,000 points in all.

    It only judges. Moving a point changes nothing until its neighbours change, and then the value jumps, so no flow
    can follow it. One graph is built for each pair of clouds, so values of two pairs have no triangle inequality, and
    L waves do not tell all laws apart.

    Fails: where an eigenvalue is repeated, the value depends on the basis that the solver picks (always the same one).
    With the biharmonic weights nearly separate parts make it explode, for then $\lambda$ is near 0; with heat a large t
    leaves only the slowest wave.

    ```python
    >>> from dmviz.cloud import seeded
    >>> here, there = torch.tensor([[0.0]]), torch.tensor([[3.0]])
    >>> # Two linked nodes: the eigenvalue 2, with the eigenvector (1, -1) / sqrt 2; so 2 / 2^2.
    >>> round(IntrinsicSliced()(here, Cloud(there), seeded(0)).item(), 4)
    0.5

    ```
    """

    title = "Intrinsic sliced Wasserstein"
    family = "slices"
    source = ("rustamov2023intrinsic",)
    needs = "samples"
    cost = "(N + M) k log time for the graph and its eigenpairs, (N + M) (k + L) memory"
    laws = frozenset({"zero_at_target", "nonnegative", "symmetric", "shift_free", "deterministic"})
    degree = 0.0
    root = 2.0
    drives = False

    neighbours: Annotated[
        int, Range(1, 100, log=True, help="links of a point: few follow thin shapes, many cut across gaps")
    ] = 8
    waves: Annotated[int, Range(1, 200, log=True, help="few: only the coarse shape; many: also fine detail")] = 20
    spectrum: Annotated[
        Spectrum, Help("how fast the weight of faster waves falls: exponentially, or as one over a square")
    ] = "biharmonic"
    time: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            log=True,
            help="how long heat spreads: short counts all waves alike, long only the slowest",
            when={"spectrum": ("heat",)},
        ),
    ] = 1.0

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if len(x) + len(target) > _MOST:
            raise ValueError(
                f"IntrinsicSliced: both clouds together may have at most {_MOST:,} points, got "
                f"{len(x) + len(target):,}. Take fewer particles."
            )
        nodes, mu, nu = merged(Cloud(x.detach(), weight), target)
        if len(nodes) == 1:
            return x.new_zeros(())
        pairs = eigenpairs(neighbour_laplacian(nodes, self.neighbours), self.waves)
        return on_waves(*pairs, mu, nu, self.spectrum, self.time).to(x)


def merged(here: Cloud, there: Cloud) -> tuple[Array, Tensor, Tensor]:
    """(V, D) the different points of both clouds in a fixed order, and (V,) the masses of each cloud on them."""
    points = torch.cat((here.x, there.x.to(here.x))).cpu().double().numpy()
    nodes, place = np.unique(points, axis=0, return_inverse=True)
    masses = [cloud.mass().detach().cpu().double() for cloud in (here, there)]
    index = torch.from_numpy(place.reshape(-1))
    places = index[: len(here)], index[len(here) :]
    mu, nu = (torch.bincount(p, m, len(nodes)) for p, m in zip(places, masses, strict=True))
    return nodes, mu, nu


def on_graph(matrix: Array, mu: Tensor, nu: Tensor, spectrum: Spectrum, time: float = 1.0, waves: int = 20) -> Tensor:
    """() the distance of two laws (V,) on the nodes of a connected graph, given its Laplacian (V, V)."""
    return on_waves(*eigenpairs(matrix, waves), mu, nu, spectrum, time)


def on_waves(values: Array, waves: Array, mu: Tensor, nu: Tensor, spectrum: Spectrum, time: float = 1.0) -> Tensor:
    """() the same, given eigenvalues (L,) and eigenfunctions (L, V) at the nodes."""
    size = torch.from_numpy(values)
    alpha = (-time * size).exp() if spectrum == "heat" else size.pow(-2)
    read = torch.from_numpy(waves)
    return (alpha * power_on_lines(read, mu, read, nu, 2)).sum()
