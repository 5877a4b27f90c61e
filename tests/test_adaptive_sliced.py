"""Adaptive sliced Wasserstein: the von Mises-Fisher law, what learning reaches, closed form, what is carried."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
import scipy.special
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._slicing import sliced_slopes
from dmviz.losses._sphere_laws import (
    KAPPA,
    Climber,
    Pushforward,
    VonMisesFisher,
    noise,
    pac_penalty,
    pac_trust,
    vmf_angles,
    vmf_kl,
    vmf_ratio,
    vmf_square,
)
from dmviz.losses.adaptive_sliced import AdaptiveSliced
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())
ALL = [
    AdaptiveSliced(),
    AdaptiveSliced(learn="location", kappa=10),
    AdaptiveSliced(learn="kappa"),
    AdaptiveSliced(law="net"),
]


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) * 0.6 + 1
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


def even_levels(count=4096):
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith("vmf_kl")])
def test_divergence_of_the_law_has_its_value(name):
    case = KNOWN[name]
    found = vmf_kl(tensor(float(case["inputs"]["kappa"])), case["inputs"]["d"]).item()
    assert found == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("name", [k for k in KNOWN if k.startswith("vmf_sw_translation")])
def test_a_shift_along_the_location_costs_its_factor(name):
    case = KNOWN[name]
    kappa, d = tensor(float(case["inputs"]["kappa"])), case["inputs"]["d"]
    assert vmf_square(kappa, d).item() == pytest.approx(case["value"], abs=case["tolerance"])
    # The same through the sampler and the loss: 512 even levels err by far less than a percent.
    m = torch.eye(d, dtype=torch.float64)[0]
    law = VonMisesFisher(1.0, "both", 1.0)
    theta = law.directions((m, kappa.log()), noise(512, d, seeded(0)))
    x = torch.randn(5, d, generator=seeded(1), dtype=torch.float64)
    costs, _ = sliced_slopes(x, Cloud(x + 2 * m), theta, None, 2)
    assert costs.mean().item() == pytest.approx(4 * case["value"], rel=5e-3)


def test_the_penalty_has_its_value_and_its_best_trust():
    case = KNOWN["pac_penalty"]
    i = case["inputs"]
    found = pac_penalty(i["KL"], i["n"], i["diameter"], i["p"], i["delta"])
    assert found == pytest.approx(case["value"], abs=case["tolerance"])
    best = pac_trust(i["KL"], i["n"], i["diameter"], i["p"], i["delta"])
    least = pac_penalty(i["KL"], i["n"], i["diameter"], i["p"], i["delta"], best)
    for other in (0.9 * best, 1.1 * best, math.sqrt(i["n"])):
        assert least < pac_penalty(i["KL"], i["n"], i["diameter"], i["p"], i["delta"], other)


@pytest.mark.parametrize(("kappa", "d"), [(0.01, 2), (1.0, 3), (30.0, 5), (400.0, 20), (50.0, 200)])
def test_the_ratio_is_that_of_scaled_bessel_functions(kappa, d):
    want = scipy.special.ive(d / 2, kappa) / scipy.special.ive(d / 2 - 1, kappa)
    assert vmf_ratio(tensor(kappa), d).item() == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize(("kappa", "d"), [(KAPPA[0], 2), (KAPPA[1], 2), (KAPPA[0], 4096), (KAPPA[1], 4096)])
def test_extreme_laws_stay_finite_and_their_limits_hold(kappa, d):
    ratio, kl = vmf_ratio(tensor(kappa), d).item(), vmf_kl(tensor(kappa), d).item()
    # Amos 1974: k / (v + 1 + sqrt((v + 1)^2 + k^2)) < A < k / (v + sqrt((v + 2)^2 + k^2)) with v = d/2 - 1.
    v = d / 2 - 1
    assert kappa / (v + 1 + math.hypot(v + 1, kappa)) <= ratio * (1 + 1e-9)
    assert ratio <= kappa / (v + math.hypot(v + 2, kappa)) * (1 + 1e-9)
    assert 0 <= kl < math.inf
    if kappa < 1:
        assert kl == pytest.approx(kappa**2 / (2 * d), rel=1e-3, abs=1e-11)  # second order in kappa


def test_the_slope_of_the_divergence_is_its_difference_quotient():
    for kappa, d in ((0.5, 2), (7.0, 3), (40.0, 30)):
        k = tensor(kappa).requires_grad_(True)
        (slope,) = torch.autograd.grad(vmf_kl(k, d), k)
        up, down = (vmf_kl(tensor(kappa * (1 + h)), d).item() for h in (1e-5, -1e-5))
        assert slope.item() == pytest.approx((up - down) / (2e-5 * kappa), rel=1e-6)


@pytest.mark.parametrize(("kappa", "d"), [(1e-3, 2), (2.0, 2), (1.0, 3), (50.0, 100), (1e3, 5), (1e3, 1000)])
def test_angles_follow_their_law(kappa, d):
    cosine = vmf_angles(tensor(kappa), d, even_levels()).cos()
    assert cosine.mean().item() == pytest.approx(vmf_ratio(tensor(kappa), d).item(), abs=2e-6)
    assert cosine.square().mean().item() == pytest.approx(vmf_square(tensor(kappa), d).item(), abs=2e-6)


@pytest.mark.parametrize(("kappa", "d"), [(0.5, 2), (2.0, 3), (60.0, 10)])
def test_angles_move_with_kappa_as_their_slope_says(kappa, d):
    level = even_levels(50)
    k = tensor(kappa).requires_grad_(True)
    angle = vmf_angles(k, d, level)
    up, down = (vmf_angles(tensor(kappa * (1 + h)), d, level) for h in (1e-4, -1e-4))
    slope = (up - down) / (2e-4 * kappa)
    for i in (0, 20, 49):
        (found,) = torch.autograd.grad(angle[i], k, retain_graph=True)
        assert found.item() == pytest.approx(slope[i].item(), rel=0.02, abs=1e-4)


@pytest.mark.parametrize("law", [VonMisesFisher(3.0, "both", 1.0), Pushforward(1.0)])
@pytest.mark.parametrize("d", [2, 3, 9])
def test_directions_are_unit_vectors_and_differentiable(law, d):
    params = tuple(p.requires_grad_(True) for p in law.start(d, seeded(0)))
    theta = law.directions(params, noise(40, d, seeded(1)))
    assert torch.allclose(theta.norm(dim=1), torch.ones(40, dtype=torch.float64))
    found = torch.autograd.grad(theta[:, 0].sum() - law.penalty(params, theta), params)
    assert all(torch.isfinite(g).all() for g in found)


def test_the_network_starts_with_even_directions():
    theta = Pushforward(1.0).directions(Pushforward(1.0).start(3, seeded(0)), noise(4000, 3, seeded(1)))
    assert (theta.T @ theta / 4000 - torch.eye(3) / 3).abs().max() < 0.03


def test_a_nearly_even_law_is_sliced_wasserstein():
    x, a, target = clouds(30, 40, 3)
    even = SlicedWasserstein(draw="fixed", slices=2048)(x, target, seeded(0), a).item()
    for loss in (
        AdaptiveSliced(kappa=1e-3, iterations=0, slices=512),
        AdaptiveSliced(law="net", iterations=0, slices=512),
    ):
        found = sum(loss(x, target, seeded(k), a).item() for k in range(8)) / 8
        assert found == pytest.approx(even, rel=0.03)  # 4,096 random directions


def test_the_location_turns_to_a_shift_and_kappa_grows_with_trust():
    x = torch.randn(60, 3, generator=seeded(1), dtype=torch.float64)
    shift = tensor([3.0, 0, 0])
    loss = AdaptiveSliced(iterations=150, trust=1e3)
    (m, log_kappa), _, _, steps = loss.velocity(x, Cloud(x + shift), seeded(0)).carry.climber
    assert abs(m[0].item()) / m.norm().item() > 0.98
    assert steps == 150
    wary = AdaptiveSliced(iterations=150, trust=1e-2).velocity(x, Cloud(x + shift), seeded(0)).carry.climber.params[1]
    assert log_kappa.item() > 1.5
    assert wary.item() < -1.5  # the charge is nearly all there is: even is best
    value = loss(x, Cloud(x + shift), seeded(0)).item()
    assert 6 < value < 9 + 1e-9  # even directions give 9 / 3


def test_only_what_is_to_be_learned_moves():
    x, a, target = clouds(30, 40, 3)
    start = VonMisesFisher(1.0, "both", 1.0)
    for learn, moves in (("location", (True, False)), ("kappa", (False, True)), ("both", (True, True))):
        loss = AdaptiveSliced(learn=learn)
        drawn = seeded(5)
        noise(loss.slices, 3, drawn)
        before = start.start(3, drawn)
        after = loss.velocity(x, target, seeded(5), a).carry.climber.params
        assert tuple(not torch.equal(p, q) for p, q in zip(before, after, strict=True)) == moves


def test_the_network_gathers_directions_unless_they_repel():
    x = torch.randn(60, 4, generator=seeded(1), dtype=torch.float64)
    target = Cloud(x + tensor([3.0, 0, 0, 0]))
    free, apart = (AdaptiveSliced(law="net", iterations=80, repel=r)(x, target, seeded(0)).item() for r in (0.0, 1e3))
    assert free > 7  # of at most 9
    assert apart < 4  # even directions give 9 / 4


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_closed_form_equals_autograd(loss):
    for (n, m, d), power in product(((7, 7, 1), (9, 9, 2), (12, 8, 4)), (1, 2)):
        x, a, target = clouds(n, m, d, n)
        made = AdaptiveSliced(power=power, law=loss.law, learn=loss.learn, kappa=loss.kappa, slices=8, iterations=3)
        for source, cloud in ((a, target), (None, Cloud(target.x))):
            want = autograd_velocity(made, x, cloud, seeded(3), source)
            got = velocity_of(made, x, cloud, seeded(3), source)
            assert torch.allclose(got.v, want.v, rtol=0, atol=1e-10)
            assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_a_law_is_carried_on_and_never_changed_in_place(loss):
    x, a, target = clouds(20, 25, 3)
    first = loss.velocity(x, target, seeded(0), a)
    kept = [p.clone() for p in first.carry.climber.params]
    again = loss.velocity(x, target, seeded(0), a, first.carry)
    assert torch.equal(again.v, first.v)  # nothing moved: nothing more to learn
    further = loss.velocity(x + 0.1, target, seeded(1), a, first.carry)
    assert further.carry.climber.steps == loss.iterations + loss.more
    assert all(torch.equal(p, q) for p, q in zip(kept, first.carry.climber.params, strict=True))


def test_adam_climbs_a_hill():
    climber = Climber.at((tensor([3.0, -2.0]), tensor(1.0)))
    for _ in range(400):
        climber = climber.ahead(tuple(-2 * p for p in climber.params), (True, False), 0.05)
    assert climber.params[0].abs().max() < 1e-2
    assert climber.params[1].item() == 1.0


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_coinciding_points_and_float32_are_no_trouble(loss):
    x = torch.zeros(4, 3)
    for cloud in (Cloud(x), Cloud(x[:2]), Cloud(x + 1)):
        answer = velocity_of(loss, x, cloud, seeded(0))
        assert answer.v.dtype == answer.value.dtype == torch.float32
        assert torch.isfinite(answer.v).all()
