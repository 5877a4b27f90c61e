"""Minimum spanning tree: known lengths, every road to the tree against scipy's, and what the tree pushes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses import minimum_spanning_tree as module
from dmviz.losses.minimum_spanning_tree import MinimumSpanningTree, tree_of

KNOWN = json.loads((Path(__file__).parent / "known" / "regularizers.json").read_text())
RNG = seeded(0)


def tensor(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def length_of(x: np.ndarray, edges: np.ndarray) -> float:
    return float(np.linalg.norm(x[edges[:, 0]] - x[edges[:, 1]], axis=1).sum())


def joins_all(n: int, edges: np.ndarray) -> bool:
    group = list(range(n))

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i, j in edges:
        if root(i) == root(j):
            return False
        group[root(i)] = root(j)
    return len(edges) == n - 1


@pytest.mark.parametrize("case", ["mst_tetrahedron", "mst_six_points"])
def test_known_lengths(case: str) -> None:
    z = np.array(KNOWN[case]["inputs"]["z"])
    assert length_of(z, tree_of(z)) == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


def test_known_value_of_the_loss() -> None:
    case = KNOWN["treg_LE_tetrahedron"]
    z = tensor(case["inputs"]["z"])
    got = MinimumSpanningTree(sphere=1.0)(z, Cloud(z), RNG).item()  # on the unit sphere the second term is 0
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("d", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [2, 40, 400])
def test_every_road_leads_to_the_shortest_tree(n: int, d: int) -> None:
    x = np.random.default_rng(n + d).normal(size=(n, d))
    exact = minimum_spanning_tree(squareform(pdist(x))).sum()
    for found in (tree_of(x), module._prim(x)):
        assert joins_all(n, found)
        assert length_of(x, found) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("d", [2, 3])
def test_repeated_points_points_on_a_line_and_lattices_have_a_tree_too(d: int) -> None:
    r = np.random.default_rng(3)
    x = r.normal(size=(300, d))
    x[200:260] = x[:60]
    line = np.outer(r.normal(size=300), np.ones(d))
    side = np.stack(np.meshgrid(*[np.arange(7.0)] * d), -1).reshape(-1, d)
    lattice = np.concatenate([side, side + 20, side - 20, side[:49] * 0])
    for cloud in (x, line, lattice):
        found = tree_of(cloud)
        assert joins_all(len(cloud), found)
        assert length_of(cloud, found) == pytest.approx(length_of(cloud, module._prim(cloud)), rel=1e-12)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_velocity_is_minus_gradient_over_weight(d: int) -> None:
    x = torch.randn(200, d, generator=seeded(d), dtype=torch.float64)
    x[7], x[8] = x[6], 0.0
    a = torch.rand(200, generator=seeded(3), dtype=torch.float64)
    a[9] = 0.0
    loss = MinimumSpanningTree(spread=2.0, sphere=0.5, radius=1.5)
    closed, auto = (f(loss, x, Cloud(x), RNG, a / a.sum()) for f in (velocity_of, autograd_velocity))
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-12)
    assert torch.allclose(closed.v, auto.v, atol=1e-10)


def test_the_gradient_is_that_of_finite_differences() -> None:
    x = torch.randn(8, 3, generator=seeded(9), dtype=torch.float64)
    loss, step = MinimumSpanningTree(spread=1.5, sphere=0.7, radius=2.0), 1e-6
    v = velocity_of(loss, x, Cloud(x), RNG).v
    for i, j in ((0, 0), (3, 2), (7, 1)):
        bump = torch.zeros_like(x)
        bump[i, j] = step
        slope = (loss(x + bump, Cloud(x), RNG) - loss(x - bump, Cloud(x), RNG)) / (2 * step)
        assert v[i, j].item() == pytest.approx(-8 * slope.item(), abs=1e-7)


def test_an_edge_pushes_its_ends_apart_with_speed_one() -> None:
    x = tensor([[0.0, 0.0], [3.0, 4.0]])
    got = velocity_of(MinimumSpanningTree(sphere=0.0), x, Cloud(x), RNG)
    assert torch.allclose(got.v, tensor([[-0.6, -0.8], [0.6, 0.8]]))
    assert got.value.item() == pytest.approx(-2.5)


def test_particles_without_weight_are_not_joined() -> None:
    x = tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    got = velocity_of(MinimumSpanningTree(sphere=0.0), x, Cloud(x), RNG, tensor([0.25, 0.0, 0.75]))
    assert got.value.item() == pytest.approx(-1.0)  # length 2, over 2 particles
    assert torch.allclose(got.v, tensor([[-2.0, 0.0], [0.0, 0.0], [2 / 3, 0.0]]))


def test_particles_on_a_sphere_become_a_tetrahedron() -> None:
    x = torch.nn.functional.normalize(torch.randn(4, 3, generator=seeded(5), dtype=torch.float64), dim=1)
    field = aim(MinimumSpanningTree(), Cloud(x), hold="sphere")
    for k in range(2000):
        x = field.hold(x + 0.5 / (k + 10) * field(x, RNG).v)
    assert length_of(x.numpy(), tree_of(x.numpy())) == pytest.approx(KNOWN["mst_tetrahedron"]["value"], abs=0.02)


def test_one_point_has_no_tree() -> None:
    one = tensor([[3.0, 4.0]])
    got = velocity_of(MinimumSpanningTree(), one, Cloud(one), RNG)
    assert got.value.item() == pytest.approx(16.0)
    assert MinimumSpanningTree().edges(one).shape == (0, 2)


def test_too_many_points_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^MinimumSpanningTree: above three dimensions at most 3,000 particles, got"):
        tree_of(np.zeros((3001, 4)))
