"""Gromov-Wasserstein: known values, isometries of either side, brute force, closed form against autograd, limits."""

import json
import math
from itertools import permutations
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses.gromov_wasserstein import LARGEST, GromovWasserstein, improved, objective, space_of, starts

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_more.json").read_text())
GW, RNG = GromovWasserstein(), seeded(0)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d=2, seed=0):
    rng = seeded(seed)
    x, y = torch.randn(n, d, generator=rng, dtype=torch.float64), torch.randn(m, d, generator=rng).double() * 1.5
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


def defined(x, target, plan):
    """The fourfold sum as it is written."""
    here, there = torch.cdist(x, x), torch.cdist(target.x, target.x)
    return ((here[:, None, :, None] - there[None, :, None, :]).square() * plan[:, :, None, None] * plan).sum().item()


def test_two_points_each():
    case = KNOWN["gw_two_points"]
    x, y = tensor([[0.0], [case["inputs"]["r"]]]), tensor([[4.0, 1.0], [4.0, 1.0 + case["inputs"]["s"]]])
    assert GW(x, Cloud(y), RNG).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_one_point_takes_all():
    case = KNOWN["gw_to_point"]
    x, a = tensor(case["inputs"]["X"]), tensor(case["inputs"]["a"])
    assert GW(x, Cloud(tensor([[3.0, 3.0]])), RNG, a).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_a_turned_and_moved_copy_has_the_same_shape():
    case = KNOWN["gw_isometry"]
    i = case["inputs"]
    x, a, angle = tensor(i["X"]), tensor(i["a"]), i["angle"]
    turn = tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    answer = velocity_of(GW, x, Cloud(x @ turn.T + tensor([float(v) for v in i["shift"]]), a), RNG, a)
    assert answer.value.item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert answer.v.abs().max() < 1e-7


def test_three_points_each():
    case = KNOWN["gw_three_points"]
    x, y = tensor(case["inputs"]["X"]), tensor(case["inputs"]["Y"])
    assert GW(x, Cloud(y), RNG).item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert GW.velocity(x, Cloud(y), RNG).value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_the_value_is_the_fourfold_sum():
    x, a, target = clouds(7, 9)
    plan = GW.plan(x, target, a)
    assert torch.allclose(plan.sum(1), a, atol=1e-12)
    assert torch.allclose(plan.sum(0), target.weight, atol=1e-12)
    assert GW(x, target, RNG, a).item() == pytest.approx(defined(x, target, plan), rel=1e-10)


def test_the_best_of_all_permutations_is_nearly_reached_and_never_beaten():
    ratio = 0.0
    for seed in range(12):
        x, _, target = clouds(6, 6, seed=seed)
        plans = (torch.eye(6, dtype=torch.float64)[list(order)] / 6 for order in permutations(range(6)))
        here, there = space_of(x, None), space_of(target.x, None)
        const = float(here.mass @ here.reach + there.mass @ there.reach)
        best = const + min(objective(plan, here, there) for plan in plans)
        value = GW(x, Cloud(target.x), RNG).item()
        assert value >= best - 1e-10  # the objective is concave: a permutation is among the best plans
        ratio += value / best / 12
    assert ratio < 1.06  # on average over clouds without any structure, the worst case


def test_every_round_lowers_the_objective():
    x, a, target = clouds(20, 15)
    here, there = space_of(x, a), space_of(target.x, target.weight)
    for start in starts(here, there):
        values = [objective(improved(start, here, there, rounds), here, there) for rounds in (0, 1, 2, 5, 50)]
        assert values == sorted(values, reverse=True)


def test_moving_or_turning_one_side_alone_changes_nothing():
    x, a, target = clouds(12, 9)
    turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=seeded(1), dtype=torch.float64))
    turned = GW(x @ turn + 7, target, RNG, a).item()
    assert turned == pytest.approx(GW(x, target, RNG, a).item(), rel=1e-9)


def test_the_clouds_may_differ_in_dimension():
    x, _, _ = clouds(10, 3)
    flat = torch.cat([x, torch.zeros(10, 2, dtype=torch.float64)], dim=1)
    assert GW(x, Cloud(flat), RNG).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("n", "m", "d"), [(12, 12, 2), (9, 14, 3), (14, 9, 1), (1, 5, 2), (5, 1, 2)])
def test_closed_form_equals_autograd(n, m, d):
    x, a, target = clouds(max(n, 2), m, d, seed=n)
    x, a = (x[:n], a[:n] / a[:n].sum()) if n > 1 else (x[:1], tensor([1.0]))
    for weight, cloud in ((None, Cloud(target.x)), (a, target)):
        got, want = (f(GW, x, cloud, RNG, weight) for f in (velocity_of, autograd_velocity))
        assert torch.allclose(got.v, want.v, atol=1e-9)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


def test_gradient_by_finite_differences():
    x, a, target = clouds(7, 8, seed=2)
    v = velocity_of(GW, x, target, RNG, a).v
    for i, k in ((1, 0), (3, 1)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-6
        slope = (GW(x + h, target, RNG, a) - GW(x - h, target, RNG, a)) / 2e-6
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-6)


def test_a_flow_takes_the_shape_and_keeps_its_place():
    x = torch.randn(16, 2, generator=seeded(3), dtype=torch.float64)
    angle = torch.arange(16).double() * math.pi / 8
    ring = Cloud(torch.stack((angle.cos(), angle.sin()), dim=1) * 2 + 50)
    field, carry, place = aim(GW, ring), None, x.mean(0)
    first = field.value(x, RNG).item()
    for _ in range(200):
        answer = field(x, RNG, carry)
        x, carry = x + 0.1 * answer.v, answer.carry
    assert answer.value.item() < 1e-3 * first
    assert torch.allclose(x.mean(0), place, atol=1e-9)
    assert (x - place).norm(dim=1).std() < 0.05


def test_particles_that_coincide_stay_together():
    x = tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
    for f in (velocity_of, autograd_velocity):
        v = f(GW, x, Cloud(tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]])), RNG).v
        assert torch.isfinite(v).all()


def test_too_many_points_are_refused_in_one_sentence():
    x = torch.zeros(LARGEST + 1, 2)
    with pytest.raises(ValueError, match=r"^Gromov-Wasserstein: at most 500 points a side, got 501 and 4: .*fewer"):
        GW(x, Cloud(x[:4]), RNG)


def test_a_run_that_has_blown_up_ends_by_its_nan():
    x, _, target = clouds(8, 9)
    x[3, 0] = float("nan")
    answer = velocity_of(GW, x, target, RNG)
    assert torch.isnan(answer.value)
    assert torch.isnan(answer.v).any()
