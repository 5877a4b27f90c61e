"""The released p = 2 variant of Db-TSW: its values tree by tree, its slope, and how it differs from transport."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._trees import Trees, mean_of, shares
from dmviz.losses.db_tsw import DbTsw
from dmviz.losses.db_tsw_released import DbTswReleased

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_values.json").read_text())
SAMPLERS = ("gaussian_raw", "gaussian_orthogonal")


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x, y = (torch.randn(k, d, generator=rng, dtype=torch.float64) for k in (n, m))
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y + 1, b / b.sum())


def on_one_tree(loss, target, root, theta, monkeypatch):
    tree = Trees(tensor([root]) - mean_of(target), tensor([theta]))
    monkeypatch.setattr(type(loss), "_drawn", lambda *_: tree)
    return loss


def edge_sum(x, a, target, root, theta, delta, power):
    """Ray by ray, edge by edge, as the definition says."""
    trees = Trees(tensor([root]), tensor([theta]))
    total = 0.0
    share_x, share_y = shares(x, trees, delta), shares(target.x, trees, delta)
    for l, line in enumerate(trees.theta[0]):
        at = torch.cat(((x - trees.root) @ line, (target.x - trees.root) @ line))
        mass = torch.cat((a * share_x[l], -target.weight * share_y[l]))
        for side in (1, -1):
            nodes = sorted({0.0, *(float(t) for t in side * at if t > 0)})
            for inner, outer in pairwise(nodes):
                total += (outer - inner) * abs(float(mass[side * at >= outer].sum())) ** power
    return total


@pytest.mark.parametrize("tree", range(4))
def test_one_tree_has_its_value(tree, monkeypatch):
    case = KNOWN[f"dbtsw_tree_p2_{tree}"]
    i = case["inputs"]
    x, a, target = tensor(i["X"]), tensor(i["a"]), Cloud(tensor(i["Y"]), tensor(i["b"]))
    loss = on_one_tree(DbTswReleased(delta=i["delta"]), target, i["root"], i["theta"], monkeypatch)
    for value in (loss(x, target, seeded(0), a), loss.velocity(x, target, seeded(0), a).value):
        assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert edge_sum(x, a, target, i["root"], i["theta"], i["delta"], 2) == pytest.approx(case["value"], abs=1e-12)


@pytest.mark.parametrize(
    "name", [k for k in KNOWN if k.startswith("dbtsw_tree") and "_p2_" not in k and "grad" not in k]
)
def test_the_paper_s_p_of_one_has_its_value_through_the_entry(name, monkeypatch):
    case = KNOWN[name]
    i = case["inputs"]
    x, a, target = tensor(i["X"]), tensor(i["a"]), Cloud(tensor(i["Y"]), tensor(i["b"]))
    loss = on_one_tree(DbTsw(delta=i["delta"]), target, i["root"], i["theta"], monkeypatch)
    assert loss(x, target, seeded(0), a).item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert edge_sum(x, a, target, i["root"], i["theta"], i["delta"], 1) == pytest.approx(case["value"], abs=1e-9)


def test_two_points_by_hand(monkeypatch):
    i = KNOWN["dbtsw_dirac"]["inputs"]
    x, target = tensor([i["x"]]), Cloud(tensor([i["y"]]))
    loss = on_one_tree(DbTswReleased(delta=i["delta"]), target, [0.0, 0.0], i["theta"], monkeypatch)
    ax = math.exp(-4) / (math.exp(-4) + math.exp(-2))  # x = (1, 2): 2 from the first axis, 1 from the second
    ay = math.exp(-1) / (math.exp(-1) + math.exp(-2))  # y = (-1, 0.5)
    want = ax**2 + ay**2 + 0.5 * ((1 - ax) - (1 - ay)) ** 2 + 1.5 * (1 - ax) ** 2
    assert loss(x, target, seeded(0)).item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize(("n", "m", "d"), [(7, 7, 1), (9, 9, 2), (12, 8, 4), (10, 20, 9)])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
def test_closed_form_equals_autograd_with_and_without_memo(n, m, d, sampler, draw):
    loss = DbTswReleased(trees=3, lines=3, sampler=sampler, draw=draw)
    x, a, target = clouds(n, m, d, n)
    for source, cloud in ((a, target), (None, Cloud(target.x))):
        want = autograd_velocity(loss, x, cloud, seeded(3), source)
        for aimed in (cloud, loss.prepare(cloud)):
            got = velocity_of(loss, x, aimed, seeded(3), source)
            assert torch.allclose(got.v, want.v, rtol=0, atol=1e-9)
            assert got.value.item() == pytest.approx(want.value.item(), abs=1e-12)


def test_velocity_is_minus_the_difference_quotient():
    x, a, target = clouds(12, 15, 3, 2)
    loss = DbTswReleased(trees=4)
    v = loss.velocity(x, target, seeded(1), a).v
    for i, k in ((1, 0), (7, 2)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-6
        slope = (loss(x + h, target, seeded(1), a) - loss(x - h, target, seeded(1), a)) / 2e-6
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-6)


def test_it_is_what_db_tsw_gives_with_squared_edges():
    x, a, target = clouds(12, 15, 3, 2)
    for sampler in SAMPLERS:
        here = DbTswReleased(trees=8, sampler=sampler)(x, target, seeded(1), a)
        assert here == DbTsw(trees=8, sampler=sampler, edge_power=2)(x, target, seeded(1), a)


def test_squared_masses_are_no_more_than_masses():
    # Every edge carries at most mass 1, so that squaring makes it less: the two are different distances.
    x, a, target = clouds(12, 15, 3, 2)
    squared, plain = (loss(x, target, seeded(1), a).item() for loss in (DbTswReleased(), DbTsw()))
    assert squared < 0.9 * plain


def test_on_a_line_it_is_the_cramer_distance():
    x, y = tensor([[0.0], [1.0], [5.0]]), tensor([[2.0], [3.0]])
    # |F - G| on [0, 1), [1, 2), [2, 3), [3, 5): 1/3, 2/3, 1/6, 1/3
    want = 1 / 9 + 4 / 9 + 1 / 36 + 2 / 9
    assert DbTswReleased(lines=1)(x, Cloud(y), seeded(0)).item() == pytest.approx(want, abs=1e-12)
    assert DbTswReleased(lines=4)(x, Cloud(y), seeded(0)).item() == pytest.approx(want / 4, abs=1e-12)  # masses split


def test_the_root_obeys_the_triangle_on_trees_held_fixed(monkeypatch):
    d = 2
    trees = DbTswReleased()._trees(Cloud(torch.zeros(1, d)), seeded(0))
    clouds_ = [clouds(6 + k, 5, d, k) for k in range(3)]
    p, q, r = (Cloud(x, a) for x, a, _ in clouds_)

    def far(one, two):
        held = trees._replace(root=trees.root - mean_of(two))
        monkeypatch.setattr(DbTswReleased, "_drawn", lambda *_: held)
        return DbTswReleased()(one.x, two, seeded(0), one.weight).item() ** 0.5

    assert far(p, q) == pytest.approx(far(q, p), rel=1e-12)
    assert far(p, r) <= far(p, q) + far(q, r) + 1e-12


@pytest.mark.parametrize("loss", [DbTswReleased(), DbTsw()])
def test_both_samplers_draw_unit_lines_and_the_orthogonal_one_right_angles(loss):
    for sampler in SAMPLERS:
        made = type(loss)(trees=50, lines=3, sampler=sampler)
        theta = made._trees(Cloud(torch.zeros(1, 5)), seeded(0)).theta
        assert torch.allclose(theta.norm(dim=2), torch.ones(50, 3, dtype=torch.float64))
        products = theta @ theta.transpose(1, 2) - torch.eye(3, dtype=torch.float64)
        assert (products.abs().max() < 1e-12) == (sampler == "gaussian_orthogonal")
