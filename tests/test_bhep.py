"""BHEP: known values, the Epps-Pulley statistic on the whole line, normal laws, closed form."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, hermite, lattice, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.bhep import Bhep
from dmviz.losses.ecf import Ecf
from dmviz.losses.mmd import Mmd

__all__ = ["path"]
KNOWN = json.loads((Path(__file__).parent / "known" / "waves.json").read_text())
RNG = seeded(0)


def value(x: torch.Tensor, weight: torch.Tensor | None = None, bandwidth: float = 1.0) -> float:
    return float(Bhep(bandwidth)(x, Cloud(x), RNG, weight))


def test_four_points_in_the_plane(path: str) -> None:
    case = KNOWN["bhep_b1"]
    x = tensor(case["inputs"]["X"])
    assert agrees(value(x), case)
    assert agrees(velocity_of(Bhep(), x, Cloud(x), RNG).value.item(), case)


@pytest.mark.parametrize("case", ["ep_inf_zero", "ep_inf_four", "sigreg_full_line_5pts", "sigreg_collapsed_n1"])
def test_on_a_line_it_is_epps_pulley_on_the_whole_line(case: str) -> None:
    x = tensor(KNOWN[case]["inputs"]["x"])[:, None]
    scale = len(x) if KNOWN[case]["inputs"].get("times_n") else 1
    assert agrees(scale * math.sqrt(2 * math.pi) * value(x), KNOWN[case])


@pytest.mark.parametrize("case", ["ep_pop_gauss_0", "ep_pop_gauss_2", "ep_pop_gauss_3"])
def test_normal_laws(case: str) -> None:
    x = lattice(KNOWN[case]["inputs"]["m"], KNOWN[case]["inputs"]["s"], 0.05)
    assert agrees(math.sqrt(2 * math.pi) * value(x.x, x.weight), KNOWN[case])


@pytest.mark.parametrize("bandwidth", [0.7, 2.0])
def test_it_is_the_mmd_to_a_normal_law(bandwidth: float) -> None:
    x, a, _ = clouds(9, 8, 2)
    normal = hermite([0, 0], [[1, 0], [0, 1]], 40)
    exact = velocity_of(Mmd(bandwidth=bandwidth), x, normal, RNG, a)
    got = velocity_of(Bhep(bandwidth), x, Cloud(x), RNG, a)
    assert got.value.item() == pytest.approx(exact.value.item(), abs=1e-9)
    assert (got.v - exact.v).abs().max() < 1e-8


def test_it_is_the_mean_over_waves() -> None:
    x, a, _ = clouds(9, 8, 3)
    many = Cloud(torch.randn(20000, 3, generator=seeded(1), dtype=torch.float64))
    got = Ecf(bandwidth=1.0, frequencies=4096)(x, many, RNG, a).item()
    assert got == pytest.approx(value(x, a), abs=0.01)


@pytest.mark.parametrize("dim", [1, 3, 12])
def test_closed_form_is_autograd(dim: int, path: str) -> None:
    x, a, target = clouds(13, 11, dim)
    closed, auto = velocity_of(Bhep(), x, target, RNG, a), autograd_velocity(Bhep(), x, target, RNG, a)
    assert (closed.v - auto.v).abs().max() < 1e-12
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-14)


def test_gradient_is_the_slope_of_the_value() -> None:
    x, a, target = clouds(6, 5, 2)
    v, step = velocity_of(Bhep(0.8), x, target, RNG, a).v, 1e-5
    there = torch.zeros_like(x)
    there[3, 1] = step
    slope = (value(x + there, a, 0.8) - value(x - there, a, 0.8)) / (2 * step)
    assert -(a[3] * v[3, 1]).item() == pytest.approx(slope, abs=1e-9)


def test_the_target_is_not_looked_at() -> None:
    x, a, target = clouds(6, 5, 2)
    assert Bhep()(x, target, RNG, a) == Bhep()(x, Cloud(target.x + 7), RNG, a)
