"""Cramer distance and quantile regression: known values, half the energy distance, quantiles found, kinks and ties."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from pair_cases import agrees, clouds, tensor
from scipy.integrate import quad
from scipy.stats import norm

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._lines import power_on_lines
from dmviz.losses.cramer import Cramer, merged
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.quantile_regression import (
    QuantileRegression,
    nearest_quantiles,
    quantile_huber,
    samples_in_order,
)

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)


def test_cramer_of_weighted_arrays() -> None:
    inputs = KNOWN["cramer_sq_1d"]["inputs"]
    x, target = tensor(inputs["x"])[:, None], Cloud(tensor(inputs["y"])[:, None], tensor(inputs["b"]))
    assert agrees(Cramer()(x, target, RNG, tensor(inputs["a"])).item(), KNOWN["cramer_sq_1d"])
    leaf = x.clone().requires_grad_(True)
    assert agrees(Cramer()(leaf, target, RNG, tensor(inputs["a"])).item(), KNOWN["cramer_sq_1d"])


def test_cramer_is_half_the_energy_distance_of_each_coordinate_and_so_is_its_pull() -> None:
    x, a, target = clouds(30, 20, 3)
    columns = [(x[:, [d]], Cloud(target.x[:, [d]], target.weight)) for d in range(3)]
    energy = [EnergyDistance()(z, t, RNG, a).item() for z, t in columns]
    answer = velocity_of(Cramer(), x, target, RNG, a)
    assert answer.value.item() == pytest.approx(0.5 * np.mean(energy), rel=1e-12)
    pulls = torch.cat([velocity_of(EnergyDistance(), z, t, RNG, a).v for z, t in columns], dim=1)
    assert torch.allclose(answer.v, pulls / 6, atol=1e-13)


def test_cramer_between_two_points_is_their_distance() -> None:
    one = torch.ones(1)
    assert merged(torch.tensor([[1.0]]), one, torch.tensor([[4.0]]), one).value.item() == 3.0


def test_cramer_pull_is_the_surplus_to_the_left() -> None:
    x, target = tensor([[0.0], [1.0], [1.0], [2.0]]), Cloud(tensor([[0.0], [5.0]]))
    # F halfway up its steps: 1/8, 1/2, 1/2, 7/8; G: 1/4, 1/2, 1/2, 1/2.
    assert velocity_of(Cramer(), x, target, RNG).v[:, 0].tolist() == [-0.25, 0.0, 0.0, 0.75]


def test_cramer_far_from_the_origin_keeps_its_digits() -> None:
    x, y = torch.randn(50, 2, generator=seeded(1)).mul(64).round().div(64), torch.ones(3, 2) * 0.5
    near, far = (
        autograd_velocity(Cramer(), x, Cloud(y), RNG),
        autograd_velocity(Cramer(), x + 4096, Cloud(y + 4096), RNG),
    )
    assert torch.equal(near.v, far.v)
    assert far.value.item() == pytest.approx(near.value.item(), rel=1e-6)


def test_a_prepared_target_of_another_cloud_is_not_used() -> None:
    x, a, target = clouds(10, 8, 1)
    loss = QuantileRegression()
    stale = replace(loss.prepare(target), x=target.x + 1.0)
    fresh = replace(target, x=target.x + 1.0)
    assert torch.equal(velocity_of(loss, x, stale, RNG, a).v, velocity_of(loss, x, fresh, RNG, a).v)


@pytest.mark.parametrize("case", ["quantile_huber_k0", "quantile_huber_k1"])
def test_quantile_loss_has_its_known_value(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    theta, y = tensor(inputs["theta"]), tensor(inputs["targets"])
    there = samples_in_order(y, torch.full((4,), 0.25).double())
    assert agrees(quantile_huber(theta, tensor(inputs["tau"]), there, inputs["kappa"]).sum().item(), KNOWN[case])
    mean = QuantileRegression(kappa=float(inputs["kappa"]))(theta[:, None], Cloud(y[:, None]), RNG)
    assert agrees(3 * mean.item(), KNOWN[case])


@pytest.mark.parametrize("kappa", [0.0, 0.3, 50.0])
def test_running_sums_say_what_the_table_of_all_pairs_says(kappa: float) -> None:
    x, a, target = clouds(30, 20, 1)
    x = x.sort(0).values
    tau = a.cumsum(0) - a / 2
    u = target.x.T - x  # (N, M)
    huber = u.abs() if kappa == 0 else torch.where(u.abs() <= kappa, u**2 / (2 * kappa), u.abs() - kappa / 2)
    table = a @ ((tau[:, None] - (u < 0).double()).abs() * huber) @ target.weight
    assert QuantileRegression(kappa=kappa)(x, target, RNG, a).item() == pytest.approx(table.item(), rel=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 50.0])
def test_quantile_velocity_is_minus_the_finite_difference_over_weight(kappa: float) -> None:
    x, a, target = clouds(9, 7, 1)
    x = x + 0.01 * torch.arange(1, 10).double()[:, None]  # no ties
    loss, h = QuantileRegression(kappa=kappa), 1e-7
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(9):
        step = torch.zeros_like(x)
        step[i] = h
        slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
        assert v[i].item() == pytest.approx(-slope.item() / a[i].item(), abs=1e-5)


def test_without_kappa_the_pull_is_the_level_less_the_share_of_the_target_below() -> None:
    x, target = tensor([[3.0], [0.0]]), Cloud(tensor([[-1.0], [1.0], [2.0], [5.0]]))
    assert velocity_of(QuantileRegression(kappa=0.0), x, target, RNG).v[:, 0].tolist() == [0.75 - 0.75, 0.25 - 0.25]
    moved = velocity_of(QuantileRegression(kappa=0.0), x + 10.0, target, RNG).v[:, 0]
    assert moved.tolist() == [0.75 - 1.0, 0.25 - 1.0]


def test_particles_that_meet_get_levels_of_their_own() -> None:
    v = velocity_of(QuantileRegression(), torch.zeros(2, 1), Cloud(tensor([[-1.0], [1.0]]).float()), RNG).v
    assert sorted(v[:, 0].tolist()) == [-0.25, 0.25]


def test_midpoint_levels_are_the_best_equal_masses() -> None:
    n = KNOWN["quantile_w1proj_gauss"]["inputs"]["n"]
    got = nearest_quantiles(lambda u: torch.as_tensor(norm.ppf(u.numpy())), n)
    assert torch.allclose(got, tensor(KNOWN["quantile_w1proj_gauss"]["value"]), atol=1e-10)
    levels = lambda t: np.mean(got.numpy()[:, None] <= t, axis=0)  # noqa: E731
    cuts = [-9.0, *got.tolist(), 9.0]
    apart = sum(
        quad(lambda t: abs(norm.cdf(t) - levels(np.array([t]))[0]), low, high, points=[0.5 * (low + high)])[0]
        for low, high in pairwise(cuts)
    )
    assert apart == pytest.approx(KNOWN["quantile_w1proj_dist"]["value"], abs=1e-7)


def test_w1_of_two_quantile_laws() -> None:
    inputs = KNOWN["quantile_w1"]["inputs"]
    got = power_on_lines(tensor([inputs["a"]]), None, tensor([inputs["b"]]), None, 1)
    assert agrees(got.item(), KNOWN["quantile_w1"])


def test_the_flow_finds_the_quantiles_of_a_gaussian() -> None:
    y = tensor(norm.ppf((np.arange(2001) + 0.5) / 2001).tolist())[:, None]
    loss = QuantileRegression(kappa=0.0)
    x, target = torch.linspace(-0.1, 0.1, 3).double()[:, None], loss.prepare(Cloud(y))
    for _ in range(400):
        x = x + 0.1 * velocity_of(loss, x, target, RNG).v
    # A step of 0.1 times half a target point's mass, and the lattice of target points, leave about 1e-3.
    assert torch.allclose(x[:, 0], tensor(KNOWN["quantile_w1proj_gauss"]["value"]), atol=2e-3)
