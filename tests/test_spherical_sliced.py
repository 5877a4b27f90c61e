"""Spherical sliced Wasserstein: transport around circles against a linear programme, then the loss built on it."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import ot
import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._circle import power_on_circles, power_to_even, pull_on_circles
from dmviz.losses.spherical_sliced import SphericalSliced, turns

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())


def tensor(numbers):
    return torch.tensor(np.asarray(numbers), dtype=torch.float64)


def programme(t, a, s, b, power):
    """Transport with the shorter way round as its cost."""
    gap = np.abs(t[:, None] - s[None])
    cost = np.minimum(gap, 1 - gap) ** power
    return ot.emd2(a / a.sum(), b / b.sum(), cost)


def around(n, m, seed, weighted):
    rng = np.random.default_rng(seed)
    t, s = rng.random(n), rng.random(m) * 0.3 + rng.random()
    a, b = (rng.dirichlet(np.ones(k)) if weighted else np.full(k, 1 / k) for k in (n, m))
    return t, a, s % 1, b


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) + 1
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


@pytest.mark.parametrize("power", [1, 2])
def test_transport_around_a_circle_has_its_value(power):
    case = KNOWN[f"circle_w{power}_pow"]
    i = case["inputs"]
    sides = tensor([i["u"]]), tensor(i["a"]), tensor([i["v"]]), tensor(i["b"])
    assert power_on_circles(*sides, power).item() == pytest.approx(case["value"], abs=case["tolerance"])
    assert pull_on_circles(*sides, power).value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_the_even_law_has_its_value_and_is_the_limit_of_many_points():
    case = KNOWN["circle_w2sq_uniform"]
    u = tensor([case["inputs"]["u"]])
    assert power_to_even(u, None).item() == pytest.approx(case["value"], abs=case["tolerance"])
    even = (torch.arange(4000, dtype=torch.float64)[None] + 0.5) / 4000
    assert power_on_circles(u, None, even, None, 2).item() == pytest.approx(case["value"], abs=1e-7)
    a = tensor([0.1, 0.2, 0.3, 0.4])
    want = power_on_circles(u, a, even, None, 2).item()
    assert power_to_even(u, a).item() == pytest.approx(want, abs=1e-7)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (6, 6), (8, 8), (7, 12), (20, 3)])
@pytest.mark.parametrize("weighted", ["both", "one", "other", "neither"])
def test_transport_around_a_circle_is_the_linear_programme(power, n, m, weighted):
    for seed in range(6):
        t, a, s, b = around(n, m, seed, True)
        a = a if weighted in ("both", "one") else np.full(n, 1 / n)
        b = b if weighted in ("both", "other") else np.full(m, 1 / m)
        given_a = tensor(a) if weighted in ("both", "one") else None
        given_b = tensor(b) if weighted in ("both", "other") else None
        want = programme(t, a, s, b, power)
        got = power_on_circles(tensor([t]), given_a, tensor([s]), given_b, power).item()
        closed = pull_on_circles(tensor([t]), given_a, tensor([s]), given_b, power).value.item()
        assert got == pytest.approx(want, abs=1e-12)
        assert closed == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_turning_a_circle_changes_nothing(power):
    t, a, s, b = (tensor(z) for z in around(9, 7, 1, True))
    once = power_on_circles(t[None], a, s[None], b, power).item()
    for turn in (0.1, 0.37, 0.9):
        again = power_on_circles(((t + turn) % 1)[None], a, ((s + turn) % 1)[None], b, power).item()
        assert again == pytest.approx(once, abs=1e-13)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_pull_around_a_circle_is_the_difference_quotient(power, weighted):
    for n, m in ((6, 6), (6, 9)):
        t, a, s, b = (tensor(z) for z in around(n, m, 3, weighted))
        v = pull_on_circles(t[None], a, s[None], b, power).v[0]
        for i in range(n):
            h = torch.zeros(n, dtype=torch.float64)
            h[i] = 1e-7
            up, down = (power_on_circles((t + sign * h)[None], a, s[None], b, power).item() for sign in (1, -1))
            assert -(up - down) / 2e-7 / a[i].item() == pytest.approx(v[i].item(), abs=1e-5)


def test_one_fixed_plane_has_its_value(monkeypatch):
    case = KNOWN["ssw2_fixed_frame"]
    i = case["inputs"]
    monkeypatch.setattr(SphericalSliced, "_planes", lambda *_: tensor([i["U"]]))
    x, a, target = tensor(i["X"]), tensor(i["a"]), Cloud(tensor(i["Y"]), tensor(i["b"]))
    for value in (
        SphericalSliced()(x, target, seeded(0), a),
        SphericalSliced().velocity(x, target, seeded(0), a).value,
    ):
        assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_two_points_on_the_circle():
    case = KNOWN["ssw_dirac_s1"]
    angle = case["inputs"]["angle"]
    x, y = tensor([[math.cos(2.9), math.sin(2.9)]]), tensor([[math.cos(2.9 + angle), math.sin(2.9 + angle)]])
    for seed in range(2):  # across the cut at pi, whatever the seed
        assert SphericalSliced()(x, Cloud(y), seeded(seed)).item() == pytest.approx(case["value"], abs=1e-12)


def test_lengths_are_not_seen():
    x, a, target = clouds(10, 12, 3)
    once = SphericalSliced()(x, target, seeded(0), a).item()
    longer = SphericalSliced()(
        x * torch.linspace(0.1, 9, 10)[:, None], Cloud(target.x * 7, target.weight), seeded(0), a
    )
    assert longer.item() == pytest.approx(once, abs=1e-12)


def test_turning_both_clouds_in_the_plane_changes_nothing():
    x, a, target = clouds(10, 12, 2)
    turn = tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]])
    for power in (1, 2):
        loss = SphericalSliced(power=power)
        turned = loss(x @ turn, Cloud(target.x @ turn, target.weight), seeded(1), a).item()
        assert turned == pytest.approx(loss(x, target, seeded(0), a).item(), abs=1e-12)


@pytest.mark.parametrize(("n", "m", "d"), [(7, 7, 2), (9, 9, 3), (12, 8, 3), (10, 20, 6)])
def test_closed_form_equals_autograd(n, m, d):
    for power, draw in product((1, 2), ("fresh", "fixed")):
        loss = SphericalSliced(power=power, draw=draw, circles=7)
        x, a, target = clouds(n, m, d, n)
        for source, cloud in ((a, target), (None, Cloud(target.x))):
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            got = velocity_of(loss, x, cloud, seeded(3), source)
            assert torch.allclose(got.v, want.v, rtol=1e-8, atol=1e-10)
            assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


def test_velocity_is_minus_the_difference_quotient_and_along_the_sphere():
    x, a, target = clouds(12, 15, 3, 2)
    for power in (1, 2):
        loss = SphericalSliced(power=power, circles=6)
        v = loss.velocity(x, target, seeded(1), a).v
        assert (v * x).sum(1).abs().max() < 1e-12
        for i, k in ((1, 0), (7, 2)):
            h = torch.zeros_like(x)
            h[i, k] = 1e-7
            slope = (loss(x + h, target, seeded(1), a) - loss(x - h, target, seeded(1), a)) / 2e-7
            assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-5)


def test_following_it_on_the_sphere_reaches_the_target():
    x, _, target = clouds(40, 40, 3, 4)
    x, y = (torch.nn.functional.normalize(z, dim=1) for z in (x, target.x))
    loss, far = SphericalSliced(), SphericalSliced(draw="fixed", circles=200)
    start = far(x, Cloud(y), seeded(0)).item()
    for step in range(120):
        x = torch.nn.functional.normalize(x + 15 * loss.velocity(x, Cloud(y), seeded(0, step)).v, dim=1)
    assert far(x, Cloud(y), seeded(0)).item() < 0.02 * start


@pytest.mark.parametrize("power", [1, 2])
def test_the_origin_points_across_and_repeated_points_are_no_trouble(power):
    x = tensor([[0.0, 0, 0], [1.0, 0, 0], [1.0, 0, 0], [0.0, 0, 1]])
    loss = SphericalSliced(power=power)
    for cloud in (Cloud(x), Cloud(x[:2]), Cloud(-x)):
        for velocity in (velocity_of, autograd_velocity):
            answer = velocity(loss, x, cloud, seeded(0))
            assert torch.isfinite(answer.v).all()
            assert torch.equal(answer.v[0], torch.zeros(3, dtype=torch.float64))
    t, along = turns(x, torch.eye(3, dtype=torch.float64)[None, :, :2])
    assert t.tolist() == [[0, 0, 0, 0]]
    assert along[1][0].tolist() == [0, 1 / (2 * math.pi), 1 / (2 * math.pi), 0]


def test_a_cloud_in_another_order_is_at_zero():
    x = torch.randn(300, 3, generator=seeded(0))
    for power in (1, 2):
        value = SphericalSliced(power=power)(x, Cloud(x[torch.randperm(300, generator=seeded(1))]), seeded(2))
        assert abs(value.item()) <= 1e-12


def test_one_dimension_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="directions need 2 dimensions or more, got 1"):
        SphericalSliced()(torch.ones(2, 1), Cloud(torch.ones(2, 1)), seeded(0))
