"""Characteristic function distance: known values, the Gaussian MMD as its mean, closed form, frequencies, blocks."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, hermite, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses import _fused, _waves, ecf
from dmviz.losses._waves import fixed_frequencies, frequencies, waves
from dmviz.losses.ecf import Ecf
from dmviz.losses.mmd import Mmd
from dmviz.losses.ncfd import Ncfd

KNOWN = json.loads((Path(__file__).parent / "known" / "waves.json").read_text())
SPREADS = ("auto", "quasi_random", "orthogonal", "random")


def test_known_clouds_at_known_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    case = KNOWN["ecf_sq_fixed"]
    x, a, target = small(case["inputs"])
    monkeypatch.setattr(ecf, "fixed_frequencies", lambda *_: tensor(case["inputs"]["t"]))
    loss = Ecf(bandwidth=1.0, draw="fixed")
    assert agrees(loss(x, target, seeded(0), a).item(), case)
    assert agrees(velocity_of(loss, x, target, seeded(0), a).value.item(), case)


def test_two_gaussians_under_a_gaussian_of_frequencies() -> None:
    x, y, t = hermite([0], [[1]], 80), hermite([1], [[1]], 80), hermite([0], [[1]], 80)
    here, there = waves(x.x, x.weight, t.x), waves(y.x, y.weight, t.x)
    squares = (here.re - there.re).square() + (here.im - there.im).square()
    assert agrees(float(t.weight @ squares), KNOWN["cf_gauss_w"])


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
@pytest.mark.parametrize("spread", SPREADS)
def test_the_mean_over_many_frequencies_is_the_gaussian_mmd(spread: str, dim: int) -> None:
    x, a, target = clouds(30, 20, dim)
    exact = velocity_of(Mmd(bandwidth=1.0), x, target, seeded(0), a)
    got = velocity_of(Ecf(bandwidth=1.0, frequencies=16384, spread=spread), x, target, seeded(3), a)
    # |gap|^2 is at most 4 and here about 0.3: 16,384 independent draws leave an error of some 0.003.
    assert got.value.item() == pytest.approx(exact.value.item(), abs=0.01)
    assert (got.v - exact.v).abs().max() < 0.04


def test_even_frequencies_are_ten_times_closer_than_random_ones_in_the_plane() -> None:
    x, a, target = clouds(30, 20, 2)
    exact = Mmd(bandwidth=1.0)(x, target, seeded(0), a).item()

    def error(spread: str) -> float:
        loss = Ecf(bandwidth=1.0, frequencies=1024, spread=spread)
        return math.sqrt(sum((loss(x, target, seeded(s), a).item() - exact) ** 2 for s in range(20)) / 20)

    assert 10 * error("quasi_random") < error("random")


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_frequencies_are_standard_normal(spread: str, dim: int) -> None:
    t = torch.cat([frequencies(spread, 7 * dim, dim, seeded(s)) for s in range(2000)])
    assert t.mean(0).abs().max() < 0.03
    assert (t.T @ t / len(t) - torch.eye(dim)).abs().max() < 0.05
    assert t.pow(4).mean().item() == pytest.approx(3.0, abs=0.15)


def test_orthogonal_frequencies_come_in_right_angles() -> None:
    t = frequencies("orthogonal", 12, 5, seeded(0))
    for frame in (t[:5], t[5:10], t[10:]):
        product = frame @ frame.T
        assert (product - product.diagonal().diag()).abs().max() < 1e-12


def test_fixed_frequencies_depend_on_their_seed_alone() -> None:
    assert torch.equal(fixed_frequencies("auto", 8, 2, 1), fixed_frequencies("auto", 8, 2, 1))
    assert not torch.equal(fixed_frequencies("auto", 8, 2, 1), fixed_frequencies("auto", 8, 2, 2))


def test_closed_form_is_autograd_also_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "_BLOCK", 100)
    x, a, target = clouds(23, 17, 3)
    loss = Ecf(frequencies=40)
    closed, auto = velocity_of(loss, x, target, seeded(2), a), autograd_velocity(loss, x, target, seeded(2), a)
    assert (closed.v - auto.v).abs().max() < 1e-12
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-12)


def test_gradient_is_the_slope_of_the_value() -> None:
    x, a, target = clouds(6, 5, 2)
    loss, step, rng = Ecf(bandwidth=0.8, draw="fixed", frequencies=16), 1e-5, seeded(0)
    v = velocity_of(loss, x, target, rng, a).v
    for i, d in ((0, 0), (3, 1)):
        there = torch.zeros_like(x)
        there[i, d] = step
        slope = (loss(x + there, target, rng, a) - loss(x - there, target, rng, a)) / (2 * step)
        assert -(a[i] * v[i, d]).item() == pytest.approx(slope.item(), abs=1e-9)


def test_a_prepared_target_is_not_used_for_other_points_or_other_settings() -> None:
    x, a, target = clouds(9, 8, 2)
    loss = Ecf(draw="fixed")
    prepared = aim(loss, target).target
    other = Cloud(target.x + 1, target.weight, memo=prepared.memo)
    assert torch.equal(loss(x, other, seeded(0), a), loss(x, Cloud(other.x, other.weight), seeded(0), a))
    finer = Ecf(draw="fixed", bandwidth=0.2)
    assert torch.equal(finer(x, prepared, seeded(0), a), finer(x, target, seeded(0), a))


def test_float32_close_to_the_target_keeps_its_velocity() -> None:
    x = torch.randn(500, 2, generator=seeded(1), dtype=torch.float64) + 300
    y = x + 1e-3 * torch.randn(500, 2, generator=seeded(2), dtype=torch.float64)
    x, y = x.float(), y.float()
    loss = Ecf(draw="fixed")
    exact = velocity_of(loss, x.double(), Cloud(y.double()), seeded(0))
    quick = velocity_of(loss, x, Cloud(y), seeded(0))
    assert (quick.v - exact.v).abs().max() < 1e-2 * exact.v.abs().max()
    assert quick.value.item() == pytest.approx(exact.value.item(), rel=1e-2)


def test_compiled_sines_are_sines() -> None:
    quarters = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([0.0, 3e4, -7e5, math.nan, math.inf, 1e12])])
    sin, cos = quarters.clone(), torch.empty_like(quarters)
    _fused.turn_rows(sin.numpy(), cos.numpy())
    exact = quarters[:-3].double() * (math.pi / 2)
    assert (sin[:-3] - exact.sin()).abs().max() < 2e-7
    assert (cos[:-3] - exact.cos()).abs().max() < 2e-7
    assert sin[-3].isnan() and sin[-2].isnan()
    assert abs(sin[-1]) <= 1


@pytest.mark.parametrize("loss", [Ecf(), Ecf(draw="fixed"), Ncfd(draw="fixed"), Ncfd(draw="learned")], ids=repr)
def test_compiled_and_eager_agree_and_a_run_stays_with_one(loss, monkeypatch: pytest.MonkeyPatch) -> None:
    x, a, target = clouds(300, 200, 3, torch.float32)
    found = {}
    for wish in ("0", "1"):
        monkeypatch.setenv("DMVIZ_COMPILE", wish)
        field = aim(loss, target, a)
        assert field.target.memo["compiled"] == (wish == "1")
        monkeypatch.setenv("DMVIZ_COMPILE", "0")
        found[wish] = field(x, seeded(1))
    gap = (found["0"].v - found["1"].v).abs().max()
    assert 0 < gap < 1e-4 * found["0"].v.abs().max()
    assert found["0"].value.item() == pytest.approx(found["1"].value.item(), rel=1e-4)


def test_a_particle_without_weight_has_no_velocity() -> None:
    x, a, target = clouds(6, 5, 2)
    a[2] = 0
    v = velocity_of(Ecf(), x, target, seeded(0), a).v
    assert v[2].abs().max() == 0
    assert v.abs().max() > 0
