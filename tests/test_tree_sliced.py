"""Db-TSW and TSW-SL: values of explicit trees, closed form against autograd, laws of trees held fixed."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import ot
import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._slicing import Slices, sliced_power, sliced_velocity
from dmviz.losses._trees import Tree, Trees, complement, concurrent_trees, mean_of, tree_value, tree_velocity
from dmviz.losses.db_tsw import DbTsw
from dmviz.losses.tsw_sl import TswSl

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_values.json").read_text())
SAMPLERS = ("gaussian_raw", "gaussian_orthogonal")


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def problem(inputs):
    """Points, weights and one tree; roots are counted from the target's mean."""
    if "x" in inputs:
        x, a, target = tensor([inputs["x"]]), None, Cloud(tensor([inputs["y"]]))
    else:
        x, a, target = tensor(inputs["X"]), tensor(inputs["a"]), Cloud(tensor(inputs["Y"]), tensor(inputs["b"]))
    return x, a, target, Trees(tensor([inputs["root"]]) - mean_of(target), tensor([inputs["theta"]]))


def clouds(n, m, d, seed=0, dtype=torch.float64):
    rng = seeded(seed)
    x, y = torch.randn(n, d, generator=rng, dtype=dtype), torch.randn(m, d, generator=rng, dtype=dtype) + 1
    a, b = torch.rand(n, generator=rng, dtype=dtype), torch.rand(m, generator=rng, dtype=dtype)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


def trees(count, lines, d, seed=0, orthogonal=False):
    return concurrent_trees(count, lines, d, 0.3, orthogonal, seeded(seed))


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith("dbtsw") and not k.endswith("grad")])
def test_one_tree_has_the_value_of_the_linear_programme(name):
    case = KNOWN[name]
    x, a, target, tree = problem(case["inputs"])
    rule = Tree(case["inputs"]["delta"], 2 if "_p2_" in name else 1)
    for value in (tree_value(x, target, tree, rule, a), tree_velocity(x, target, tree, rule, a)[1]):
        assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_gradient_goes_through_places_and_shares():
    case = KNOWN["dbtsw_tree_1_grad"]
    x, a, target, tree = problem(case["inputs"])
    v, value = tree_velocity(x, target, tree, Tree(2.0, 1), a)
    assert torch.allclose(-v * a[:, None], tensor(case["value"]), rtol=0, atol=1e-8)
    assert value.item() == pytest.approx(case["inputs"]["value"], abs=1e-10)


@pytest.mark.parametrize(("n", "m", "d"), [(7, 7, 1), (9, 9, 2), (5, 9, 3), (40, 13, 4), (20, 50, 5), (30, 20, 20)])
@pytest.mark.parametrize("edge_power", [1, 2])
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
def test_closed_form_equals_autograd_with_and_without_memo(n, m, d, edge_power, draw):
    for sampler in SAMPLERS:
        loss = DbTsw(trees=4, lines=3, sampler=sampler, edge_power=edge_power, draw=draw)
        x, a, target = clouds(n, m, d, seed=n)
        for source, cloud in ((a, target), (None, target), (a, Cloud(target.x)), (None, Cloud(target.x))):
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            for aimed in (cloud, loss.prepare(cloud)):
                got = velocity_of(loss, x, aimed, seeded(3), source)
                assert torch.allclose(got.v, want.v, rtol=0, atol=1e-9)
                assert got.value.item() == pytest.approx(want.value.item(), abs=1e-12)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_velocity_is_minus_the_difference_quotient(d):
    x, a, target = clouds(12, 17, d, seed=5)
    some, rule = trees(3, 4, d), Tree(1.5, 1)
    v, _ = tree_velocity(x, target, some, rule, a)
    for i, k in ((1, 0), (7, d - 1)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-7
        slope = (tree_value(x + h, target, some, rule, a) - tree_value(x - h, target, some, rule, a)) / 2e-7
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-5)


def test_even_shares_make_it_sliced_w1():
    for d in (1, 2, 5):
        x, a, target = clouds(20, 31, d)
        some = trees(3, 4, d)
        sliced = sliced_power(x, target, Slices.even(some.theta.reshape(-1, d)), a, 1).item()
        assert tree_value(x, target, some, Tree(0.0, 1), a).item() == pytest.approx(sliced, rel=1e-12)


def test_one_line_is_w1_whatever_the_root_and_delta():
    x, a, target = clouds(20, 31, 3)
    some = trees(2, 1, 3)
    want = sliced_power(x, target, Slices.even(some.theta.reshape(-1, 3)), a, 1).item()
    for delta, move in product((0.0, 2.0, 50.0), (0.0, 1.7)):
        moved = some._replace(root=some.root + move)
        assert tree_value(x, target, moved, Tree(delta, 1), a).item() == pytest.approx(want, rel=1e-12)


def test_scaling_clouds_and_roots_and_dividing_delta_scales_the_value():
    x, a, target = clouds(15, 22, 3)
    some = trees(3, 4, 3)
    once = tree_value(x, target, some, Tree(2.0, 1), a).item()
    for s in (1e-3, 7.0, 1e3):
        grown = tree_value(
            s * x, Cloud(s * target.x, target.weight), some._replace(root=s * some.root), Tree(2.0 / s, 1), a
        )
        assert grown.item() == pytest.approx(s * once, rel=1e-10)


def test_turning_points_roots_and_lines_together_changes_nothing():
    x, a, target = clouds(15, 22, 4)
    some = trees(3, 4, 4)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=seeded(1), dtype=torch.float64)).Q
    turned = Trees(some.root @ turn, some.theta @ turn)
    once = tree_velocity(x, target, some, Tree(2.0, 1), a)
    again = tree_velocity(x @ turn, Cloud(target.x @ turn, target.weight), turned, Tree(2.0, 1), a)
    assert again[1].item() == pytest.approx(once[1].item(), rel=1e-12)
    assert torch.allclose(again[0], once[0] @ turn, atol=1e-10)


def test_trees_held_fixed_are_symmetric_and_obey_the_triangle():
    rule, some = Tree(2.0, 1), trees(4, 3, 2)

    def far(p, q):
        held = some._replace(root=some.root - mean_of(q))  # the same place, whichever cloud is the target
        return tree_value(p.x, q, held, rule, p.weight).item()

    for seed in range(5):
        x, a, y = clouds(8, 9, 2, seed=seed)
        p, z = Cloud(x, a), clouds(8, 9, 2, seed=seed + 50)[2]
        assert far(p, y) == pytest.approx(far(y, p), rel=1e-12)
        assert far(p, z) <= far(p, y) + far(y, z) + 1e-12


def test_pull_across_near_a_line_keeps_its_digits_in_float32():
    # By Pythagoras the distance of these points from the first line would be lost in float32.
    rng = seeded(3)
    x = torch.randn(200, 2, generator=rng) * torch.tensor([3.0, 1e-4])
    target = Cloud(torch.randn(150, 2, generator=rng) * torch.tensor([3.0, 1e-4]) + torch.tensor([1.0, 0.0]))
    wide = Cloud(target.x.double())
    some = Trees(torch.zeros(1, 2, dtype=torch.float64), tensor([[[1.0, 0.0], [0.6, 0.8]]]))
    got, _ = tree_velocity(x, target, some, Tree(2.0, 1), None)
    want, _ = tree_velocity(x.double(), wide, some, Tree(2.0, 1), None)
    assert (got - want).norm() <= 1e-3 * want.norm()


def test_a_point_on_a_line_or_on_the_root_has_a_finite_velocity():
    some = Trees(torch.zeros(1, 2, dtype=torch.float64), tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    x, target = tensor([[0.0, 0.0], [2.0, 0.0], [0.0, -1.0]]), Cloud(tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert torch.isfinite(tree_velocity(x, target, some, Tree(2.0, 1), None)[0]).all()
    leaf = x.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(tree_value(leaf, target, some, Tree(2.0, 1), None), leaf)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("loss", [DbTsw(), DbTsw(edge_power=2), TswSl(), TswSl(splitting="random")])
def test_a_cloud_is_at_zero_from_itself_in_any_order(loss):
    x = torch.randn(300, 3, generator=seeded(0))
    again = x[torch.randperm(300, generator=seeded(1))]
    for value in (loss(x, Cloud(again), seeded(2)), loss.velocity(x, Cloud(again), seeded(2)).value):
        assert abs(value.item()) <= 1e-6


@pytest.mark.parametrize("loss", [DbTsw(), TswSl(splitting="random")])
def test_float32_far_from_the_origin_keeps_four_digits(loss):
    x, _, target = clouds(150, 100, 3)
    far, far_y = (x + 1e4).float(), (target.x + 1e4).float()
    near = loss.velocity(far.double() - 1e4, Cloud(far_y.double() - 1e4), seeded(0))
    got = loss.velocity(far, Cloud(far_y), seeded(0))
    assert got.v.dtype == got.value.dtype == torch.float32
    assert got.value.item() == pytest.approx(near.value.item(), rel=1e-4)
    assert (got.v - near.v).norm() <= 0.02 * near.v.norm()  # W1 jumps where two points change order


def test_roots_stay_where_they_are_though_float32_cannot_hold_the_mean():
    x = torch.randn(60, 2, generator=seeded(1)).mul(256).round().div(256)
    y = torch.randn(50, 2, generator=seeded(2)).mul(256).round().div(256).add(1)
    near = DbTsw().velocity(x, Cloud(y), seeded(3))
    far = DbTsw().velocity(x + 8192.0, Cloud(y + 8192.0), seeded(3))  # exact in float32: steps of 1/256
    assert (near.v - far.v).abs().max() <= 2e-5 * near.v.abs().max()


@pytest.mark.parametrize(("lines", "d"), [(3, 5), (4, 4), (5, 2), (3, 1)])
def test_orthogonal_lines_come_in_frames_and_are_stacked_where_there_are_too_few_dimensions(lines, d):
    theta = trees(6, lines, d, orthogonal=True).theta
    assert theta.shape == (6, lines, d)
    first = theta[:, : min(lines, d)]
    assert torch.allclose(first @ first.transpose(1, 2), torch.eye(min(lines, d), dtype=torch.float64), atol=1e-12)
    assert torch.allclose(theta.norm(dim=2), torch.ones(6, lines, dtype=torch.float64))


@pytest.mark.parametrize("d", [2, 3, 4])
def test_complement_is_orthonormal_and_across(d):
    theta = torch.cat([trees(20, 3, d).theta.reshape(-1, d), torch.eye(d, dtype=torch.float64), -torch.eye(d)])
    whole = torch.cat((theta[:, None], complement(theta)), dim=1)
    assert torch.allclose(whole @ whole.transpose(1, 2), torch.eye(d, dtype=torch.float64), atol=1e-14)


def test_roots_scatter_about_the_target_mean():
    loss = DbTsw(trees=1024, lines=1, root_std=0.5)
    root = loss._trees(Cloud(torch.zeros(1, 3)), seeded(0)).root
    assert root.mean(0).abs().max() < 0.06  # 0.5 / sqrt(1024) = 0.016 an entry
    assert root.std().item() == pytest.approx(0.5, rel=0.05)
    x, a, target = clouds(10, 12, 3)
    moved = Cloud(target.x + 100, target.weight)
    assert loss(x + 100, moved, seeded(0), a).item() == pytest.approx(loss(x, target, seeded(0), a).item(), rel=1e-10)


@pytest.mark.parametrize("loss", [DbTsw(draw="fixed"), TswSl(draw="fixed"), TswSl(draw="fixed", splitting="random")])
def test_fixed_trees_ignore_rng_and_follow_their_seed(loss):
    x, a, target = clouds(12, 9, 2)
    once = loss(x, target, seeded(1), a)
    assert once == loss(x, target, seeded(2), a)
    assert once != type(loss)(draw="fixed", tree_seed=1)(x, target, seeded(1), a)
    assert "deterministic" in loss.laws


def test_many_trees_are_cut_into_blocks_without_a_change():
    x, _, target = clouds(700, 900, 3)
    some = trees(60, 4, 3)
    whole = tree_velocity(x, target, some, Tree(2.0, 1), None)
    parts = [
        tree_velocity(x, target, Trees(some.root[i : i + 1], some.theta[i : i + 1]), Tree(2.0, 1), None)
        for i in range(60)
    ]
    assert torch.allclose(whole[0], torch.stack([v for v, _ in parts]).mean(0), atol=1e-12)
    assert whole[1].item() == pytest.approx(sum(value.item() for _, value in parts) / 60, rel=1e-12)


# TSW-SL


def chain_distance(p, q, joints):
    """Path between two places (line, coordinate): line l + 1 starts, at 0, from coordinate joints[l] of line l."""
    (l, s), (r, t) = sorted((p, q))
    if l == r:
        return abs(s - t)
    return abs(s - joints[l]) + sum(abs(joints[between]) for between in range(l + 1, r)) + abs(t)


def chain_value(x, a, target, source, theta, joints, alpha):
    """W1 on the chain by a linear programme over all places."""
    starts = [source]
    for direction, joint in zip(theta, joints, strict=False):
        starts.append(starts[-1] + joint * direction)

    def places(points, mass):
        spots = [(l, float(theta[l] @ (p - starts[l]))) for p in points for l in range(len(theta))]
        return spots, np.array([float(w) * float(share) for w in mass for share in alpha])

    (left, a_), (right, b_) = places(x, a), places(target.x, target.weight)
    table = np.array([[chain_distance(p, q, joints) for q in right] for p in left])
    return ot.emd2(a_ / a_.sum(), b_ / b_.sum(), table)


def test_a_chain_has_the_value_of_the_linear_programme():
    case = KNOWN["tswsl_chain"]
    i = case["inputs"]
    x, a, target = tensor(i["X"]), tensor(i["a"]), Cloud(tensor(i["Y"]), tensor(i["b"]))
    theta, alpha = tensor(i["theta"]), tensor(i["alpha"])
    by_programme = chain_value(x, a, target, tensor(i["source1"]), theta, i["joint_t"], alpha)
    assert by_programme == pytest.approx(case["value"], abs=case["tolerance"])
    assert sliced_power(x, target, Slices(theta, alpha), a, 1).item() == pytest.approx(case["value"], abs=1e-9)
    assert sliced_velocity(x, target, Slices(theta, alpha), a, 1)[1].item() == pytest.approx(case["value"], abs=1e-9)


def test_even_splitting_is_the_mean_over_its_lines():
    case = KNOWN["tsw_uniform_equals_sw1"]
    i = case["inputs"]
    x, a, target = tensor(i["X"]), tensor(i["a"]), Cloud(tensor(i["Y"]), tensor(i["b"]))
    assert sliced_power(x, target, Slices.even(tensor(i["theta"])), a, 1).item() == pytest.approx(
        case["value"], abs=case["tolerance"]
    )


def test_any_constant_splitting_on_any_chain_is_a_weighted_sliced_w1():
    for seed in range(4):
        x, a, target = clouds(6, 7, 3, seed=seed)
        loss = TswSl(trees=1, lines=4, splitting="random")
        slices = loss._slices(target, seeded(seed))
        joints = torch.rand(3, generator=seeded(seed, 1)).mul(2).sub(1).tolist()
        source = torch.rand(3, generator=seeded(seed, 2), dtype=torch.float64) * 2 - 1
        by_programme = chain_value(x, a, target, source, slices.theta, joints, slices.share)
        assert loss(x, target, seeded(seed), a).item() == pytest.approx(by_programme, rel=1e-9)


def test_random_shares_are_even_on_the_simplex():
    share = TswSl(trees=1024, lines=3, splitting="random")._shares(seeded(0))
    assert torch.allclose(share.sum(1), torch.ones(1024, dtype=torch.float64))
    # Uniform on the simplex of 3: mean 1/3, variance 1/18; 1024 draws err by about 3 percent.
    assert share.mean(0).sub(1 / 3).abs().max() < 0.03
    assert share.var(0).sub(1 / 18).abs().max() < 0.008


@pytest.mark.parametrize("splitting", ["uniform", "random"])
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
def test_chains_closed_form_equals_autograd(splitting, draw):
    loss = TswSl(trees=3, lines=4, splitting=splitting, draw=draw)
    for n, m, d in ((9, 9, 1), (7, 12, 2), (20, 8, 6)):
        x, a, target = clouds(n, m, d, seed=n)
        for source, cloud in ((a, target), (None, Cloud(target.x))):
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            for aimed in (cloud, loss.prepare(cloud)):
                got = velocity_of(loss, x, aimed, seeded(3), source)
                assert torch.allclose(got.v, want.v, rtol=0, atol=1e-9)
                assert got.value.item() == pytest.approx(want.value.item(), abs=1e-12)
