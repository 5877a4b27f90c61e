"""Sliced Wasserstein: known values, the 1-D transport under it, closed form against autograd, spread of directions."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._lines import Staircase, power_on_lines, pull_on_lines
from dmviz.losses._slicing import Slices, even_directions, frames, sliced_power, sliced_velocity, unit_vectors
from dmviz.losses._sorting import in_order, places, ranked
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_values.json").read_text())
KINDS = ("auto", "quasi_random", "orthogonal", "random")


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def pair(inputs):
    """Points and weights of a known problem, float64; weights None where they are uniform."""
    a, b = (tensor(inputs[w]) if w in inputs else None for w in ("a", "b"))
    return tensor(inputs["X"]), a, Cloud(tensor(inputs["Y"]), b)


def clouds(n, m, d, seed=0, dtype=torch.float64, weighted=True):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=dtype)
    y = torch.randn(m, d, generator=rng, dtype=dtype) * 0.6 + 1
    if not weighted:
        return x, None, Cloud(y)
    a, b = torch.rand(n, generator=rng, dtype=dtype), torch.rand(m, generator=rng, dtype=dtype)
    a[0] = b[-1] = 0  # points without mass
    return x, a / a.sum(), Cloud(y, b / b.sum())


def close(got, case):
    want = tensor(case["value"])
    assert (got - want).abs().max() <= case["tolerance"] * want.abs().clamp_min(1).max()


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith("w1d_")])
def test_transport_on_a_line_has_its_exact_value(name):
    case = KNOWN[name]
    x, y = (tensor(case["inputs"][k])[None] for k in ("x", "y"))
    a, b = (tensor(case["inputs"][k]) if k in case["inputs"] else None for k in ("a", "b"))
    power = int(name.split("_p")[1][0])
    close(power_on_lines(x, a, y, b, power)[0], case)
    if power < 3:  # the closed form serves p = 1 and 2
        close(pull_on_lines(x, a, Staircase.of(y, b), power).value[0], case)


def test_transport_on_a_line_has_the_reference_gradient():
    x = tensor([[0.0, 1, 3, 7]])
    pull = pull_on_lines(x, None, Staircase.of(tensor([[2.0, 2.5, 5, 10]]), None), 2)
    assert torch.equal(-pull.v / 4, tensor([[-1.0, -0.75, -1, -1.5]]))


@pytest.mark.parametrize("name", [k for k in KNOWN if "gauss1d" in k])
def test_transport_between_gaussians_on_a_line(name):
    # 200,001 mid quantiles a side: the tails left out cost less than 2e-4.
    case, power = KNOWN[name], int(name[1])
    level = (torch.arange(200_001, dtype=torch.float64) + 0.5) / 200_001
    z = torch.special.ndtri(level)
    i = case["inputs"]
    x, y = (i["m1"] + i["s1"] * z)[None], (i["m2"] + i["s2"] * z)[None]
    assert power_on_lines(x, None, y, None, power)[0].item() == pytest.approx(case["value"], abs=2e-4)


def test_uniform_laws_on_a_line():
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    value = power_on_lines(grid[None], None, (2 + 3 * grid)[None], None, 2)[0]  # U[0, 1] against U[2, 5]
    assert value.item() == pytest.approx(28 / 3, abs=1e-6)


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith(("sw1_pow_emp", "sw2_pow_emp"))])
def test_even_angles_reach_the_exact_mean_over_all_angles(name):
    # 4096 even angles of a curve with kinks: the error is of the order 1 / 4096^2, times the kinks.
    case, power = KNOWN[name], int(name[2])
    x, a, target = pair(case["inputs"])
    loss = SlicedWasserstein(power=power, slices=4096, draw="fixed")
    assert loss(x, target, seeded(0), a).item() == pytest.approx(case["value"], abs=2e-6)
    assert loss.velocity(x, target, seeded(0), a).value.item() == pytest.approx(case["value"], abs=2e-6)


@pytest.mark.parametrize("name", ["sw1_fixed_proj_equal", "sw2_fixed_proj", "sw2_fixed_proj_equal"])
def test_each_fixed_direction_has_its_value(name):
    case = KNOWN[name]
    x, a, target = pair(case["inputs"])
    theta = tensor(case["inputs"]["theta"])
    got = power_on_lines(theta @ x.T, a, theta @ target.x.T, target.weight, int(name[2]))
    close(got, case)


def test_gradient_on_fixed_directions():
    case = KNOWN["sw2_fixed_proj_grad"]
    x, _, target = pair(case["inputs"])
    slices = Slices.even(tensor(case["inputs"]["theta"]))
    v, value = sliced_velocity(x, target, slices, None, 2)
    close(-v / len(x), case)
    assert value.item() == pytest.approx(case["inputs"]["value"], abs=1e-12)
    assert sliced_power(x, target, slices, None, 2).item() == pytest.approx(case["inputs"]["value"], abs=1e-12)


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith("sw_const")])
def test_a_shift_costs_its_length_to_the_power_times_a_known_constant(name):
    case = KNOWN[name]
    d, p = case["inputs"]["d"], case["inputs"]["p"]
    x = torch.randn(20, d, generator=seeded(2), dtype=torch.float64)
    shift = torch.linspace(1, 2, d, dtype=torch.float64)
    value = SlicedWasserstein(power=p, slices=4096, draw="fixed")(x, Cloud(x + shift), seeded(0)).item()
    # Orthogonal frames in 5-D are still chance: 4096 of them err by less than half a percent.
    want = case["value"] * shift.norm().item() ** p
    assert value == pytest.approx(want, rel=1e-5 if d == 2 else 5e-3)


def test_an_orthonormal_basis_measures_a_shift_exactly():
    case = KNOWN["sw_orthobasis_translation"]
    x = torch.randn(50, 3, generator=seeded(3), dtype=torch.float64)
    for seed in range(3):
        loss = SlicedWasserstein(directions="orthogonal", slices=3)
        close(loss(x, Cloud(x + tensor(case["inputs"]["D"])), seeded(seed)), case)


def gaussian_cloud(n, mean, covariance, seed):
    z = torch.randn(n, 2, generator=seeded(seed), dtype=torch.float64)
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / n)).T  # moments exact, shape up to chance
    return tensor(mean) + z @ torch.linalg.cholesky(tensor(covariance)).T


def test_two_gaussians_in_the_plane():
    # Moments are exact, the shapes of 20,000 draws are not: a relative error of about 1 / sqrt(n) = 0.7 percent.
    case = KNOWN["sw2sq_gauss2d"]
    i = case["inputs"]
    x, y = gaussian_cloud(20_000, i["m1"], i["S1"], 1), gaussian_cloud(20_000, i["m2"], i["S2"], 2)
    value = SlicedWasserstein(slices=64).velocity(x, Cloud(y), seeded(0)).value.item()
    assert value == pytest.approx(case["value"], rel=7e-3)


@pytest.mark.parametrize(("n", "m", "d"), [(9, 9, 1), (7, 7, 2), (5, 9, 3), (40, 13, 1), (30, 300, 5), (90, 30, 20)])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
def test_closed_form_equals_autograd_with_and_without_memo(n, m, d, power, draw):
    for kind, weighted in product(KINDS, (True, False)):
        x, a, target = clouds(n, m, d, seed=n, weighted=weighted)
        for source, cloud in ((a, target), (None, target), (a, Cloud(target.x))):
            loss = SlicedWasserstein(power=power, slices=12, draw=draw, directions=kind)
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            for aimed in (cloud, loss.prepare(cloud)):
                got = velocity_of(loss, x, aimed, seeded(3), source)
                assert torch.allclose(got.v, want.v, rtol=0, atol=1e-10)
                assert got.value.item() == pytest.approx(want.value.item(), abs=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_points_that_coincide_have_finite_velocity_and_no_cost(power):
    x = torch.zeros(6, 3, dtype=torch.float64)
    loss = SlicedWasserstein(power=power)
    for y in (x, x[:4]):
        answer = velocity_of(loss, x, Cloud(y), seeded(0))
        assert answer.value.item() == 0
        assert torch.equal(answer.v, torch.zeros_like(x))
        assert torch.isfinite(autograd_velocity(loss, x, Cloud(y), seeded(0)).v).all()


def test_sliced_is_at_most_the_assignment_over_the_dimension():
    from scipy.optimize import linear_sum_assignment

    for seed, d in product(range(4), (2, 3, 6)):
        x, _, target = clouds(25, 25, d, seed=seed, weighted=False)
        cost = torch.cdist(x, target.x).square().numpy()
        w2 = cost[linear_sum_assignment(cost)].mean()
        # Whole orthonormal frames: the bound then holds for the drawn directions, not only on average.
        sliced = SlicedWasserstein(directions="orthogonal", slices=6)(x, target, seeded(seed)).item()
        assert sliced <= w2 / d + 1e-12


@pytest.mark.parametrize(
    ("d", "count", "share"), [(2, 32, 0.2), (3, 128, 0.5), (4, 64, 0.75), (16, 64, 0.75), (64, 64, 0.75)]
)
def test_default_directions_beat_chance(d, count, share):
    x, _, target = clouds(150, 150, d, seed=5, weighted=False)
    exact = SlicedWasserstein(slices=4096).velocity(x, target, seeded(1)).v

    def error(kind):
        runs = [SlicedWasserstein(slices=count, directions=kind).velocity(x, target, seeded(9, k)).v for k in range(8)]
        return math.sqrt(sum((v - exact).square().sum().item() for v in runs))

    assert error("auto") <= share * error("random")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_directions_are_unit_vectors_with_isotropic_mean(kind, d):
    draws = torch.cat([unit_vectors(kind, 14, d, seeded(0, k)) for k in range(300)])
    assert torch.allclose(draws.norm(dim=1), torch.ones(len(draws), dtype=torch.float64), atol=1e-12)
    # E theta theta^T = I / d; 4,200 vectors in 300 draws err by less than 0.03 an entry.
    assert (draws.T @ draws / len(draws) - torch.eye(d) / d).abs().max() < 0.03


def test_even_angles_leave_equal_gaps_on_the_half_circle():
    theta = unit_vectors("quasi_random", 10, 2, seeded(0))
    angle = torch.atan2(theta[:, 1], theta[:, 0]).remainder(math.pi).sort().values
    assert torch.allclose(angle.diff(), torch.full((9,), math.pi / 10, dtype=torch.float64))


def test_frames_lean_to_no_side():
    # Without its signs mended, QR always gives a first entry of one sign; 2,000 draws err by 0.013.
    assert frames(2000, 3, 3, seeded(0)).mean(0).abs().max() < 0.05


def test_orthogonal_directions_come_in_frames():
    theta = unit_vectors("orthogonal", 8, 4, seeded(1))
    for frame in (theta[:4], theta[4:]):
        assert torch.allclose(frame @ frame.T, torch.eye(4, dtype=torch.float64), atol=1e-12)


def test_the_spiral_is_even_on_the_half_sphere():
    moment = even_directions(128, 3)
    assert (moment.T @ moment / 128 - torch.eye(3) / 3).abs().max() < 5e-3


def test_fixed_directions_ignore_rng_and_fresh_ones_follow_it():
    x, a, target = clouds(20, 30, 2)
    fixed, fresh = SlicedWasserstein(draw="fixed", slices=4), SlicedWasserstein(slices=4)
    assert fixed(x, target, seeded(1), a) == fixed(x, target, seeded(2), a)
    assert fixed(x, target, seeded(1), a) != SlicedWasserstein(draw="fixed", slices=4, direction_seed=1)(
        x, target, seeded(1), a
    )
    assert fresh(x, target, seeded(1), a) == fresh(x, target, seeded(1), a)
    assert fresh(x, target, seeded(1), a) != fresh(x, target, seeded(2), a)


@pytest.mark.parametrize("power", [1, 2])
def test_float32_far_from_the_origin_keeps_four_digits(power):
    x, _, target = clouds(200, 130, 3)
    far, far_y = (x + 1e4).float(), (target.x + 1e4).float()
    near = SlicedWasserstein(power=power).velocity(far.double() - 1e4, Cloud(far_y.double() - 1e4), seeded(0))
    got = SlicedWasserstein(power=power).velocity(far, Cloud(far_y), seeded(0))
    assert got.value.item() == pytest.approx(near.value.item(), rel=1e-4)
    assert (got.v - near.v).norm() <= 1e-4 * near.v.norm() + (0.02 if power == 1 else 0)  # p = 1 jumps at ties


def test_a_mass_too_small_for_rounding_moves_as_a_small_one_does():
    x, _, target = clouds(30, 40, 2, weighted=False)

    def pull(mass):
        a = torch.full((30,), 1 / 29, dtype=torch.float64)
        a[7] = mass
        return SlicedWasserstein().velocity(x, target, seeded(0), a / a.sum()).v[7]

    assert (pull(1e-19) - pull(1e-9)).norm() <= 1e-3 * pull(1e-9).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_sort_and_threads_change_nothing(dtype):
    rows = torch.randn(40, 5000, generator=seeded(0), dtype=dtype)
    rows[0, :50] = 0.0
    rows[1, :3] = torch.tensor([float("inf"), -float("inf"), -0.0])
    want = rows.sort(dim=1).values
    assert torch.equal(rows.gather(1, ranked(rows)), want)
    assert torch.equal(in_order(rows), want)
    one_by_one = torch.cat([ranked(row[None]) for row in rows])  # small enough to run on one thread
    assert torch.equal(one_by_one, ranked(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_places_count_what_is_below(dtype):
    rows = torch.randint(0, 40, (7, 90), generator=seeded(0)).to(dtype).sort(dim=1).values
    sought = torch.randint(-2, 43, (7, 60), generator=seeded(1)).to(dtype)
    below = (rows[:, None] < sought[:, :, None]).sum(-1)
    assert torch.equal(places(rows, sought), below)
    assert torch.equal(places(rows, sought, right=True), (rows[:, None] <= sought[:, :, None]).sum(-1))


def test_threads_that_sort_at_the_same_time_do_not_mix():
    rows = [torch.randn(30, 6000, generator=seeded(k)) for k in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for got, row in zip(pool.map(ranked, rows), rows, strict=True):
            assert torch.equal(got, row.sort(dim=1, stable=True).indices)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_sort():
    rows = torch.randn(60, 5000, generator=seeded(0))
    want = ranked(rows)  # the threads of this process are now in use
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(ranked(rows), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_kept_target_serves_several_numbers_of_particles():
    loss = SlicedWasserstein(draw="fixed", slices=8)
    x, _, target = clouds(50, 20, 2, weighted=False)
    aimed = loss.prepare(target)
    for n in (50, 20, 30, 50):
        want = loss.velocity(x[:n], target, seeded(0))
        got = loss.velocity(x[:n], aimed, seeded(0))
        assert torch.allclose(got.v, want.v, atol=1e-12)


def test_too_many_dimensions_for_sobol_is_one_sentence():
    with pytest.raises(ValueError, match=r"at most 21,201 dimensions, got 30000\. Choose auto"):
        unit_vectors("quasi_random", 4, 30_000, seeded(0))


def test_flow_between_round_gaussians_follows_its_exact_solution():
    # flow_sw2_iso of the reference: mean m e^(-t/d), deviation s* + (s - s*) e^(-t/d). Euler with 200 steps errs by
    # 0.1 percent; 3,000 draws with exact moments, not exactly Gaussian, by about one.
    x = gaussian_cloud(3000, [3.0, 0.0], [[0.25, 0.0], [0.0, 0.25]], 1)
    loss = SlicedWasserstein(slices=32, draw="fixed")
    target = loss.prepare(Cloud(gaussian_cloud(3000, [0.0, 0.0], [[4.0, 0.0], [0.0, 4.0]], 2)))
    for _ in range(200):
        x = x + loss.velocity(x, target, seeded(0)).v / 400
    assert x.mean(0).tolist() == pytest.approx([1.8195919791379003, 0.0], abs=3e-3)
    assert x.std(0, correction=0).tolist() == pytest.approx([1.0902040104310498] * 2, rel=0.015)
