"""Unbalanced Sinkhorn: known values, two points, limits of the reach, gradients, sweeps against Newton steps."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, path, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, velocity_of
from dmviz.losses._entropic import Effort, Problem, log_weight
from dmviz.losses._unbalanced import Leaky, solve, solve_self, solve_small
from dmviz.losses.sinkhorn import Sinkhorn
from dmviz.losses.unbalanced_sinkhorn import UnbalancedSinkhorn

__all__ = ["path"]
KNOWN = json.loads((Path(__file__).parent / "known" / "transport_more.json").read_text())
RNG = seeded(0)
ARRAYS = [name for name in KNOWN if name.startswith(("uot_eps", "uot_sinkdiv"))]


def split(inputs):
    """Particles, their weights, the target with weights that sum to 1, and the target's mass."""
    x, a, target = small(inputs)
    mass = target.weight.sum().item()
    return x, a, Cloud(target.x, target.weight / mass), mass


def two_points(a: float, b: float, c: float, rho: float, eps: float) -> float:
    problem = Problem(tensor([[0.0]]), tensor([[math.sqrt(2 * c)]]), tensor([a]).log(), tensor([b]).log(), 2,
                      math.sqrt(eps), False)  # fmt: skip
    return solve_small(Leaky(problem, rho)).value


@pytest.mark.parametrize("name", ARRAYS)
def test_known_arrays(name):
    case = KNOWN[name]
    x, a, target, mass = split(case["inputs"])
    blur, reach = math.sqrt(case["inputs"]["eps"]), math.sqrt(case["inputs"]["rho"])
    loss = UnbalancedSinkhorn(blur, reach, mass=mass, debias="sinkdiv" in name)
    assert agrees(loss(x, target, RNG, a).item(), case)
    assert agrees(loss.velocity(x, loss.prepare(target), RNG, a).value.item(), case)


@pytest.mark.parametrize("name", [name for name in KNOWN if name.startswith("uot_dirac")])
def test_two_points_have_the_closed_form(name):
    case = KNOWN[name]
    inputs = case["inputs"]
    if inputs["eps"] > 0:
        assert agrees(two_points(**inputs), case)
        return
    # The value is smooth in eps: two small ones, and the first order taken out.
    one, two = (two_points(**{**inputs, "eps": eps}) for eps in (1e-6, 2e-6))
    assert agrees(2 * one - two, case)


def test_sweeps_reach_the_known_values_too(path):
    for name in ("uot_eps_rho1.0_eps0.25", "uot_eps_rho0.5_eps1.0"):
        x, a, target, mass = split(KNOWN[name]["inputs"])
        blur, rho = math.sqrt(KNOWN[name]["inputs"]["eps"]), KNOWN[name]["inputs"]["rho"]
        log_b = log_weight(mass * target.weight)
        leaky = Leaky(Problem(x, target.x, log_weight(a), log_b, 2, blur, path == "compiled"), rho)
        assert agrees(solve(leaky, Effort(1e-12, 2000)).value, KNOWN[name])
        own = Leaky(leaky.problem._replace(y=x, log_b=log_weight(a)), rho)
        by_newton, by_sweeps = solve_small(own), solve_self(own, Effort(1e-12, 2000))
        assert by_sweeps.value == pytest.approx(by_newton.value, abs=1e-9)
        assert torch.allclose(by_sweeps.g, by_newton.g, atol=1e-7)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("debias", [True, False])
def test_gradient_is_that_of_the_plan_by_finite_differences(p, debias):
    x, a, target = clouds(6, 5, 2)
    x = x + 0.01 * torch.arange(6).double()[:, None]  # no two points meet: there the cost has a kink for p = 1
    loss, step = UnbalancedSinkhorn(0.4, 0.8, p, 1.7, debias), 1e-5
    v = velocity_of(loss, x, target, RNG, a).v
    for i, d in ((0, 0), (3, 1)):
        move = torch.zeros_like(x)
        move[i, d] = step
        slope = (loss(x + move, target, RNG, a) - loss(x - move, target, RNG, a)).item() / (2 * step)
        assert -v[i, d].item() * a[i].item() == pytest.approx(slope, abs=1e-7)  # of order step^2 over the least gap^2


@pytest.mark.parametrize("p", [1, 2])
def test_a_long_reach_is_the_sinkhorn_divergence(p):
    x, a, target = clouds(12, 9, 2)
    far, balanced = UnbalancedSinkhorn(0.3, 1000.0, p), Sinkhorn(0.3, p)
    got, want = (velocity_of(loss, x, target, RNG, a) for loss in (far, balanced))
    assert got.value.item() == pytest.approx(want.value.item(), rel=3 / 1000.0)  # of order eps and cost over rho
    assert (got.v - want.v).abs().max() < 1e-2 * want.v.abs().max()


def test_a_short_reach_leaves_everything_where_it_is():
    x, a, target = clouds(12, 9, 2)
    answer = velocity_of(UnbalancedSinkhorn(0.01, 0.01), x, Cloud(target.x + 5, target.weight), RNG, a)
    assert 0 <= answer.value.item() < 2 * 0.01**2
    assert answer.v.abs().max() < 1e-12


def test_an_outlier_of_the_target_hardly_pulls():
    x = torch.randn(30, 2, generator=seeded(1), dtype=torch.float64)
    target = Cloud(torch.cat([x, tensor([[50.0, 0.0]])]))
    pulled, left = (velocity_of(loss, x, target, RNG).v for loss in (Sinkhorn(0.2), UnbalancedSinkhorn(0.2, 1.0)))
    assert pulled.abs().max() > 1
    assert left.abs().max() < 0.1


def test_equal_clouds_are_at_zero_and_stay():
    x, a, _ = clouds(30, 3, 2)
    for p in (1, 2):
        answer = velocity_of(UnbalancedSinkhorn(0.3, 0.7, p), x, Cloud(x, a), RNG, a)
        assert abs(answer.value.item()) < 1e-12
        assert answer.v.abs().max() < 1e-9


def test_a_target_of_other_mass_is_never_at_zero():
    x, a, _ = clouds(12, 3, 2)
    loss = UnbalancedSinkhorn(mass=2.0)
    assert "zero_at_target" not in loss.laws and "symmetric" not in loss.laws
    # Without a way to go only the masses differ: rho (m_a + m_b - 2 sqrt(m_a m_b)) as the blur goes to zero.
    point = tensor([[1.0, 2.0]])
    lone = UnbalancedSinkhorn(blur=1e-3, reach=1.0, mass=2.0)(point, Cloud(point), RNG).item()
    assert lone == pytest.approx(3 - 2 * math.sqrt(2), abs=1e-5)
    assert loss(x, Cloud(x, a), RNG, a).item() > 0.1


def test_sweeps_and_newton_steps_agree_and_a_flow_keeps_its_potentials(path):
    x = torch.randn(240, 2, generator=seeded(1), dtype=torch.float64)
    target = Cloud(torch.randn(230, 2, generator=seeded(2), dtype=torch.float64) * 0.5 + 1)
    loss = UnbalancedSinkhorn(0.2, 1.0, tolerance=1e-9, iterations=2000)
    cold = velocity_of(loss, x, target, RNG)
    solved = loss._solved(x, target, None, None)
    assert solved.there.value == pytest.approx(solve_small(solved.cross).value, abs=1e-9)
    field = aim(loss, target)
    step = field(x + 0.01 * cold.v, RNG, cold.carry)
    fresh = field(x + 0.01 * cold.v, RNG)
    assert torch.allclose(step.v, fresh.v, atol=1e-5)
    assert step.value.item() == pytest.approx(fresh.value.item(), abs=1e-8)


def test_far_apart_clouds_have_a_finite_value_and_no_pull():
    x, a, target = clouds(8, 5, 3)
    for p in (1, 2):
        loss = UnbalancedSinkhorn(0.05, 1.0, p, debias=False)
        answer = velocity_of(loss, x, Cloud(target.x + 1e3, target.weight), RNG, a)
        assert answer.value.item() == pytest.approx(2 + 0.05**p, abs=1e-12)  # both masses are written off
        assert torch.isfinite(answer.v).all() and answer.v.abs().max() < 1e-100
