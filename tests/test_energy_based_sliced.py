"""Energy-based sliced Wasserstein: known values, limits of the weights, closed form against autograd."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import energy_based_sliced
from dmviz.losses._slicing import Slices
from dmviz.losses.energy_based_sliced import EnergyBasedSliced
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "slices.json").read_text())
ENERGIES = ("exp", "identity", "poly2")


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def clouds(n, m, d, seed=0):
    rng = seeded(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64)
    y = torch.randn(m, d, generator=rng, dtype=torch.float64) * 0.6 + 1
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = b[-1] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


@pytest.mark.parametrize(("name", "energy"), [("ebsw_exp_fixed", "exp"), ("ebsw_poly2_fixed", "poly2")])
def test_four_fixed_lines_have_their_value(name, energy, monkeypatch):
    case = KNOWN[name]
    i = case["inputs"]
    slices = Slices.even(tensor(i["theta"]))
    monkeypatch.setattr(EnergyBasedSliced, "_slices", lambda *_: slices)
    loss = EnergyBasedSliced(energy=energy)
    x, target = tensor(i["X"]), Cloud(tensor(i["Y"]))
    for value in (loss(x, target, seeded(0)), loss.velocity(x, target, seeded(0)).value):
        assert value.item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_identity_is_the_mean_square_over_the_mean(monkeypatch):
    i = KNOWN["ebsw_exp_fixed"]["inputs"]
    slices = Slices.even(tensor(i["theta"]))
    monkeypatch.setattr(EnergyBasedSliced, "_slices", lambda *_: slices)
    value = EnergyBasedSliced(energy="identity")(tensor(i["X"]), Cloud(tensor(i["Y"])), seeded(0)).item()
    assert value == pytest.approx((2 * 0.25 + 0.36 + 0.1156) / (0.5 + 0.5 + 0.6 + 0.34), abs=1e-12)  # by hand


@pytest.mark.parametrize(("n", "m", "d"), [(7, 7, 1), (9, 9, 2), (12, 8, 3), (20, 30, 6)])
@pytest.mark.parametrize(("energy", "through"), list(product(ENERGIES, (True, False))))
def test_closed_form_equals_autograd_with_and_without_memo(n, m, d, energy, through):
    for power, draw in product((1, 2), ("fresh", "fixed")):
        loss = EnergyBasedSliced(power=power, energy=energy, through_weights=through, draw=draw, slices=9)
        x, a, target = clouds(n, m, d, n)
        for source, cloud in ((a, target), (None, Cloud(target.x))):
            want = autograd_velocity(loss, x, cloud, seeded(3), source)
            for aimed in (cloud, loss.prepare(cloud)):
                got = velocity_of(loss, x, aimed, seeded(3), source)
                assert torch.allclose(got.v, want.v, rtol=1e-9, atol=1e-10)
                assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


@pytest.mark.parametrize("energy", ENERGIES)
def test_velocity_is_minus_the_difference_quotient_only_if_it_goes_through_the_weights(energy):
    x, a, target = clouds(12, 15, 3, 2)
    through = EnergyBasedSliced(energy=energy, slices=8)
    held = EnergyBasedSliced(energy=energy, slices=8, through_weights=False)
    v, other = (loss.velocity(x, target, seeded(1), a).v for loss in (through, held))
    for i, k in ((1, 0), (7, 2)):
        h = torch.zeros_like(x)
        h[i, k] = 1e-6
        slope = (through(x + h, target, seeded(1), a) - through(x - h, target, seeded(1), a)) / 2e-6
        assert (-slope / a[i]).item() == pytest.approx(v[i, k].item(), abs=1e-6)
    assert (v - other).abs().max() > 1e-3


def test_it_lies_between_the_mean_and_the_largest_cost_and_reaches_both_in_its_limits():
    x, a, target = clouds(20, 25, 3)
    costs = energy_based_sliced.sliced_costs(x, target, SlicedWasserstein()._slices(target, seeded(1)), a, 2)
    for energy in ENERGIES:
        value = EnergyBasedSliced(energy=energy)(x, target, seeded(1), a).item()
        assert costs.mean().item() < value < costs.max().item()
    wide = EnergyBasedSliced(scale=1e3)(x, target, seeded(1), a).item()
    assert wide == pytest.approx(costs.mean().item(), rel=1e-5)
    narrow = EnergyBasedSliced(scale=1e-3)(x, target, seeded(1), a).item()
    assert narrow == pytest.approx(costs.max().item(), rel=1e-9)


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_equal_clouds_and_clouds_of_any_size_stay_finite(energy, size):
    x, a, target = clouds(10, 10, 3)
    loss = EnergyBasedSliced(energy=energy)
    for cloud in (Cloud(x * size, a), Cloud(target.x * size, target.weight)):
        for velocity in (velocity_of, autograd_velocity):
            assert torch.isfinite(velocity(loss, x * size, cloud, seeded(0), a).v).all()
    assert loss(x * size, Cloud(x * size, a), seeded(0), a).item() == pytest.approx(0, abs=1e-12 * size**2)


def test_pulls_worked_out_twice_are_the_same(monkeypatch):
    x, a, target = clouds(30, 20, 4)
    once = EnergyBasedSliced().velocity(x, target, seeded(0), a)
    monkeypatch.setattr(energy_based_sliced, "_KEPT", 0)
    again = EnergyBasedSliced().velocity(x, target, seeded(0), a)
    assert torch.equal(once.v, again.v)
    assert torch.equal(once.value, again.value)


def test_float32_far_from_the_origin_keeps_four_digits():
    x, _, target = clouds(60, 50, 3)
    far, far_y = (x + 1e4).float(), (target.x + 1e4).float()
    near = EnergyBasedSliced().velocity(far.double() - 1e4, Cloud(far_y.double() - 1e4), seeded(0))
    got = EnergyBasedSliced().velocity(far, Cloud(far_y), seeded(0))
    assert got.value.item() == pytest.approx(near.value.item(), rel=1e-4)
    assert (got.v - near.v).norm() <= 1e-3 * near.v.norm()
