"""Exact Wasserstein: linear-programme values, laws of the optimal plan, closed form against autograd, its limits."""

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import wasserstein
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.losses.wasserstein import LARGEST, Wasserstein, optimal_plan

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_values.json").read_text())
MORE = json.loads((Path(__file__).parent / "known" / "transport_more.json").read_text())
W2, W1 = Wasserstein(), Wasserstein(p=1)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def pair(inputs):
    a, b = (tensor(inputs[w]) if w in inputs else None for w in ("a", "b"))
    return tensor(inputs["X"]), a, Cloud(tensor(inputs["Y"]), b)


def clouds(n, m, d, seed=0, dtype=torch.float64):
    rng = seeded(seed)
    x, y = torch.randn(n, d, generator=rng, dtype=dtype), torch.randn(m, d, generator=rng, dtype=dtype) + 1
    a, b = torch.rand(n, generator=rng, dtype=dtype), torch.rand(m, generator=rng, dtype=dtype)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


@pytest.mark.parametrize("name", ["emd2d_sqeuclid", "emd2d_equal_sqeuclid"])
def test_squared_cost_has_the_value_of_the_linear_programme(name):
    case = KNOWN[name]
    x, a, target = pair(case["inputs"])
    assert W2(x, target, seeded(0), a).item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert W2.velocity(x, target, seeded(0), a).value.item() == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("name", ["emd2d_euclid", "emd2d_equal_euclid"])
def test_plain_distance_has_the_value_of_the_linear_programme(name):
    case = KNOWN[name]
    x, a, target = pair(case["inputs"])
    assert W1(x, target, seeded(0), a).item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert W1.velocity(x, target, seeded(0), a).value.item() == pytest.approx(case["value"], abs=case["tolerance"])
    plan = W1.plan(x, target, a)
    cost = (plan.mass * (x[plan.i] - target.x[plan.j]).norm(dim=1)).sum().item()
    assert cost == pytest.approx(case["value"], abs=case["tolerance"])


def test_gradient_of_the_unique_assignment():
    case = KNOWN["emd2d_equal_sqeuclid_grad"]
    x, _, target = pair(case["inputs"])
    assert torch.allclose(-W2.velocity(x, target, seeded(0)).v / 4, tensor(case["value"]), rtol=0, atol=1e-12)
    assert optimal_plan(x, None, target).j.tolist() == [3, 1, 2, 0]


def test_assignment_is_the_best_of_all_permutations():
    for seed in range(5):
        rng = seeded(seed)
        x, y = (torch.randn(6, 3, generator=rng, dtype=torch.float64) for _ in range(2))
        best = min((x - y[list(order)]).square().sum(1).mean().item() for order in permutations(range(6)))
        assert W2(x, Cloud(y), seeded(0)).item() == pytest.approx(best, rel=1e-12)


def test_assignment_and_simplex_find_the_same_plan(monkeypatch):
    x, _, target = clouds(90, 90, 3, seed=3)
    assigned = optimal_plan(x, None, Cloud(target.x))
    monkeypatch.setattr(wasserstein, "_ASSIGNED", 0)
    by_simplex = optimal_plan(x, None, Cloud(target.x))
    for one, other in zip(assigned, by_simplex, strict=True):
        assert torch.equal(one, other)


def test_plan_keeps_both_masses():
    x, a, target = clouds(15, 40, 2)
    plan = optimal_plan(x, a, target)
    sent = torch.zeros(15, dtype=torch.float64).index_add_(0, plan.i, plan.mass)
    got = torch.zeros(40, dtype=torch.float64).index_add_(0, plan.j, plan.mass)
    assert torch.allclose(sent, a, atol=1e-12)
    assert torch.allclose(got, target.weight, atol=1e-12)


@pytest.mark.parametrize("loss", [W2, W1])
@pytest.mark.parametrize(("n", "m", "d"), [(12, 12, 2), (9, 30, 3), (30, 9, 1), (1, 5, 2), (5, 1, 4)])
def test_closed_form_equals_autograd(n, m, d, loss):
    x, a, target = clouds(max(n, 2), max(m, 2), d, seed=n)
    for source, cloud in ((None, Cloud(target.x[:m])), (a, target), (None, target), (a, Cloud(target.x[:m]))):
        want = autograd_velocity(loss, x, cloud, seeded(0), source)
        got = velocity_of(loss, x, cloud, seeded(0), source)
        assert torch.allclose(got.v, want.v, rtol=0, atol=1e-9)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


def test_autograd_agrees_with_finite_differences():
    x, a, target = clouds(6, 9, 2, seed=4)
    v = velocity_of(W2, x, target, seeded(0), a).v
    for i, k in ((1, 0), (3, 1)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-6
        slope = (W2(x + h, target, seeded(0), a) - W2(x - h, target, seeded(0), a)) / 2e-6
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-6)


def test_plain_distance_pulls_at_speed_one_and_lets_go_of_what_has_arrived():
    x = tensor([[0.0, 0.0], [5.0, 5.0], [0.0, 9.0]])
    target = Cloud(tensor([[3.0, 4.0], [5.0, 5.0], [0.0, 9.0]]))
    answer = velocity_of(W1, x, target, seeded(0))
    assert torch.allclose(answer.v, tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]), rtol=0, atol=1e-15)
    assert answer.value.item() == pytest.approx(5 / 3, rel=1e-15)
    assert torch.equal(autograd_velocity(W1, x, target, seeded(0)).v[1:], torch.zeros(2, 2, dtype=torch.float64))


def test_plain_distance_never_exceeds_the_root_of_the_squared():
    x, a, target = clouds(20, 25, 3)
    assert W1(x, target, seeded(0), a) <= W2(x, target, seeded(0), a).sqrt()
    shift = tensor([3.0, 0.0, 4.0])
    assert W1(x, Cloud(x + shift, a), seeded(0), a).item() == pytest.approx(5, rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("d", [1, 2])
def test_the_plan_that_pages_draw_has_only_mass_and_adds_up(weighted, d):
    x, a, target = clouds(12, 17, d)
    weight, target = (a, target) if weighted else (None, Cloud(target.x))
    plan = W2.plan(x, target, weight)
    assert (plan.mass > 0).all()
    assert len(plan.mass) <= 12 + 17 - 1
    sent = torch.zeros(12, dtype=torch.float64).index_add_(0, plan.i, plan.mass)
    got = torch.zeros(17, dtype=torch.float64).index_add_(0, plan.j, plan.mass)
    assert torch.allclose(sent, a if weighted else torch.full_like(a, 1 / 12), atol=1e-12)
    assert torch.allclose(got, target.mass(), atol=1e-12)
    cost = (plan.mass * (x[plan.i] - target.x[plan.j]).square().sum(1)).sum()
    assert cost.item() == pytest.approx(W2(x, target, seeded(0), weight).item(), rel=1e-12)


def test_the_plan_on_a_line_sorts():
    case = MORE["minibatch_ot_pairing"]
    x, y = (tensor(case["inputs"][side])[:, None] for side in ("x0", "x1"))
    plan = W2.plan(x, Cloud(y))
    assert plan.j[plan.i.argsort()].tolist() == case["value"]
    a, b = (tensor(MORE["sorted_w2sq_1d"]["inputs"][side])[:, None] for side in ("a", "b"))
    assert W2(a, Cloud(b), seeded(0)).item() == pytest.approx(MORE["sorted_w2sq_1d"]["value"], abs=1e-12)


def test_a_shift_costs_its_square_and_splits_off_the_means():
    x, a, target = clouds(20, 25, 3)
    shift = tensor([3.0, -1.5, 0.5])
    assert W2(x, Cloud(x + shift, a), seeded(0), a).item() == pytest.approx(shift.square().sum().item(), rel=1e-12)
    m1, m2 = a @ x, target.weight @ target.x
    centred = W2(x - m1, Cloud(target.x - m2, target.weight), seeded(0), a)
    whole = W2(x, target, seeded(0), a)
    assert whole.item() == pytest.approx(((m1 - m2).square().sum() + centred).item(), rel=1e-10)


def test_one_step_of_half_lands_on_the_target():
    x, _, target = clouds(30, 30, 2)
    there = x + 0.5 * W2.velocity(x, Cloud(target.x), seeded(0)).v
    assert torch.allclose(there[there[:, 0].argsort()], target.x[target.x[:, 0].argsort()], atol=1e-12)


def test_flow_closes_the_gap_at_rate_one():
    # Euler on W2^2 / 2 with steps of 1e-3 for unit time: e^-1 up to 0.5e-3 of relative error.
    start, _, target = clouds(8, 8, 2, seed=1)
    x, goal = start.clone(), Cloud(target.x)
    first = optimal_plan(x, None, goal)
    for _ in range(1000):
        x = x + 1e-3 * W2.velocity(x, goal, seeded(0)).v / 2
    left = (x[first.i] - goal.x[first.j]) / (start[first.i] - goal.x[first.j])
    assert torch.allclose(left, torch.full_like(left, 0.36787944117144233), rtol=1e-3)


def test_on_a_line_it_sorts_and_has_no_limit():
    n = LARGEST + 500
    x = torch.randn(n, 1, generator=seeded(0))
    assert W2.velocity(x, Cloud(x.flip(0) + 2), seeded(0)).value.item() == pytest.approx(4, rel=1e-4)
    few, a, target = clouds(12, 17, 1)
    plan = optimal_plan(few, a, target)
    cost = (plan.mass * (few[plan.i] - target.x[plan.j]).square().sum(1)).sum()
    assert W2(few, target, seeded(0), a).item() == pytest.approx(cost.item(), rel=1e-12)


def test_too_many_points_are_refused_in_one_sentence():
    x = torch.zeros(LARGEST + 1, 2)
    with pytest.raises(ValueError, match=r"^Exact Wasserstein: at most 3,000 points a side, got 3,001 .*Sinkhorn"):
        W2(x, Cloud(x[:4]), seeded(0))


def test_repeated_and_equal_points_are_at_zero():
    x = tensor([[0.0, 0.0]] * 4 + [[1.0, 2.0]] * 2)
    answer = velocity_of(W2, x, Cloud(x), seeded(0))
    assert answer.value.item() == 0
    assert torch.equal(answer.v, torch.zeros_like(x))
    assert torch.equal(autograd_velocity(W2, x, Cloud(x), seeded(0)).v, torch.zeros_like(x))


def test_float32_far_from_the_origin_keeps_four_digits():
    x, _, target = clouds(60, 60, 2)
    far, far_y = (x + 1e4).float(), (target.x + 1e4).float()
    near = W2.velocity(far.double() - 1e4, Cloud(far_y.double() - 1e4), seeded(0))
    got = W2.velocity(far, Cloud(far_y), seeded(0))
    assert got.value.item() == pytest.approx(near.value.item(), rel=1e-4)
    assert (got.v - near.v).norm() <= 1e-4 * near.v.norm()


def test_it_bounds_sliced_wasserstein_from_above():
    for d in (2, 5):
        x, a, target = clouds(20, 30, d)
        sliced = SlicedWasserstein(directions="orthogonal", slices=20)(x, target, seeded(0), a)
        assert sliced <= W2(x, target, seeded(0), a) / d


def test_a_run_that_has_blown_up_ends_by_its_nan():
    x, _, target = clouds(8, 9, 2)
    for wrong in (float("nan"), float("inf")):
        x[3, 0] = wrong
        answer = velocity_of(W2, x, target, seeded(0))
        assert torch.isnan(answer.value)
        assert torch.isnan(answer.v).any()
