"""Sinkhorn divergence: known values, Gaussians, limits, translations, gradients, and the potentials a flow keeps."""

import math

import pytest
import torch
from pair_cases import agrees, clouds, known, lattice, path, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, velocity_of
from dmviz.flows.euler import Euler
from dmviz.losses._entropic import Effort, Problem, log_weight, soft
from dmviz.losses._newton import solve_small
from dmviz.losses._potentials import solve_pair, solve_self
from dmviz.losses.sinkhorn import Sinkhorn
from dmviz.shapes.pinwheel import Pinwheel

__all__ = ["path"]
KNOWN = known("sinkhorn")
RNG = seeded(0)
ARRAYS = [case for case in KNOWN if "blur" in KNOWN[case]["inputs"] and "p" in KNOWN[case]["inputs"]]


def value_of(case: str) -> float:
    """The number that a name of the reference asks for."""
    inputs = KNOWN[case]["inputs"]
    x, a, target = small(inputs)
    loss = Sinkhorn(inputs["blur"], inputs["p"], debias=case.startswith("sinkdiv"))
    if case.startswith("ot_eps_xx"):
        return loss(x, Cloud(x, a), RNG, a).item()
    if case.startswith("ot_eps_yy"):
        return loss(target.x, target, RNG, target.weight).item()
    if case.startswith("ot_eps_lin"):
        return linear_part(x, a, target, inputs["blur"], inputs["p"])
    return loss(x, target, RNG, a).item()


def linear_part(x, a, target, blur: float, p: int) -> float:
    """<plan, cost> from the potentials."""
    problem = Problem(x, target.x, log_weight(a), log_weight(target.weight), p, blur, False)
    pair = solve_small(problem)
    cost = torch.cdist(x, target.x) ** p / p
    plan = a[:, None] * target.weight * torch.exp((pair.f[:, None] + pair.g - cost) / blur**p)
    return (plan * cost).sum().item()


@pytest.mark.parametrize("case", ARRAYS)
def test_known_arrays(case: str) -> None:
    assert agrees(value_of(case), KNOWN[case])


def test_sweeps_reach_the_known_values_too(path: str) -> None:
    for case in ("ot_eps_halfsq_blur1.0", "ot_eps_halfsq_blur0.5", "ot_eps_euclid_blur1.0", "ot_eps_euclid_blur0.5"):
        inputs = KNOWN[case]["inputs"]
        x, a, target = small(inputs)
        b, both = target.weight, path == "compiled"
        problem = Problem(x, target.x, log_weight(a), log_weight(b), inputs["p"], inputs["blur"], both)
        pair = solve_pair(problem, Effort(1e-13, 3000))
        assert agrees((a @ soft(problem, pair.g).f + b @ pair.g).item(), KNOWN[case])
        if case.replace("ot_eps", "ot_eps_xx") in KNOWN:
            own, _ = solve_self(problem._replace(y=x, log_b=log_weight(a)), Effort(1e-13, 3000))
            assert agrees((2 * a @ own).item(), KNOWN[case.replace("ot_eps", "ot_eps_xx")])


def test_gradient_of_the_known_arrays() -> None:
    case = KNOWN["sinkdiv_halfsq_blur1.0_grad"]
    x, a, target = small(case["inputs"])
    v = velocity_of(Sinkhorn(case["inputs"]["blur"]), x, target, RNG, a).v
    assert torch.allclose(-v * a[:, None], tensor(case["value"]), atol=case["tolerance"])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("debias", [True, False])
def test_gradient_by_finite_differences(p: int, debias: bool) -> None:
    x, a, target = clouds(6, 5, 2)
    x = x + 0.01 * torch.arange(6).double()[:, None]  # no two points meet: there the cost has a kink for p = 1
    loss, step = Sinkhorn(0.4, p, debias=debias), 1e-5
    v = velocity_of(loss, x, target, RNG, a).v
    for i, d in ((0, 0), (3, 1)):
        move = torch.zeros_like(x)
        move[i, d] = step
        slope = (loss(x + move, target, RNG, a) - loss(x - move, target, RNG, a)).item() / (2 * step)
        assert -v[i, d].item() * a[i].item() == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("number", [0, 1])
def test_gaussians_on_the_line(number: int) -> None:
    bare, debiased = KNOWN[f"ot_eps_gauss1d_{number}"], KNOWN[f"sinkdiv_gauss1d_{number}"]
    inputs = bare["inputs"]
    x, y = (lattice(inputs[f"m{i}"], inputs[f"s{i}"], 1 / 8 * inputs["s2"]) for i in (1, 2))
    # The reference has the cost |x - y|^2: twice ours, at twice our temperature.
    blur = math.sqrt(inputs["eps"] / 2)
    assert agrees(2 * Sinkhorn(blur, debias=False)(x.x, y, RNG, x.weight).item(), bare)
    assert agrees(2 * Sinkhorn(blur)(x.x, y, RNG, x.weight).item(), debiased)


@pytest.mark.parametrize("blur", [0.05, 1 / math.sqrt(2), 1.0, math.sqrt(10), 100.0])
def test_a_translation_costs_half_its_square_at_every_blur(blur: float) -> None:
    case = KNOWN["sinkdiv_translation"]
    x, a, _ = small(KNOWN["sinkdiv_halfsq_blur1.0"]["inputs"])
    shifted = Cloud(x + tensor(case["inputs"]["v"]), a)
    answer = velocity_of(Sinkhorn(blur), x, shifted, RNG, a)
    assert agrees(answer.value.item(), case)
    assert torch.allclose(answer.v, tensor(case["inputs"]["v"]).expand(4, 2), atol=1e-7)


def test_flow_of_a_translation_leaves_e_to_the_minus_t() -> None:
    case = KNOWN["flow_sinkhorn_translation"]
    x, a, _ = clouds(20, 3, 2)
    start, target, dt = x, Cloud(x + 2.0, a), case["inputs"]["t"] / 64
    carry = None
    for _ in range(64):
        _, value, carry = velocity_of(Sinkhorn(0.3), x, target, RNG, a, carry)
        v = math.sqrt(2 * value.item() / 2) * torch.ones_like(x)
        assert torch.allclose(velocity_of(Sinkhorn(0.3), x, target, RNG, a, carry).v, v, atol=1e-6)
        x = x + (math.exp(dt) - 1) / math.exp(dt) * v  # the exact move over dt along a field v = (target - x)
    assert (target.x - x)[0, 0].item() / 2.0 == pytest.approx(case["value"], abs=1e-6)
    assert torch.allclose(x - start, (x - start)[:1].expand_as(x), atol=1e-6)


def test_a_wide_blur_sees_only_the_means() -> None:
    x, a, target = small(KNOWN["sinkdiv_epsinf_p2"]["inputs"])
    got = Sinkhorn(1e3)(x, target, RNG, a).item()
    assert got == pytest.approx(KNOWN["sinkdiv_epsinf_p2"]["value"], abs=2e-6)  # it differs by order 1 / eps
    x, a, target = small(KNOWN["sinkdiv_epsinf_p1"]["inputs"])
    limit = KNOWN["sinkdiv_epsinf_p1"]["value"]
    near, far = (Sinkhorn(blur, 1)(x, target, RNG, a).item() - limit for blur in (500.0, 1000.0))
    assert 2 * far - near == pytest.approx(0, abs=1e-5)  # order 1 / eps taken out


def test_a_narrow_blur_is_exact_transport() -> None:
    x, y = tensor([[0.0], [1.0], [3.0], [7.0]]), tensor([[2.0], [2.5], [5.0], [10.0]])
    assert Sinkhorn(0.01)(x, Cloud(y), RNG).item() == pytest.approx(4.8125 / 2, abs=1e-8)
    assert Sinkhorn(0.01, 1)(x, Cloud(y), RNG).item() == pytest.approx(2.125, abs=0.01)  # off by order blur


def test_debiasing_is_what_makes_it_zero_at_the_target() -> None:
    x, a, _ = clouds(30, 3, 2)
    assert abs(Sinkhorn(0.5)(x, Cloud(x, a), RNG, a).item()) < 1e-12
    still = velocity_of(Sinkhorn(0.5), x, Cloud(x, a), RNG, a).v
    assert still.abs().max() < 1e-10
    shrinks = velocity_of(Sinkhorn(0.5, debias=False), x, Cloud(x, a), RNG, a).v
    assert ((x - a @ x) * shrinks).sum() < -0.1  # towards the middle


def test_scaling_lengths_scales_the_value() -> None:
    x, a, target = clouds(15, 12, 2)
    for p in (1, 2):
        one = Sinkhorn(0.3, p)(x, target, RNG, a).item()
        three = Sinkhorn(0.9, p)(3 * x, Cloud(3 * target.x, target.weight), RNG, a).item()
        assert three == pytest.approx(3**p * one, rel=1e-9)


def large(n: int = 320, m: int = 300, dtype: torch.dtype = torch.float64):
    """Two clouds of more pairs than are solved by Newton steps."""
    return clouds(n, m, 2, dtype)


@pytest.mark.parametrize("p", [1, 2])
def test_sweeps_and_newton_steps_agree(p: int, path: str) -> None:
    x, a, target = large()
    by_sweeps = velocity_of(Sinkhorn(0.3, p, tolerance=1e-10, iterations=5000), x, target, RNG, a)
    problem = Problem(x, target.x, log_weight(a), log_weight(target.weight), p, 0.3, False)
    exact = solve_small(problem)
    _, back = solve_self(problem._replace(y=x, log_b=log_weight(a)), Effort(1e-13, 3000))
    pull = soft(problem, exact.g, want_grad=True).grad
    assert torch.allclose(by_sweeps.v, back.grad - pull, atol=1e-7)


def test_default_effort_is_within_two_percent(path: str) -> None:
    x, a, target = large(500, 400)
    exact = velocity_of(Sinkhorn(0.1, tolerance=1e-9, iterations=10_000), x, target, RNG, a)
    usual = velocity_of(Sinkhorn(0.1), x, target, RNG, a)
    assert ((usual.v - exact.v).norm() / exact.v.norm()).item() < 0.02
    assert usual.value.item() == pytest.approx(exact.value.item(), rel=1e-3)


def test_kept_potentials_follow_a_flow(path: str) -> None:
    x, a, target = large(400, 350)
    loss = Sinkhorn(0.2)
    target = loss.prepare(target)
    carry = None
    for _ in range(30):
        answer = velocity_of(loss, x, target, RNG, a, carry)
        carry = answer.carry
        x = x + 0.1 * answer.v
    warm = velocity_of(loss, x, target, RNG, a, carry)
    exact = velocity_of(Sinkhorn(0.2, tolerance=1e-9, iterations=10_000), x, target, RNG, a)
    assert (warm.v - exact.v).square().mean().sqrt().item() < 0.01  # of clouds about one across
    assert warm.value.item() == pytest.approx(exact.value.item(), abs=1e-4)
    assert warm.carry.drift < 0.1


def test_particles_that_jumped_are_solved_from_cold(path: str) -> None:
    x, a, target = large()
    loss = Sinkhorn(0.1)
    carry = velocity_of(loss, x, target, RNG, a).carry
    jumped = x.flip(0) * 1.5
    warm, cold = velocity_of(loss, jumped, target, RNG, a, carry), velocity_of(loss, jumped, target, RNG, a)
    assert warm.carry.drift <= loss.tolerance
    assert (warm.v - cold.v).square().mean().sqrt().item() < 0.01


@pytest.mark.parametrize(("n", "blur"), [(300, 0.1), (300, 0.05)])
def test_a_flow_shows_the_true_value_to_its_end(n: int, blur: float, path: str) -> None:
    """Kept potentials that lag behind show a value that falls to 0, comes up again, and stops an adaptive flow."""
    y, x = Pinwheel().sample(n, seeded(1)).x.float(), torch.randn(n, 2, generator=seeded(0))
    loss, exact = Sinkhorn(blur), Sinkhorn(blur, tolerance=1e-4, iterations=2000)
    field, flow = aim(loss, Cloud(y)), Euler(0.2)
    state = flow.init(x, field, RNG)
    first, shown = state.value.item(), [state.value.item()]
    for step in range(40):
        state, info = flow.step(state, field, RNG)
        shown.append(state.value.item())
        if step % 8 == 7:
            true = velocity_of(exact, state.x.double(), Cloud(y.double()), RNG)
            assert abs(state.value.item() - true.value.item()) <= 0.05 * true.value.item() + 1e-5 * first
            assert (state.v - true.v).norm() <= 0.25 * true.v.norm() + 1e-3
    assert state.time > 7.9  # no step was refused because of the potentials
    assert shown == sorted(shown, reverse=True)
    assert min(shown) > 0


def test_a_carry_is_never_changed(path: str) -> None:
    x, a, target = large()
    carry = velocity_of(Sinkhorn(0.1), x, target, RNG, a).carry
    carry = velocity_of(Sinkhorn(0.1), x + 0.01, target, RNG, a, carry).carry
    kept = [t for t in carry if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in kept]
    assert len(kept) == 9
    one, two = (velocity_of(Sinkhorn(0.1), x + 0.02, target, RNG, a, carry) for _ in range(2))
    assert torch.equal(one.v, two.v)
    for old, new in zip(before, kept, strict=True):
        assert torch.equal(old, new)


def test_probe_at_the_particles_is_their_velocity(path: str) -> None:
    for x, a, target in (clouds(40, 30, 3), large()):
        for p in (1, 2):
            loss = Sinkhorn(0.4, p)
            assert torch.allclose(loss.probe(x, x, target, RNG, a), velocity_of(loss, x, target, RNG, a).v, atol=1e-9)


def test_points_without_weight_do_not_matter() -> None:
    x, a, target = clouds(12, 10, 2)
    more = torch.cat([x, x[:3] + 5])
    weight = torch.cat([a, torch.zeros(3).double()])
    assert Sinkhorn(0.3)(more, target, RNG, weight).item() == pytest.approx(Sinkhorn(0.3)(x, target, RNG, a).item())
    assert torch.isfinite(velocity_of(Sinkhorn(0.3), more, target, RNG, weight).v).all()


@pytest.mark.parametrize("p", [1, 2])
def test_float32_far_from_the_origin(p: int, path: str) -> None:
    x, a, target = large(dtype=torch.float32)
    x, y = (x * 64).round() / 64, (target.x * 64).round() / 64  # exact at 8192 in float32
    loss = Sinkhorn(0.2, p, tolerance=1e-3, iterations=1000)
    near = velocity_of(loss, x, Cloud(y, target.weight), RNG, a)
    far = velocity_of(loss, x + 8192, Cloud(y + 8192, target.weight), RNG, a)
    assert (near.v - far.v).abs().max() <= 1e-3 * near.v.abs().max()
    assert far.value.item() == pytest.approx(near.value.item(), rel=1e-4)
