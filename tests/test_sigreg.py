"""SIGReg and its two-cloud form: released rule, whole line, null mean, normal law, closed form."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, lattice, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses import _waves
from dmviz.losses._waves import knots, line_waves
from dmviz.losses.epps_pulley import EppsPulley
from dmviz.losses.mmd import Mmd
from dmviz.losses.sigreg import Sigreg

KNOWN = json.loads((Path(__file__).parent / "known" / "waves.json").read_text())
RNG = seeded(0)


def column(numbers: list[float]) -> torch.Tensor:
    return tensor(numbers)[:, None]


def test_the_released_rule_on_four_points() -> None:
    case = KNOWN["ep_trap17_four"]
    assert agrees(Sigreg().statistic(column(case["inputs"]["x"]), RNG).item(), case)


def test_the_rule_is_the_integral_up_to_three() -> None:
    case = KNOWN["sigreg_truncated3_5pts"]
    x = column(case["inputs"]["x"])
    assert Sigreg().statistic(x, RNG).item() == pytest.approx(case["value"], rel=case["tolerance"])


@pytest.mark.parametrize("case", ["ep_inf_zero", "ep_inf_four", "sigreg_full_line_5pts", "sigreg_collapsed_n1"])
def test_many_knots_far_out_are_the_whole_line(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "KNOTS", 257)  # a power of two and one, as the ladder climbs
    monkeypatch.setattr(_waves, "REACH", 12.0)
    x = column(KNOWN[case]["inputs"]["x"])
    scale = len(x) if KNOWN[case]["inputs"].get("times_n") else 1
    assert agrees(scale * velocity_of(Sigreg(), x, Cloud(x), RNG).value.item(), KNOWN[case])


@pytest.mark.parametrize("case", ["ep_pop_gauss_0", "ep_pop_gauss_2", "ep_pop_gauss_3"])
def test_normal_laws(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "KNOTS", 257)
    monkeypatch.setattr(_waves, "REACH", 12.0)
    x = lattice(KNOWN[case]["inputs"]["m"], KNOWN[case]["inputs"]["s"], 0.05)
    assert agrees(Sigreg()(x.x, x, RNG, x.weight).item(), KNOWN[case])


def test_normal_points_keep_a_statistic_of_about_one() -> None:
    draws = [Sigreg().statistic(torch.randn(50, 1, generator=seeded(s), dtype=torch.float64), RNG) for s in range(1000)]
    mean = float(torch.stack(draws).mean())
    # Standard deviation of one draw about 0.9: three standard errors are 0.09.
    assert mean == pytest.approx(KNOWN["sigreg_null_expectation_trunc3"]["value"], abs=0.09)
    t, share = knots()
    exact = float(share @ (1 - (-t.square()).exp()))
    assert exact == pytest.approx(KNOWN["sigreg_null_expectation_trunc3"]["value"], abs=3e-4)  # a trapezoid's error


@pytest.mark.parametrize("case", ["ep_null_mean", "sigreg_null_expectation_full"])
def test_the_floor_that_the_docstring_names(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "KNOTS", 257)
    monkeypatch.setattr(_waves, "REACH", 12.0)
    t, share = knots()
    assert agrees(float(share @ (1 - (-t.square()).exp())), KNOWN[case])
    assert f"{KNOWN[case]['value']:.4f}" in (Sigreg.__doc__ or "")


@pytest.mark.parametrize("loss", [Sigreg(slices=20), EppsPulley(slices=20, bandwidth=0.7)], ids=["one", "two"])
@pytest.mark.parametrize("block", [1 << 19, 300])
def test_closed_form_is_autograd_also_over_several_blocks(loss, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "_BLOCK", block)
    x, a, target = clouds(13, 11, 3)
    closed, auto = velocity_of(loss, x, target, seeded(2), a), autograd_velocity(loss, x, target, seeded(2), a)
    assert (closed.v - auto.v).abs().max() < 1e-12
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-12)


def test_the_velocity_is_minus_the_gradient_of_the_released_statistic() -> None:
    x = torch.randn(7, 2, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    loss = Sigreg(draw="fixed", slices=8)
    (grad,) = torch.autograd.grad(loss.statistic(x, RNG), x)
    assert (velocity_of(loss, x.detach(), Cloud(x.detach()), RNG).v + grad).abs().max() < 1e-12


def test_weights_count_as_repeated_points() -> None:
    x, twice = column([-1.0, 0.5, 2.0]), column([-1.0, -1.0, 0.5, 2.0])
    assert Sigreg()(x, Cloud(x), RNG, tensor([0.5, 0.25, 0.25])).item() == pytest.approx(
        Sigreg()(twice, Cloud(twice), RNG).item(), rel=1e-12
    )


def test_particles_become_standard_normal_whatever_the_target() -> None:
    x = torch.randn(200, 2, generator=seeded(1), dtype=torch.float64) * 0.5 + 0.3
    loss = Sigreg(slices=16)
    for step in range(150):
        x = x + 0.5 * velocity_of(loss, x, Cloud(x + 9), seeded(step)).v
    assert x.mean(0).abs().max() < 0.05
    assert (x.T @ x / 200 - torch.eye(2)).abs().max() < 0.1


def test_float32_turns_lose_no_more_than_float32_sines() -> None:
    x = 5 * torch.randn(400, 2, generator=seeded(1))
    loss = Sigreg(draw="fixed")
    exact = velocity_of(loss, x.double(), Cloud(x.double()), RNG)
    assert (velocity_of(loss, x, Cloud(x), RNG).v - exact.v).abs().max() < 3e-6 * exact.v.abs().max()


def test_two_clouds_on_the_whole_line_are_the_mmd_of_their_shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waves, "KNOTS", 257)
    monkeypatch.setattr(_waves, "REACH", 12.0)
    x, a, target = clouds(9, 8, 1)
    got = EppsPulley(bandwidth=0.8)(x, target, RNG, a).item()
    assert got == pytest.approx(math.sqrt(2 * math.pi) * Mmd(bandwidth=0.8)(x, target, RNG, a).item(), rel=1e-9)


def test_a_prepared_target_is_not_used_for_other_points() -> None:
    x, a, target = clouds(9, 8, 2)
    loss = EppsPulley(draw="fixed")
    prepared = aim(loss, target).target
    other = Cloud(target.x + 1, target.weight, memo=prepared.memo)
    assert torch.equal(loss(x, other, RNG, a), loss(x, Cloud(other.x, other.weight), RNG, a))


def test_ladder_and_sines_say_the_same() -> None:
    x = 3 * torch.randn(20, 3, generator=seeded(3), dtype=torch.float64)
    theta = torch.randn(5, 3, generator=seeded(4), dtype=torch.float64)
    quick = line_waves(x, None, theta)
    slow = line_waves(x.clone().requires_grad_(True), None, theta)
    assert (quick.re - slow.re).abs().max() < 1e-14
    assert (quick.im - slow.im).abs().max() < 1e-14
