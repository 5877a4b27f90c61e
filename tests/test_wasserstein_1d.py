"""Transport on a line: known values, Gaussians, every exponent, closed form against autograd, the plan."""

import json
import math
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.wasserstein import Wasserstein
from dmviz.losses.wasserstein_1d import Wasserstein1d

FOLDER = Path(__file__).parent / "known"
KNOWN = json.loads((FOLDER / "transport_values.json").read_text())
MORE = json.loads((FOLDER / "transport_more.json").read_text())
POWERS = (1.0, 1.5, 2.0, 3.0, 4.0)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def column(numbers):
    return tensor(numbers)[:, None]


def clouds(n, m, seed=0):
    rng = seeded(seed)
    x, y = torch.randn(n, 1, generator=rng, dtype=torch.float64), torch.randn(m, 1, generator=rng).double() + 1
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("w1d")])
def test_known_arrays(name):
    case = KNOWN[name]
    inputs, p = case["inputs"], float(name[name.index("_p") + 2])
    a, b = (tensor(inputs[side]) if side in inputs else None for side in ("a", "b"))
    x, target = column(inputs["x"]), Cloud(column(inputs["y"]), b)
    assert Wasserstein1d(p)(x, target, seeded(0), a).item() == pytest.approx(case["value"], abs=1e-11)
    assert Wasserstein1d(p).velocity(x, target, seeded(0), a).value.item() == pytest.approx(case["value"], abs=1e-11)


def test_sorted_differences():
    case = MORE["sorted_w2sq_1d"]
    x, target = column(case["inputs"]["a"]), Cloud(column(case["inputs"]["b"]))
    assert Wasserstein1d()(x, target, seeded(0)).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_gradient_of_equal_arrays():
    x, target = column([0.0, 1.0, 3.0, 7.0]), Cloud(column([2.0, 2.5, 5.0, 10.0]))
    assert torch.allclose(-Wasserstein1d().velocity(x, target, seeded(0)).v[:, 0] / 4, tensor([-1, -0.75, -1, -1.5]))


def gaussian_lattice(inputs, step):
    """Two Gaussians as the same weights on images of one lattice, which passes through where the images cross."""
    dm, ds = inputs["m1"] - inputs["m2"], inputs["s1"] - inputs["s2"]
    cross = -dm / ds if ds else 0.0
    z = cross + step * torch.arange(math.ceil((-9 - cross) / step), math.floor((9 - cross) / step) + 1).double()
    w = torch.exp(-0.5 * z.square())
    x, y = (inputs[f"m{i}"] + inputs[f"s{i}"] * z for i in (1, 2))
    return x[:, None], w / w.sum(), Cloud(y[:, None], w / w.sum())


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("w1_gauss1d")])
def test_gaussians_have_the_mean_of_a_folded_normal(name):
    def at(step):
        x, a, target = gaussian_lattice(KNOWN[name]["inputs"], step)
        return Wasserstein1d(1.0)(x, target, seeded(0), a).item()

    # The kink costs the sum an error of order step^2, which two steps take out.
    assert (4 * at(0.01) - at(0.02)) / 3 == pytest.approx(KNOWN[name]["value"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("w2sq_gauss1d")])
def test_gaussians_have_the_square_of_means_and_deviations(name):
    x, a, target = gaussian_lattice(KNOWN[name]["inputs"], 0.1)
    assert Wasserstein1d()(x, target, seeded(0), a).item() == pytest.approx(KNOWN[name]["value"], abs=1e-10)


def test_uniform_laws():
    u = (torch.arange(4000).double() + 0.5) / 4000
    value = Wasserstein1d()(u[:, None], Cloud((2 + 3 * u)[:, None]), seeded(0))
    assert value.item() == pytest.approx(28 / 3, abs=1e-6)  # U[0, 1] and U[2, 5], midpoints off by 1/4000^2


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize(("n", "m"), [(12, 12), (9, 30), (30, 9), (2, 5)])
def test_closed_form_equals_autograd_and_differences(n, m, p):
    x, a, target = clouds(n, m, seed=n)
    for weight, cloud in ((a, target), (None, Cloud(target.x)), (None, target), (a, Cloud(target.x))):
        got, want = (f(Wasserstein1d(p), x, cloud, seeded(0), weight) for f in (velocity_of, autograd_velocity))
        assert torch.allclose(got.v, want.v, rtol=1e-9, atol=1e-9)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)
    h = torch.zeros_like(x)
    h[1] = 1e-6
    slope = (Wasserstein1d(p)(x + h, target, seeded(0), a) - Wasserstein1d(p)(x - h, target, seeded(0), a)) / 2e-6
    v = Wasserstein1d(p).velocity(x, target, seeded(0), a).v
    assert (-slope / a[1]).item() == pytest.approx(v[1, 0].item(), rel=1e-4)


@pytest.mark.parametrize("p", POWERS)
def test_a_shift_costs_its_power_and_pulls_all_alike(p):
    x, a, _ = clouds(20, 3)
    answer = velocity_of(Wasserstein1d(p), x, Cloud(x + 2.0, a), seeded(0), a)
    assert answer.value.item() == pytest.approx(2.0**p, rel=1e-12)
    assert torch.allclose(answer.v[1:], torch.full_like(x[1:], p * 2.0 ** (p - 1)), rtol=1e-9)


@pytest.mark.parametrize("p", POWERS)
def test_points_that_have_met_are_at_rest(p):
    x = column([0.0, 0.0, 1.0, 1.0, 5.0])
    for f in (velocity_of, autograd_velocity):
        answer = f(Wasserstein1d(p), x, Cloud(x), seeded(0))
        assert answer.value.item() == 0
        assert torch.equal(answer.v, torch.zeros_like(x))


def test_it_is_what_exact_transport_finds_on_a_line():
    x, a, target = clouds(40, 25)
    for p in (1, 2):
        got = Wasserstein1d(float(p)).velocity(x, target, seeded(0), a)
        want = Wasserstein(p).velocity(x, target, seeded(0), a)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)
        assert torch.allclose(got.v, want.v, atol=1e-9)


def test_roots_grow_with_the_exponent():
    x, a, target = clouds(15, 20)
    roots = [Wasserstein1d(p)(x, target, seeded(0), a).item() ** (1 / p) for p in POWERS]
    assert roots == sorted(roots)
    assert roots[0] < roots[-1]


def test_points_in_a_plane_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"^Wasserstein1d: points must lie on a line, one column, got 2\. Take"):
        Wasserstein1d()(torch.zeros(3, 2), Cloud(torch.zeros(3, 2)), seeded(0))
