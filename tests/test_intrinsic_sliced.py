"""Intrinsic sliced Wasserstein: a path with known waves, two points on a circle, graphs of neighbours."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

from dmviz.cloud import Cloud, seeded
from dmviz.field import drives
from dmviz.losses import _graph
from dmviz.losses._graph import eigenpairs, neighbour_laplacian
from dmviz.losses.intrinsic_sliced import IntrinsicSliced, merged, on_graph, on_waves

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def path(count):
    """Laplacian of count nodes in a row."""
    links = np.diag(np.ones(count - 1), 1)
    links = links + links.T
    return np.diag(links.sum(0)) - links


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x, y = torch.randn(n, d, generator=rng, dtype=torch.float64), torch.randn(m, d, generator=rng, dtype=torch.float64)
    return x, Cloud(y + 1)


@pytest.mark.parametrize(("name", "spectrum"), [("isw_path6_biharmonic", "biharmonic"), ("isw_path6_heat_t1", "heat")])
def test_a_path_of_six_nodes_has_its_value(name, spectrum):
    case = KNOWN[name]
    mu, nu = tensor(case["inputs"]["mu"]), tensor(case["inputs"]["nu"])
    assert on_graph(path(6), mu, nu, spectrum).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_six_points_in_a_row_are_that_path():
    case = KNOWN["isw_path6_biharmonic"]
    row = torch.arange(6, dtype=torch.float64)[:, None] * torch.tensor([[1.0, 2.0]]) + 5
    # Unequal steps, so that every inner point has one nearest neighbour; the links that miss are then added.
    row = row + torch.tensor([0.0, 0.1, 0.4, 0.3, 0.9, 1.0], dtype=torch.float64)[:, None]
    assert np.array_equal(neighbour_laplacian(row.numpy(), 1).toarray(), path(6))
    mu, nu = tensor(case["inputs"]["mu"]), tensor(case["inputs"]["nu"])
    value = IntrinsicSliced(neighbours=1)(row, Cloud(row, nu), seeded(0), mu)
    assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_two_points_on_a_circle():
    case = KNOWN["isw_circle_diracs"]
    delta, order = case["inputs"]["delta"], np.arange(1, 3001)
    at = np.array([0.0, delta])
    waves = np.concatenate([f(order[:, None] * at) / math.sqrt(math.pi) for f in (np.cos, np.sin)])
    value = on_waves(np.tile(order.astype(float) ** 2, 2), waves, tensor([1.0, 0]), tensor([0.0, 1]), "biharmonic")
    # Waves beyond 3,000 add at most 4 / pi * 1 / (3 * 3000^3) = 2e-11.
    assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_waves_of_a_path_are_cosines():
    values, waves = eigenpairs(path(9), 5)
    k = np.arange(1, 6)
    assert np.allclose(values, 2 - 2 * np.cos(np.pi * k / 9), atol=1e-12)
    want = math.sqrt(2 / 9) * np.cos(np.pi * k[:, None] * (np.arange(9) + 0.5) / 9)
    assert np.allclose(np.abs((waves * want).sum(1)), 1, atol=1e-12)


def test_a_sparse_search_finds_what_a_dense_one_does(monkeypatch):
    points = np.random.default_rng(0).normal(size=(300, 3))
    matrix = neighbour_laplacian(points, 6)
    want, waves = eigenpairs(matrix, 12)
    monkeypatch.setattr(_graph, "_DENSE", 10)
    found, others = eigenpairs(matrix, 12)
    again, same = eigenpairs(matrix, 12)
    assert np.allclose(found, want, atol=1e-9)
    assert np.allclose(np.abs((waves * others).sum(1)), 1, atol=1e-6)
    assert np.array_equal(found, again)
    assert np.array_equal(others, same)


def test_a_search_that_does_not_end_is_done_by_solving(monkeypatch):
    monkeypatch.setattr(_graph, "_DENSE", 10)
    monkeypatch.setattr(_graph, "_RESTARTS", 1)
    values, _ = eigenpairs(path(400), 6)
    assert np.allclose(values, 2 - 2 * np.cos(np.pi * np.arange(1, 7) / 400), atol=1e-10)


def test_a_graph_of_far_groups_is_connected_by_its_shortest_links():
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(size=(12, 2)) + centre for centre in ([0, 0], [50, 0], [0, 200])])
    matrix = neighbour_laplacian(points, 3)
    assert connected_components(matrix, directed=False)[0] == 1
    links = -matrix.toarray() + np.diag(matrix.diagonal())
    assert np.array_equal(links, links.T)
    assert set(np.unique(links)) == {0.0, 1.0}
    assert links[:12, 12:24].sum() == 1
    far = np.linalg.norm(points[:12, None] - points[None, 12:24], axis=-1)
    assert links[:12, 12:24][np.unravel_index(far.argmin(), far.shape)] == 1
    assert np.allclose(matrix.sum(1), 0)


def test_coinciding_points_are_one_node_with_the_mass_of_all():
    x, y = tensor([[0.0, 1], [2.0, 2], [0.0, 1]]), tensor([[2.0, 2], [3.0, 3]])
    nodes, mu, nu = merged(Cloud(x, tensor([0.2, 0.5, 0.3])), Cloud(y))
    assert nodes.tolist() == [[0, 1], [2, 2], [3, 3]]
    assert torch.allclose(mu, tensor([0.5, 0.5, 0]))
    assert torch.allclose(nu, tensor([0, 0.5, 0.5]))


def test_a_cloud_in_another_order_is_at_zero_and_one_point_too():
    x = torch.randn(80, 3, generator=seeded(0))
    for spectrum in ("heat", "biharmonic"):
        loss = IntrinsicSliced(spectrum=spectrum)
        assert abs(loss(x, Cloud(x[torch.randperm(80, generator=seeded(1))]), seeded(2)).item()) < 1e-9
    assert IntrinsicSliced()(torch.zeros(3, 2), Cloud(torch.zeros(1, 2)), seeded(0)).item() == 0


def test_lengths_do_not_matter_and_neither_does_the_place():
    x, target = clouds(30, 40, 2)
    loss = IntrinsicSliced()
    once = loss(x, target, seeded(0)).item()
    assert loss(8 * x, Cloud(8 * target.x), seeded(0)).item() == once
    assert loss(x + 64, Cloud(target.x + 64), seeded(0)).item() == pytest.approx(once, rel=1e-9)


def test_it_goes_along_the_data_where_straight_lines_jump_the_gap():
    # Nearly a whole circle: its two ends are close by, but half of all the way apart along the circle.
    angle = torch.linspace(0, 2 * math.pi - 0.5, 60, dtype=torch.float64)
    ring = torch.stack((angle.cos(), angle.sin()), 1)
    loss = IntrinsicSliced(neighbours=2)

    def far(i, j):
        # All points are in both clouds, so that both pairs are seen on the same graph.
        a, b = torch.zeros(60, dtype=torch.float64), torch.zeros(60, dtype=torch.float64)
        a[i] = b[j] = 1
        return loss(ring, Cloud(ring, b), seeded(0), a).item()

    assert far(0, 59) > 1.5 * far(0, 30) > 3 * far(0, 10)


def test_it_only_judges_and_stays_as_it_is_under_a_tiny_move():
    x, target = clouds(20, 20, 2)
    assert not drives(IntrinsicSliced)
    loss = IntrinsicSliced()
    assert not loss(x.clone().requires_grad_(True), target, seeded(0)).requires_grad
    assert loss(x + 1e-9 * torch.randn(20, 2, generator=seeded(1)), target, seeded(0)) == loss(x, target, seeded(0))


def test_too_many_points_are_refused_in_one_sentence():
    x = torch.zeros(3000, 2)
    with pytest.raises(ValueError, match=r"at most 5,000 points, got 6,000\. Take fewer particles"):
        IntrinsicSliced()(x, Cloud(x), seeded(0))


def test_float32_stays_float32():
    x, target = clouds(20, 20, 2)
    value = IntrinsicSliced()(x.float(), Cloud(target.x.float()), seeded(0))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(IntrinsicSliced()(x, target, seeded(0)).item(), rel=1e-5)
