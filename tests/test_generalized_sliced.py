"""Generalized sliced Wasserstein: fixed functions, the linear case, closed form against autograd, circles."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import generalized_sliced
from dmviz.losses.generalized_sliced import GeneralizedSliced, distances, factors, monomials, polynomials
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())
DEFINING = ("linear", "cubic", "quintic", "circular")


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) * 0.6 + 0.5
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


def on(loss, theta, monkeypatch):
    monkeypatch.setattr(GeneralizedSliced, "_directions", lambda *_: theta)
    return loss


def both(loss, x, target):
    return [loss(x, target, seeded(0)).item(), loss.velocity(x, target, seeded(0)).value.item()]


def test_one_cubic_has_its_value(monkeypatch):
    case = KNOWN["gsw_poly3_fixed"]
    i = case["inputs"]
    assert factors(2, 3).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]  # the reference counts from y^3
    loss = on(GeneralizedSliced(defining="cubic"), tensor([i["theta"][::-1]]), monkeypatch)
    for value in both(loss, tensor(i["X"]), Cloud(tensor(i["Y"]))):
        assert value == pytest.approx(case["value"], abs=case["tolerance"])


def test_one_circle_has_its_value(monkeypatch):
    case = KNOWN["gsw_circular_fixed"]
    i = case["inputs"]
    loss = on(GeneralizedSliced(defining="circular", radius=2.0), tensor([[0.6, 0.8]]), monkeypatch)
    for value in both(loss, tensor(i["X"]), Cloud(tensor(i["Y"]))):
        assert value == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_degree_one_is_sliced_wasserstein(power, draw, d):
    x, a, target = clouds(20, 30, d)
    bent = GeneralizedSliced(power=power, defining="linear", draw=draw).velocity(x, target, seeded(4), a)
    straight = SlicedWasserstein(power=power, draw=draw).velocity(x, target, seeded(4), a)
    assert bent.value.item() == pytest.approx(straight.value.item(), rel=1e-12)
    assert torch.allclose(bent.v, straight.v, atol=1e-10)


@pytest.mark.parametrize(("n", "m", "d"), [(7, 7, 1), (9, 9, 2), (12, 8, 3), (10, 20, 5)])
@pytest.mark.parametrize("defining", DEFINING)
def test_closed_form_equals_autograd(n, m, d, defining):
    for power, draw in product((1, 2), ("fresh", "fixed")):
        loss = GeneralizedSliced(power=power, defining=defining, draw=draw, slices=9)
        x, a, target = clouds(n, m, d, n)
        for source, cloud in ((a, target), (None, Cloud(target.x))):
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            got = velocity_of(loss, x, cloud, seeded(3), source)
            assert torch.allclose(got.v, want.v, rtol=1e-9, atol=1e-9)
            assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


@pytest.mark.parametrize("defining", ["cubic", "circular"])
def test_velocity_is_minus_the_difference_quotient(defining):
    x, a, target = clouds(12, 15, 3, 2)
    loss = GeneralizedSliced(defining=defining, slices=8)
    v = loss.velocity(x, target, seeded(1), a).v
    for i, k in ((1, 0), (7, 2)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-6
        slope = (loss(x + h, target, seeded(1), a) - loss(x - h, target, seeded(1), a)) / 2e-6
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), rel=1e-5, abs=1e-5)


def test_polynomials_in_blocks_are_the_sum_over_all_words():
    x = torch.randn(3000, 4, generator=seeded(0), dtype=torch.float64)  # more than one block
    theta = torch.randn(2, monomials(4, 3), generator=seeded(1), dtype=torch.float64)
    read = polynomials(x, theta, 3)
    for i in (0, 1500, 2999):
        want = sum(theta[:, c] * x[i, list(word)].prod() for c, word in enumerate(factors(4, 3).tolist()))
        assert torch.allclose(read[:, i], want)


@pytest.mark.parametrize("d", [2, 4])
def test_distances_are_euclidean_and_finite_on_a_centre(d):
    x, centres = (torch.randn(n, d, generator=seeded(n), dtype=torch.float64) for n in (9, 5))
    assert torch.allclose(distances(x, centres), torch.cdist(centres, x), atol=1e-12)
    leaf = centres[:1].clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(distances(leaf, centres).sum(), leaf)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_centres_lie_all_around(d):
    loss = GeneralizedSliced(defining="circular", slices=5)
    draws = torch.cat([loss._directions(d, seeded(0, k)) for k in range(600)])
    assert torch.allclose(draws.norm(dim=1), torch.ones(len(draws), dtype=torch.float64), atol=1e-12)
    # Half circles would give a mean of up to 2 / pi; 600 draws of five err by about 0.04.
    assert draws.mean(0).abs().max() < 0.1


def test_far_circles_read_like_lines():
    x, a, target = clouds(20, 30, 2)
    loss = GeneralizedSliced(defining="circular", radius=1e3, draw="fixed", slices=64)
    sliced = SlicedWasserstein(draw="fixed", slices=2048)(x, target, seeded(0), a).item()
    assert loss(x, target, seeded(0), a).item() == pytest.approx(sliced, rel=0.02)


def test_the_origin_matters_to_curved_functions():
    x, a, target = clouds(10, 12, 2)
    for defining in ("cubic", "circular"):
        loss = GeneralizedSliced(defining=defining)
        moved = loss(x + 1, Cloud(target.x + 1, target.weight), seeded(0), a).item()
        assert abs(moved - loss(x, target, seeded(0), a).item()) > 1e-3


def test_too_many_monomials_are_refused_in_one_sentence():
    x = torch.zeros(2, 64)
    with pytest.raises(ValueError, match=r"at most 50,000 monomials, and degree 5 in 64 dimensions has 10,424,128\."):
        GeneralizedSliced(defining="quintic")(x, Cloud(x), seeded(0))


@pytest.mark.parametrize("defining", DEFINING)
def test_float32_stays_float32_and_coinciding_points_are_no_trouble(defining):
    x = torch.zeros(4, 3)
    for cloud in (Cloud(x), Cloud(x[:2]), Cloud(x + 1)):
        answer = velocity_of(GeneralizedSliced(defining=defining), x, cloud, seeded(0))
        assert answer.v.dtype == answer.value.dtype == torch.float32
        assert torch.isfinite(answer.v).all()


def test_functions_in_groups_are_the_same(monkeypatch):
    x, a, target = clouds(30, 20, 3)
    for defining in DEFINING:
        loss = GeneralizedSliced(defining=defining)
        monkeypatch.setattr(generalized_sliced, "_READ", 1 << 20)
        once, value = loss.velocity(x, target, seeded(0), a), loss(x, target, seeded(0), a)
        monkeypatch.setattr(generalized_sliced, "_READ", 333)
        again = loss.velocity(x, target, seeded(0), a)
        assert torch.allclose(once.v, again.v, rtol=1e-12, atol=1e-10)
        assert again.value.item() == pytest.approx(once.value.item(), rel=1e-12)
        assert loss(x, target, seeded(0), a).item() == pytest.approx(value.item(), rel=1e-12)
