"""Bures-Wasserstein: Gaussian values, the map, clouds that are flat, closed form against differences."""

import json
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.bures_wasserstein import BuresWasserstein, Rooted, gap_between, moments, rooted
from dmviz.losses.wasserstein import Wasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_values.json").read_text())
BURES = BuresWasserstein()
F64 = torch.float64


def tensor(numbers):
    return torch.tensor(numbers, dtype=F64)


def root_of(matrix):
    value, vector = torch.linalg.eigh(matrix)
    return (vector * value.sqrt()) @ vector.T


def with_moments(n, mean, covariance, seed):
    """A cloud that has exactly these moments."""
    d = len(mean)
    z = torch.randn(n, d, generator=seeded(seed), dtype=F64)
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / n)).T
    return mean + z @ root_of(covariance)


def case_of(name):
    i = KNOWN[name]["inputs"]
    if name == "bures_w2sq_diag":
        s1, s2 = (torch.diag(tensor([float(v) for v in i[s][5:-1].split(",")])) for s in ("S1", "S2"))
    else:
        s1, s2 = tensor(i["S1"]), tensor(i["S2"])
    return tensor([float(v) for v in i["m1"]]), s1, tensor([float(v) for v in i["m2"]]), s2


@pytest.mark.parametrize("name", ["bures_w2sq_2d", "bures_w2sq_diag"])
def test_clouds_with_given_moments_have_the_value_of_their_gaussians(name):
    m1, s1, m2, s2 = case_of(name)
    x, y = with_moments(40, m1, s1, 0), with_moments(30, m2, s2, 1)
    for target in (Cloud(y), BURES.prepare(Cloud(y))):
        assert BURES(x, target, seeded(0)).item() == pytest.approx(KNOWN[name]["value"], rel=1e-10)
        assert BURES.velocity(x, target, seeded(0)).value.item() == pytest.approx(KNOWN[name]["value"], rel=1e-10)


def test_the_map_is_the_optimal_one():
    _, s1, m2, s2 = case_of("bures_map")
    gap = gap_between(s1, Rooted(m2, s2.diagonal().sum(), root_of(s2), F64))
    assert torch.allclose(gap.map, tensor(KNOWN["bures_map"]["value"]), rtol=0, atol=1e-9)
    assert torch.allclose(gap.map @ s1 @ gap.map, s2, atol=1e-12)


def clouds(n, m, d, seed=0):
    n, rng = max(n, 2), seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=F64)
    y = torch.randn(m, d, generator=rng, dtype=F64) @ torch.randn(d, d, generator=rng, dtype=F64) + 1
    a, b = torch.rand(n, generator=rng, dtype=F64), torch.rand(m, generator=rng, dtype=F64)
    a[0] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


@pytest.mark.parametrize(("n", "m", "d"), [(30, 50, 1), (30, 50, 3), (20, 90, 8)])
def test_velocity_is_minus_the_difference_quotient(n, m, d):
    x, a, target = clouds(n, m, d)
    got = velocity_of(BURES, x, target, seeded(0), a)
    assert torch.allclose(got.v, autograd_velocity(BURES, x, target, seeded(0), a).v, atol=1e-10)
    for i, k in ((1, 0), (5, d - 1)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-5
        slope = (BURES(x + h, target, seeded(0), a) - BURES(x - h, target, seeded(0), a)) / 2e-5
        assert (-slope / a[i]).item() == pytest.approx(got.v[i, k].item(), abs=1e-6)


def test_half_a_unit_step_gives_the_cloud_the_targets_moments():
    x, a, target = clouds(40, 60, 4)
    there = x + 0.5 * BURES.velocity(x, target, seeded(0), a).v
    got, want = moments(there, a), moments(target.x, target.weight)
    assert torch.allclose(got.mean, want.mean, atol=1e-10)
    assert torch.allclose(got.covariance, want.covariance, atol=1e-9)


def test_flow_between_gaussians_on_a_line_follows_its_exact_solution():
    # Euler on F / 2, 1000 steps of 1e-3: m e^-t and s* + (s - s*) e^-t, up to 0.5e-3 of relative error.
    x = with_moments(50, tensor([3.0]), tensor([[0.25]]), 0)
    target = BURES.prepare(Cloud(with_moments(50, tensor([0.0]), tensor([[4.0]]), 1)))
    for _ in range(1000):
        x = x + 1e-3 * BURES.velocity(x, target, seeded(0)).v / 2
    assert x.mean().item() == pytest.approx(1.103638323514327, rel=1e-3)
    assert x.std(correction=0).item() == pytest.approx(1.4481808382428365, rel=1e-3)


@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 3), (2, 5, 6), (5, 2, 6), (6, 6, 20)])
def test_flat_clouds_have_finite_velocity_and_a_value_at_most_w2(n, m, d):
    x, _, target = clouds(n, m, d, seed=n)
    x, y = x[:n], Cloud(target.x)
    answer = velocity_of(BURES, x, y, seeded(0))
    assert torch.isfinite(answer.v).all()
    assert torch.allclose(answer.v, autograd_velocity(BURES, x, y, seeded(0)).v, atol=1e-9)
    assert answer.value <= Wasserstein()(x, y, seeded(0)) + 1e-9


def test_flat_cloud_descends_along_its_velocity():
    x, _, target = clouds(4, 9, 7, seed=2)
    y = Cloud(target.x)
    answer = velocity_of(BURES, x, y, seeded(0))
    drop = (BURES(x + 1e-6 * answer.v, y, seeded(0)) - answer.value).item()
    assert drop == pytest.approx(-1e-6 * answer.v.square().sum(1).mean().item(), rel=1e-3)


@pytest.mark.parametrize("call", [BURES, lambda *a: BURES.velocity(*a).value])
def test_round_and_coincident_clouds_have_no_nan(call):
    square = tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])  # covariance is exactly the identity
    point = torch.ones(4, 2, dtype=F64)
    assert call(square, Cloud(square), seeded(0)).item() == pytest.approx(0, abs=1e-14)
    assert call(square, Cloud(2 * square), seeded(0)).item() == pytest.approx(2, rel=1e-12)
    assert call(point, Cloud(square), seeded(0)).item() == pytest.approx(4, rel=1e-12)  # |(1, 1)|^2 + tr I
    for x, y in ((square, square), (square, point), (point, square), (point, point)):
        assert torch.isfinite(autograd_velocity(BURES, x, Cloud(y), seeded(0)).v).all()
        assert torch.isfinite(BURES.velocity(x, Cloud(y), seeded(0)).v).all()


def test_probe_at_the_particles_is_the_velocity():
    x, a, target = clouds(10, 20, 3)
    pull = BURES.probe(x, x, target, seeded(0), a)
    assert torch.allclose(pull[1:], BURES.velocity(x, target, seeded(0), a).v[1:])


def test_memo_of_another_precision_is_not_used():
    _, _, target = clouds(5, 20, 2)
    kept = BURES.prepare(target)
    half = Cloud(target.x.float(), target.weight.float(), memo=kept.memo)
    x = torch.zeros(5, 2)
    assert torch.equal(BURES(x, half, seeded(0)), BURES(x, Cloud(half.x, half.weight), seeded(0)))
    assert torch.equal(rooted(target).root, kept.memo["bures_wasserstein"].root)


def test_float32_far_from_the_origin_keeps_four_digits():
    x, _, target = clouds(100, 80, 3)
    far, far_y = (x + 1e4).float(), (target.x + 1e4).float()
    near = BURES.velocity(far.double() - 1e4, Cloud(far_y.double() - 1e4), seeded(0))
    got = BURES.velocity(far, Cloud(far_y), seeded(0))
    assert got.v.dtype == got.value.dtype == torch.float32
    assert got.value.item() == pytest.approx(near.value.item(), rel=1e-4)
    assert (got.v - near.v).norm() <= 1e-4 * near.v.norm()


def test_wide_float32_clouds_keep_the_digits_that_float64_has():
    x, _, target = clouds(5000, 3000, 20, seed=1)
    for a, b in ((None, None), (torch.full((5000,), 1 / 5000), torch.full((3000,), 1 / 3000))):
        want = BURES.velocity(x.float().double(), Cloud(target.x.float().double()), seeded(0))
        got = BURES.velocity(x.float(), Cloud(target.x.float(), b), seeded(0), a)
        assert (got.v - want.v).norm() <= 1e-5 * want.v.norm()
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-5)


def test_a_run_that_has_blown_up_ends_by_its_nan():
    x, a, target = clouds(8, 9, 2)
    for wrong in (float("nan"), float("inf")):
        x[3, 0] = wrong
        assert torch.isnan(velocity_of(BURES, x, target, seeded(0), a).v).any()
        assert torch.isnan(BURES(x, target, seeded(0), a))


def test_a_tight_cloud_far_away_keeps_its_spread_in_float32():
    # The mean is a third of a rounding step of float32 away from what float32 can hold.
    x = torch.tensor([[0.0], [0.0], [1.0]]).div(1024) + 8192
    y = torch.tensor([[0.0], [2.0], [2.0]]).div(1024) + 8192
    want = BURES(x.double(), Cloud(y.double()), seeded(0)).item()
    assert BURES(x, Cloud(y), seeded(0)).item() == pytest.approx(want, rel=1e-4)
    assert BURES.velocity(x, Cloud(y), seeded(0)).value.item() == pytest.approx(want, rel=1e-4)
