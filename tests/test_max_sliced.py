"""Max-sliced Wasserstein: brute force over angles, ridges, shifts, the carried line."""

import json
import math
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import max_sliced_wasserstein
from dmviz.losses._slicing import sliced_slopes, unit_vectors
from dmviz.losses.max_sliced_wasserstein import MaxSlicedWasserstein, climb
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d, seed=0, weighted=False):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) * torch.linspace(0.4, 1.3, d) + 0.3
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = 0
    return (x, a / a.sum(), Cloud(y, b / b.sum())) if weighted else (x, None, Cloud(y))


def around(x, target, weight, power, count):
    """Values at even angles of the half circle."""
    angle = torch.arange(count, dtype=torch.float64) * (math.pi / count)
    theta = torch.stack((angle.cos(), angle.sin()), 1)
    return sliced_slopes(x, target, theta, weight, power)[0]


def test_four_points_reach_the_top_of_their_ridge():
    case = KNOWN["maxsw2sq_emp"]
    x, target = tensor(case["inputs"]["X"]), Cloud(tensor(case["inputs"]["Y"]))
    # The reference is the best of 400,001 angles, 4e-6 beside a ridge: at (2, 1) two particles share a place, and the
    # value there is 1.3 by hand.
    grid = around(x, target, None, 2, 400_001).max().item()
    assert grid == pytest.approx(case["value"], abs=1e-5)
    ridge = sliced_slopes(x, target, tensor([[2.0, 1.0]]) / math.sqrt(5), None, 2)[0].item()
    assert ridge == pytest.approx(1.3, abs=1e-12)
    for seed in range(3):
        found = MaxSlicedWasserstein()(x, target, seeded(seed)).item()
        assert case["value"] - case["tolerance"] <= found <= 1.3 + 1e-12
        assert found == pytest.approx(1.3, abs=2e-6)


def test_two_gaussians_in_the_plane():
    # Their W2 on a line is in closed form; 20,000 draws with exact moments err by about a percent.
    case = KNOWN["maxsw2sq_gauss2d"]
    i = case["inputs"]
    shift, s1, s2 = tensor(i["m1"]) - tensor(i["m2"]), tensor(i["S1"]), tensor(i["S2"])

    def on(theta):
        sd = [((theta @ s) * theta).sum(-1).sqrt() for s in (s1, s2)]
        return (theta @ shift).square() + (sd[0] - sd[1]).square()

    def slopes(theta):
        leaf = theta.clone().requires_grad_(True)
        value = on(leaf)
        return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]

    best, height = climb(unit_vectors("auto", 3, 2, seeded(0)), slopes, 80)
    assert height.max().item() == pytest.approx(case["value"], abs=case["tolerance"])

    def cloud(mean, covariance, seed):
        z = torch.randn(20_000, 2, generator=seeded(seed), dtype=torch.float64)
        z = z - z.mean(0)
        z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / len(z))).T
        return tensor(mean) + z @ torch.linalg.cholesky(covariance).T

    got = MaxSlicedWasserstein(restarts=1, steps=20)(cloud(i["m1"], s1, 1), Cloud(cloud(i["m2"], s2, 2)), seeded(0))
    assert got.item() == pytest.approx(case["value"], rel=7e-3)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_in_the_plane_no_angle_is_better(power, weighted):
    for seed in range(4):
        x, a, target = clouds(14, 14 if seed else 9, 2, seed, weighted)
        best = around(x, target, a, power, 40_001).max().item()
        found = MaxSlicedWasserstein(power=power)(x, target, seeded(seed), a).item()
        assert found >= best * (1 - 1e-6)
        assert found <= best * (1 + 1e-3)  # between two angles of the grid there is not room for more


@pytest.mark.parametrize("d", [3, 6])
def test_in_space_many_random_lines_are_no_better(d):
    for seed in range(3):
        x, a, target = clouds(20, 25, d, seed, weighted=True)
        theta = unit_vectors("random", 4000, d, seeded(seed, 1))
        found = MaxSlicedWasserstein()(x, target, seeded(seed), a).item()
        assert found >= sliced_slopes(x, target, theta, a, 2)[0].max().item()


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_a_shift_costs_its_length_to_the_power(power, d):
    x = torch.randn(30, d, generator=seeded(1), dtype=torch.float64)
    shift = torch.linspace(1, 2, d, dtype=torch.float64)
    answer = MaxSlicedWasserstein(power=power).velocity(x, Cloud(x + shift), seeded(0))
    assert answer.value.item() == pytest.approx(shift.norm().item() ** power, rel=1e-9)
    want = shift if power == 1 and d == 1 else shift * (2 if power == 2 else 1 / shift.norm())
    assert torch.allclose(answer.v, (want.sign() if power == 1 and d == 1 else want).expand(30, d), atol=1e-6)


@pytest.mark.parametrize("power", [1, 2])
def test_it_lies_between_sliced_and_exact_transport(power):
    from scipy.optimize import linear_sum_assignment

    x, _, target = clouds(25, 25, 3, 5)
    cost = torch.cdist(x, target.x).pow(power).numpy()
    exact = cost[linear_sum_assignment(cost)].mean()
    value = MaxSlicedWasserstein(power=power)(x, target, seeded(0)).item()
    assert SlicedWasserstein(power=power)(x, target, seeded(0)).item() <= value <= exact + 1e-12


@pytest.mark.parametrize(("n", "m", "d"), [(8, 8, 1), (9, 9, 2), (12, 7, 3), (10, 20, 8)])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_closed_form_equals_autograd(n, m, d, power, weighted):
    x, a, target = clouds(n, m, d, n, weighted)
    loss = MaxSlicedWasserstein(power=power, steps=30)
    got, want = velocity_of(loss, x, target, seeded(3), a), autograd_velocity(loss, x, target, seeded(3), a)
    assert torch.allclose(got.v, want.v, rtol=0, atol=1e-10)
    assert got.value.item() == pytest.approx(want.value.item(), abs=1e-12)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_slope_in_the_line_is_its_difference_quotient(power, weighted):
    x, a, target = clouds(11, 11 if not weighted else 8, 4, 2, weighted)
    theta, h = unit_vectors("random", 3, 4, seeded(1)), 1e-6
    slope = sliced_slopes(x, target, theta, a, power)[1]
    for k in range(4):
        step = h * torch.eye(4, dtype=torch.float64)[k]
        up, down = (sliced_slopes(x, target, theta + s, a, power)[0] for s in (step, -step))
        assert torch.allclose((up - down) / (2 * h), slope[:, k], atol=1e-5)


def test_the_carried_line_is_kept_until_another_is_better():
    x, _, target = clouds(30, 30, 4, 1)
    loss = MaxSlicedWasserstein()
    first = loss.velocity(x, target, seeded(0))
    again = loss.velocity(x, target, seeded(9), None, first.carry)
    assert torch.equal(first.carry, again.carry) or again.value > first.value
    # A line along which both clouds agree is given up at once.
    poor = loss.velocity(x, Cloud(x + tensor([1.0, 0, 0, 0])), seeded(0), None, tensor([0.0, 1, 0, 0]))
    assert poor.value.item() == pytest.approx(1, rel=1e-9)


def test_following_it_brings_a_cloud_to_the_target():
    x, _, target = clouds(60, 60, 2, 3)
    loss, carry = MaxSlicedWasserstein(), None
    start = loss(x, target, seeded(0)).item()
    for step in range(25):
        v, _, carry = loss.velocity(x, target, seeded(0, step), None, carry)
        x = x + 0.4 * v
    assert loss(x, target, seeded(1)).item() < 0.02 * start


def test_points_that_coincide_and_single_points_are_no_trouble():
    x = torch.zeros(5, 3, dtype=torch.float64)
    for y in (x, x[:2], x[:1] + 1):
        answer = velocity_of(MaxSlicedWasserstein(), x, Cloud(y), seeded(0))
        assert torch.isfinite(answer.v).all()
        assert answer.value.item() == pytest.approx(3.0 if len(y) == 1 else 0.0)


def test_float32_stays_float32():
    x, _, target = clouds(20, 30, 3, 1)
    answer = MaxSlicedWasserstein().velocity(x.float(), Cloud(target.x.float()), seeded(0))
    assert answer.v.dtype == answer.value.dtype == torch.float32
    exact = MaxSlicedWasserstein().velocity(x, target, seeded(0))
    assert answer.value.item() == pytest.approx(exact.value.item(), rel=1e-5)


def test_steps_along_ridges_reach_higher_than_steps_back_from_them(monkeypatch):
    problems = [clouds(20, 25, 6, seed) for seed in range(4)]
    along = [MaxSlicedWasserstein()(x, target, seeded(0)).item() for x, _, target in problems]
    monkeypatch.setattr(max_sliced_wasserstein, "_shortest", lambda heading, _: heading)
    back = [MaxSlicedWasserstein()(x, target, seeded(0)).item() for x, _, target in problems]
    assert all(a >= b * (1 - 1e-6) for a, b in zip(along, back, strict=True))
    assert sum(along) > sum(back) * (1 + 1e-5)
