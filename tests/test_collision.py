"""Collision loss: counts on grids, unbiased on average over draws, pairs by windows, pulls, and a flow."""

import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses.collision import Collision, collisions

RNG = seeded(0)


def table(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor, b: torch.Tensor, cell: float) -> float:
    k = (1 - (x[:, None] - y[None]).abs() / cell).clamp_min(0).prod(-1)
    return (a @ k @ b).item()


def test_windows_find_all_pairs_that_the_table_has() -> None:
    x, a, target = clouds(700, 500, 2)
    for cell in (0.05, 0.7, 30.0):
        got = collisions(x, a, target.x, target.weight, cell, axis=1).item()
        assert got == pytest.approx(table(x, a, target.x, target.weight, cell), rel=1e-12)


def test_it_is_the_mean_over_grids_of_the_squared_difference_of_cell_masses() -> None:
    x, a, target = clouds(6, 5, 2)
    both, mass = torch.cat((x, target.x)), torch.cat((a, -target.weight))
    side, total = 40, 0.0
    for i in range(side):
        for j in range(side):  # cells of 1.3 laid at evenly spread places
            offset = tensor([(i + 0.5) / side, (j + 0.5) / side])
            _, label = torch.unique((both / 1.3 + offset).floor(), dim=0, return_inverse=True)
            total += torch.zeros(11).double().index_add(0, label, mass).square().sum().item() / side**2
    # Each pair's chance is a polynomial of places, counted to within one of `side` places on each axis.
    assert Collision(cell=1.3, estimator="plug_in")(x, target, RNG, a).item() == pytest.approx(total, abs=0.01)


def test_the_unbiased_estimate_is_right_on_average_and_the_plug_in_is_not() -> None:
    # Uniform laws on [0, 1] and [0.5, 1.5], cell 1/2: E k(z) over differences of two uniform points, by hand:
    # within a law h - h^2 / 3 = 5/12; across, the tent of height 1 - |z - 1/2| meets the kernel: 6/24 = 1/4.
    exact, n, m, trials = 5 / 12 + 5 / 12 - 2 * 0.25, 4, 3, 3000
    draws = torch.rand(trials, n + m, 1, generator=seeded(5), dtype=torch.float64)
    draws[:, n:] += 0.5
    mean = {}
    for estimator in ("unbiased", "plug_in"):
        loss = Collision(cell=0.5, estimator=estimator)
        values = torch.stack([loss(row[:n], Cloud(row[n:]), RNG) for row in draws])
        mean[estimator] = (values.mean().item(), 4 * values.std().item() / trials**0.5)
    assert abs(mean["unbiased"][0] - exact) < mean["unbiased"][1]
    bias = (1 - 5 / 12) * (1 / n + 1 / m)  # each point meets itself for certain
    assert abs(mean["plug_in"][0] - exact - bias) < mean["plug_in"][1]
    assert bias > 2 * mean["plug_in"][1]


def test_counts_of_points_that_share_places_are_collision_counts() -> None:
    # Places further than a cell apart are the cells: counts (3, 1) of 4 particles and (1, 1) of 2 target points.
    x, y = tensor([[0.0], [0.0], [0.0], [5.0]]), tensor([[0.0], [5.0]])
    unbiased = (3 * 2 + 1 * 0) / (4 * 3) + 0.0 - 2 * (3 * 1 + 1 * 1) / (4 * 2)
    assert Collision()(x, Cloud(y), RNG).item() == pytest.approx(unbiased)
    plug_in = (3 / 4 - 1 / 2) ** 2 + (1 / 4 - 1 / 2) ** 2
    assert Collision(estimator="plug_in")(x, Cloud(y), RNG).item() == pytest.approx(plug_in)


@pytest.mark.parametrize("estimator", ["unbiased", "plug_in"])
def test_velocity_is_minus_the_finite_difference_over_weight(estimator: str) -> None:
    x, a, target = clouds(7, 6, 2)
    x = x + 0.01 * torch.arange(1, 8).double()[:, None]  # no kink where points meet
    loss, h = Collision(cell=1.7, estimator=estimator), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(7):
        for d in range(2):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), abs=1e-6)


def test_two_particles_push_apart_at_a_steady_speed_and_the_target_pulls() -> None:
    x, target = tensor([[0.0], [0.25]]), Cloud(tensor([[0.5]]))
    # Slopes are 1 / cell = 1: twice the pull of the target, and twice the push of the only other particle.
    v = velocity_of(Collision(), x, target, RNG).v[:, 0]
    assert v.tolist() == [2.0 - 2.0, 2.0 + 2.0]


def test_a_single_point_has_no_pair_of_its_own() -> None:
    value = Collision()(torch.zeros(1, 2), Cloud(torch.zeros(1, 2)), RNG)
    assert value.item() == -2.0


def test_beyond_a_cell_nothing_is_felt() -> None:
    v = velocity_of(Collision(cell=1.0), tensor([[0.0, 0.0], [3.0, 0.0]]), Cloud(tensor([[0.5, 1.5]])), RNG).v
    assert v.abs().max().item() == 0.0


def test_the_flow_spreads_particles_over_the_target() -> None:
    x = torch.rand(150, 1, generator=seeded(1), dtype=torch.float64) * 0.5
    target = Cloud(torch.linspace(0, 2, 200).double()[:, None])
    loss = Collision(cell=1.0)
    for _ in range(500):
        x = x + 0.03 * velocity_of(loss, x, target, RNG).v
    assert x.mean().item() == pytest.approx(1.0, abs=0.05)
    assert x.std().item() == pytest.approx(target.x.std().item(), rel=0.1)
