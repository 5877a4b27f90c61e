"""DM-Count: known terms, transport against the exact plan, scale-free slopes, the window, and a flow."""

import json
from pathlib import Path

import ot
import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses.dm_count import DmCount, count_and_variation, density_map, grid_transport, map_slope

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)


def test_count_and_variation_have_their_known_values() -> None:
    case = KNOWN["dmcount_terms"]
    p, q = tensor(case["inputs"]["pred_density"]), tensor(case["inputs"]["gt"])
    count, variation = count_and_variation(p, q)
    got = [count.item(), variation.item(), variation.item() / 2]  # the paper halves what the code does not
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def some_maps() -> tuple[torch.Tensor, torch.Tensor]:
    p, q = torch.rand(2, 6, 6, generator=seeded(1), dtype=torch.float64)
    return p / p.sum(), q / q.sum()


def test_potentials_give_the_plan_of_an_independent_solver() -> None:
    p, q = some_maps()
    at = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).double()
    cost = torch.cdist(at, at).square()
    found = grid_transport(p, q, 2.0, 2000)
    mine = ((found.f.flatten()[:, None] + found.g.flatten() - cost) / 2.0).exp() * torch.outer(p.flatten(), q.flatten())
    plan = ot.sinkhorn(p.flatten().numpy(), q.flatten().numpy(), cost.numpy(), 2.0, stopThr=1e-14, numItermax=5000)
    assert torch.allclose(mine, torch.from_numpy(plan), atol=1e-10)
    # The dual value is cost plus entropy of that plan.
    entropy = (mine * (mine / torch.outer(p.flatten(), q.flatten())).log()).sum()
    value = (found.f * p).sum() + (found.g * q).sum()
    assert value.item() == pytest.approx(((mine * cost).sum() + 2.0 * entropy).item(), rel=1e-10)


def test_a_potential_is_the_slope_of_transport_and_does_not_feel_scale() -> None:
    p, q = some_maps()
    value = lambda m: sum((z * s).sum() for z, s in zip(grid_transport(m / m.sum(), q, 4.0, 2000), (m / m.sum(), q)))  # noqa: E731, B905
    f = grid_transport(p, q, 4.0, 2000).f
    slope = f - (f * p).sum()
    assert (slope * p).sum().abs().item() < 1e-12
    for cell in ((0, 0), (2, 5)):
        step = torch.zeros_like(p)
        step[cell] = 1e-6
        assert slope[cell].item() == pytest.approx(((value(p + step) - value(p - step)) / 2e-6).item(), abs=1e-6)


def test_a_point_on_a_centre_fills_one_cell_and_between_four_it_fills_four() -> None:
    one = density_map(tensor([[-1.0, 1.0]]), tensor([2.0]), 1.0, 3)
    assert one[0, 2].item() == 2.0 and one.sum().item() == 2.0
    four = density_map(tensor([[0.5, 0.25]]), tensor([1.0]), 1.0, 3)
    assert torch.allclose(four[1:, 1:], tensor([[0.375, 0.125], [0.375, 0.125]]))


def test_mass_beyond_the_window_is_lost_within_a_cell() -> None:
    x = tensor([[1.0, 0.0], [1.5, 0.0], [2.0, 0.0], [50.0, 0.0]])
    each = [density_map(row[None], tensor([1.0]), 1.0, 3).sum().item() for row in x]
    assert each == [1.0, 0.5, 0.0, 0.0]


def test_slope_of_a_map_of_a_plane_is_the_plane_s() -> None:
    at = torch.linspace(-1, 1, 5).double()
    plane = 2.0 * at[:, None] - 3.0 * at
    slope = map_slope(tensor([[0.3, -0.7], [0.0, 0.2]]), plane, 1.0)
    assert torch.allclose(slope, tensor([[2.0, -3.0], [2.0, -3.0]]))


def test_velocity_is_minus_the_finite_difference_over_weight() -> None:
    x, a, target = clouds(7, 6, 2)
    loss, h = DmCount(grid=9, reach=2.0, iterations=2000), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(7):
        for d in range(2):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), rel=1e-4, abs=1e-5)


def test_without_mass_in_the_window_only_the_count_is_left() -> None:
    x, target = torch.full((3, 2), 100.0), Cloud(torch.zeros(2, 2))
    answer = velocity_of(DmCount(transport=1.0, variation=0.0), x, target, RNG)
    assert answer.value.item() == 1.0
    assert answer.v.abs().max().item() == 0.0
    empty = velocity_of(DmCount(), torch.zeros(2, 2), Cloud(x), RNG)
    assert torch.isfinite(empty.v).all() and empty.value.item() == 1.0


def test_a_plan_too_sharp_for_its_grid_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"DmCount: regularization must be at least 13\.2 for a grid of 64, got 10\."):
        DmCount(grid=64)


def test_the_flow_brings_particles_to_the_target() -> None:
    x = torch.randn(150, 2, generator=seeded(1), dtype=torch.float64) * 0.3 - 1.0
    loss = DmCount(grid=16, reach=3.0, regularization=3.0, variation=0.0, iterations=50)
    target = loss.prepare(Cloud(torch.randn(150, 2, generator=seeded(2), dtype=torch.float64) * 0.3 + 1.0))
    for _ in range(60):
        x = x + 0.1 * velocity_of(loss, x, target, RNG).v
    # Cells are 0.4 wide, and the blur gathers particles at one of their centres.
    assert torch.allclose(x.mean(0), target.x.mean(0), atol=0.1)


def test_a_kept_potential_saves_sweeps_and_changes_nothing() -> None:
    p, q = some_maps()
    cold = grid_transport(p, q, 2.0, 2000)
    kept = grid_transport(p, q, 2.0, 10, start=cold.g)
    assert torch.allclose(cold.f, kept.f, atol=1e-7)
    assert not torch.allclose(cold.f, grid_transport(p, q, 2.0, 1).f, atol=1e-3)
