"""Cramer-Wold: known values, phi against the hypergeometric series, slices, closed form, the normal law."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from pair_cases import agrees, clouds, hermite, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._kernels import kernel_and_slope, kernel_of
from dmviz.losses.cramer_wold import CramerWold, kernel_for, silverman, to_normal

KNOWN = json.loads((Path(__file__).parent / "known" / "waves.json").read_text())
RNG = seeded(0)
AT = [0.0, 1e-9, 1e-3, 0.3, 2.0, 7.5, 40.0, 1e3, 1e7]


def test_two_clouds_in_the_plane() -> None:
    case = KNOWN["cw_two_sample_d2"]
    x, target = tensor(case["inputs"]["X"]), Cloud(tensor(case["inputs"]["Y"]))
    loss = CramerWold(bandwidth=math.sqrt(case["inputs"]["gamma"]))
    assert agrees(loss(x, target, RNG).item(), case)
    assert agrees(aim(loss, target)(x, RNG).value.item(), case)


@pytest.mark.parametrize(
    ("case", "form"),
    [("cw_normal_d2", "exact"), ("cw_normal_d20_exact", "exact"), ("cw_normal_d20_asym", "asymptotic")],
)
def test_a_cloud_and_the_normal_law(case: str, form) -> None:
    inputs = KNOWN[case]["inputs"]
    assert agrees(to_normal(tensor(inputs["X"]), None, math.sqrt(inputs["gamma"]), form).item(), KNOWN[case])


def test_silvermans_rule() -> None:
    assert agrees(silverman(KNOWN["cw_silverman"]["inputs"]["n"]), KNOWN["cw_silverman"])
    x, y = (torch.randn(n, 2, generator=seeded(n), dtype=torch.float64) for n in (300, 212))
    fixed = CramerWold(bandwidth=math.sqrt(silverman(256)))
    assert CramerWold(silverman=True)(x, Cloud(y), RNG).item() == pytest.approx(fixed(x, Cloud(y), RNG).item())


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7, 20, 64, 1000])
def test_phi_and_its_slope_are_the_hypergeometric_series(dim: int) -> None:
    k, w = kernel_and_slope(kernel_for(dim, 1.0, "exact"), tensor(AT))
    for s, phi, slope in zip(AT, k.tolist(), w.tolist(), strict=True):
        assert phi == pytest.approx(float(mpmath.hyp1f1(0.5, dim / 2, -s)), abs=1e-9)
        assert slope / 2 == pytest.approx(float(-mpmath.hyp1f1(1.5, dim / 2 + 1, -s) / dim), abs=1e-9)


@pytest.mark.parametrize("dim", [2, 5, 64])
def test_phi_in_float32_is_phi(dim: int) -> None:
    r2 = torch.logspace(-4, 4, 500, dtype=torch.float64)
    kernel = kernel_for(dim, 0.7, "exact")
    assert (kernel_of(kernel, r2.float()) - kernel_of(kernel, r2)).abs().max() < 1e-6


def test_the_derivative_of_phi_is_its_slope() -> None:
    r2 = tensor([1e-6, 0.2, 1.7, 30.0]).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda z: kernel_of(kernel_for(3, 1.3, "exact"), z), r2, eps=1e-7, atol=1e-5)


def test_it_is_the_mean_over_directions_of_smoothed_shadows() -> None:
    x, a, target = clouds(6, 5, 3)
    width, total, count = 0.6, 0.0, 1000
    theta = torch.nn.functional.normalize(torch.randn(count, 3, generator=seeded(1), dtype=torch.float64), dim=1)
    line = CramerWold(bandwidth=width)
    for one in theta:
        total += line(x @ one[:, None], Cloud(target.x @ one[:, None], target.weight), RNG, a).item() / count
    assert line(x, target, RNG, a).item() == pytest.approx(total, rel=0.08)


def test_the_asymptotic_form_is_near_the_exact_one_only_in_high_dimension() -> None:
    def apart(dim: int) -> float:
        exact, near = (
            kernel_of(kernel_for(dim, 1.0, form), torch.logspace(-2, 2, 50)) for form in ("exact", "asymptotic")
        )
        return float((exact - near).abs().max())

    assert apart(2) > 0.1
    assert apart(20) < 0.01


@pytest.mark.parametrize("dim", [1, 2, 3, 12])
@pytest.mark.parametrize("form", ["exact", "asymptotic"])
def test_closed_form_is_autograd(dim: int, form) -> None:
    x, a, target = clouds(13, 11, dim)
    loss = CramerWold(form=form)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    assert (closed.v - auto.v).abs().max() < 1e-11
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-12)


@pytest.mark.parametrize("dim", [2, 9])
def test_gradient_is_the_slope_of_the_value(dim: int) -> None:
    x, a, target = clouds(6, 5, dim)
    loss, step = CramerWold(bandwidth=0.8), 1e-4
    v = velocity_of(loss, x, target, RNG, a).v
    there = torch.zeros_like(x)
    there[3, 1] = step
    slope = (loss(x + there, target, RNG, a) - loss(x - there, target, RNG, a)) / (2 * step)
    assert -(a[3] * v[3, 1]).item() == pytest.approx(slope.item(), abs=1e-7)


def test_the_normal_law_is_what_many_normal_points_are() -> None:
    x, a, _ = clouds(6, 5, 2)
    normal = hermite([0, 0], [[1, 0], [0, 1]], 40)
    got = to_normal(x, a, 0.7).item()
    assert got == pytest.approx(CramerWold(bandwidth=0.7)(x, normal, RNG, a).item(), abs=1e-8)


def test_numbers_that_are_not_finite_stay_so_and_raise_nothing() -> None:
    k, w = kernel_and_slope(kernel_for(2, 1.0, "exact"), tensor([math.nan, math.inf, 1.0]))
    assert np.isnan(k[0].item())
    assert abs(k[1].item()) < 1e-3
    assert abs(w[1].item()) < 1e-3
