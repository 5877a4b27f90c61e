"""f-distill: scores of Gaussians that bumps represent exactly, flows with known ends, and what its switches change."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, hermite, path, tensor
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, velocity_of
from dmviz.flows.euler import Euler
from dmviz.losses._ratios import GENERATORS, Ratio
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.f_distill import FDistill
from dmviz.shapes.eight_gaussians import EightGaussians
from dmviz.shapes.two_moons import TwoMoons

__all__ = ["path"]
KNOWN = json.loads((Path(__file__).parent / "known" / "densities.json").read_text())
RNG = seeded(0)
PLAIN = {"as_released": False}


def normal(d: int = 1) -> Cloud:
    log_prob = lambda z: -z.square().sum(1) / 2 - d / 2 * math.log(2 * math.pi)  # noqa: E731
    return Cloud(torch.zeros(1, d, dtype=torch.float64), score=lambda z: -z, log_prob=log_prob)


def bumpy(mean: float, variance: float, h: float) -> Cloud:
    """Points whose bumps of width h add up to N(mean, variance)."""
    return hermite([mean], [[variance - h * h]], 60)


def matches(got: Tensor, case: dict) -> bool:
    value = tensor(case["value"])
    return bool(((got - value).abs() <= case["tolerance"] * value.abs().clamp_min(1.0)).all())


def test_known_direction_of_two_bump_clouds(path: str) -> None:
    inputs = KNOWN["dmd_dir_kde"]["inputs"]
    x, a, target = tensor(inputs["X"]), tensor(inputs["a"]), Cloud(tensor(inputs["Y"]), tensor(inputs["b"]))
    loss = FDistill("reverse_kl", inputs["h"], **PLAIN)
    assert matches(loss.probe(tensor(inputs["at"]), x, target, RNG, a), KNOWN["dmd_dir_kde"])


def test_velocity_of_the_chi_square_flow(path: str) -> None:
    """The flow of int (q / p - 1)^2 p is that of Neyman's chi-square, as the ratio here is p / q."""
    h, case = 0.7, KNOWN["flow_chi2_velocity"]
    q = bumpy(1.0, 1.0, h)
    loss = FDistill("neyman_chi2", h, target_law="density", **PLAIN)
    pull = loss.probe(tensor([[case["inputs"]["x"]]]), q.x, normal(), RNG, q.weight)
    assert matches(pull[0, 0], case)


def test_flow_of_reverse_kl_follows_the_ornstein_uhlenbeck_law() -> None:
    """Moments of a Gaussian under v = s_p - s_q, read at Hermite points and stepped by the classical Runge-Kutta."""
    case, q, few = KNOWN["flow_ou"], hermite([0.0], [[1.0]], 40), hermite([0.0], [[1.0]], 6)

    def rate(state: tuple[float, float]) -> tuple[float, float]:
        mean, variance = state
        deviation = math.sqrt(variance)
        x, at = mean + math.sqrt(0.2) * deviation * q.x, mean + deviation * few.x
        loss = FDistill("reverse_kl", math.sqrt(0.8) * deviation, target_law="density", **PLAIN)
        v = loss.probe(at, x, normal(), RNG, q.weight)[:, 0]
        return float(few.weight @ v), float(2 * few.weight @ ((at[:, 0] - mean) * v))

    state, steps = (float(case["inputs"]["m0"]), float(case["inputs"]["v0"])), 500
    dt = case["inputs"]["t"] / steps
    add = lambda s, k, c: (s[0] + c * k[0], s[1] + c * k[1])  # noqa: E731
    for _ in range(steps):
        k1 = rate(state)
        k2 = rate(add(state, k1, dt / 2))
        k3 = rate(add(state, k2, dt / 2))
        k4 = rate(add(state, k3, dt))
        for k, c in ((k1, dt / 6), (k2, dt / 3), (k3, dt / 3), (k4, dt / 6)):
            state = add(state, k, c)
    assert matches(tensor(state), case)


def test_gradient_of_a_gaussian_generator() -> None:
    """x = m + s z under v has d KL / d(m, s) = -E v (1, z) = (m, s - 1 / s)."""
    case = KNOWN["dmd_gradient_mean"]
    m, s = case["inputs"]["m"], case["inputs"]["s"]
    h = 0.7 * s
    q, z = bumpy(m, s * s, h), hermite([0.0], [[1.0]], 20)
    v = FDistill("reverse_kl", h, target_law="density", **PLAIN).probe(m + s * z.x, q.x, normal(), RNG, q.weight)
    assert matches(-torch.stack([z.weight @ v[:, 0], z.weight @ (v * z.x)[:, 0]]), case)


@pytest.mark.parametrize(("name", "mean"), [("reverse_kl", 3.0), ("kl", 0.0)])
def test_reverse_kl_seeks_a_mode_and_kl_covers_both(name: str, mean: float) -> None:
    """One Gaussian against two apart: its best mean and deviation, by descent on the exact divergence."""
    case = KNOWN["mode_seeking_single_gaussian"]
    modes = torch.distributions.Normal(tensor([-3.0, 3.0]), 0.5)
    target = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(tensor([0.5, 0.5])), modes)
    lattice = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    state = tensor([2.0, math.log(1.0)]).requires_grad_(True)
    optimizer = torch.optim.LBFGS([state], max_iter=100, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        log_p, log_q = target.log_prob(lattice), torch.distributions.Normal(state[0], state[1].exp()).log_prob(lattice)
        f = GENERATORS["reverse_kl"].f(Ratio(log_p - log_q))
        inner = log_q.exp() * f if name == "reverse_kl" else log_p.exp() * -f  # KL = int p log r
        return inner.sum() * 0.01

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = value()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    got = [state[0].abs().item(), state[1].exp().item(), value().item()]
    known = case["value"][:3] if name == "reverse_kl" else case["value"][3:]
    for number, exact in zip(got, known, strict=False):
        assert number == pytest.approx(exact, abs=case["tolerance"])
    assert got[0] == pytest.approx(mean, abs=0.005)


@pytest.mark.parametrize("name", GENERATORS)
def test_population_velocity_is_the_slope_of_the_divergence(name: str) -> None:
    """Moving the mean of N(m, 1) against N(0, 1): -E v is the derivative of D_f in m."""
    m, h, step = 0.8, 0.7, 1e-4
    lattice = torch.linspace(-14, 14, 28001, dtype=torch.float64)
    log = lambda mean: -0.5 * (lattice - mean) ** 2 - 0.5 * math.log(2 * math.pi)  # noqa: E731

    def exact(mean: float) -> float:
        p, q = log(0.0), log(mean)
        return float((0.5 * (p.exp() + q.exp()) * GENERATORS[name].middle(Ratio(p - q))).sum() * 1e-3)

    q, at = bumpy(m, 1.0, h), hermite([m], [[1.0]], 60)
    v = FDistill(name, h, target_law="density", **PLAIN).probe(at.x, q.x, normal(), RNG, q.weight)[:, 0]
    slope = (exact(m + step) - exact(m - step)) / (2 * step)
    assert -float(at.weight @ v) == pytest.approx(slope, rel=2e-4)


def test_value_is_the_mean_of_a_form_that_is_never_negative(path: str) -> None:
    x, a, target = clouds(12, 9, 2)
    h = 0.8
    density = lambda c, w: (-(x[:, None] - c).square().sum(2) / (2 * h * h)).exp() @ w  # noqa: E731
    r = density(target.x, target.weight) / density(x, a)
    forms = {"reverse_kl": -r.log() + r - 1, "kl": r * r.log() - r + 1, "neyman_chi2": r - 2 + 1 / r}
    for released in (True, False):
        for name, form in forms.items():
            got = FDistill(name, h, as_released=released)(x, target, RNG, a)
            assert got.item() == pytest.approx((a @ form).item(), rel=1e-9)


def test_equal_clouds_do_not_move(path: str) -> None:
    x, a, _ = clouds(12, 9, 2)
    for name in GENERATORS:
        answer = velocity_of(FDistill(name), x, Cloud(x, a), RNG, a)
        assert answer.value.abs() < 1e-12 and answer.v.abs().max() < 1e-9


def test_as_released_the_weights_have_mean_one_and_the_ratio_is_held(path: str) -> None:
    x, a, target = clouds(30, 20, 2)
    gap = velocity_of(FDistill("reverse_kl", **PLAIN), x, target, RNG, a).v
    for name in GENERATORS:
        v = velocity_of(FDistill(name), x, target, RNG, a).v
        h = (v * gap).sum(1) / gap.square().sum(1)
        assert float(a @ h) == pytest.approx(1.0, abs=1e-4)
        torch.testing.assert_close(v, h[:, None] * gap)
    far = Cloud(target.x + 100.0, target.weight)
    plain, released = (velocity_of(FDistill("kl", as_released=s), x, far, RNG, a).v for s in (False, True))
    torch.testing.assert_close(plain, math.exp(-10) * released, rtol=1e-4, atol=0)  # every ratio at its lower bound


def test_scores_alone_carry_eight_modes() -> None:
    target = EightGaussians().sample(300, seeded(1))
    field, x = aim(FDistill("kl", 0.3), Cloud(target.x)), torch.randn(300, 2, generator=seeded(2)) * 2
    first = field(x, RNG).value
    for _ in range(150):
        x = x + 0.02 * field(x, RNG).v
    assert field(x, RNG).value < 0.1 * first
    assert torch.cdist(target.x, x).amin(1).max() < 1.5


def test_a_density_that_is_not_known_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="FDistill: target law 'density' needs"):
        FDistill(target_law="density")(tensor([[0.0]]), Cloud(tensor([[1.0]])), RNG)


def test_adaptive_steps_bear_a_value_that_wavers_and_arrive() -> None:
    """The velocity is not the slope of the value, so that Armijo's rule would stop the flow at once."""
    target = Cloud(TwoMoons().sample(200, seeded(1)).x)
    field, flow, measure = aim(FDistill(), target), Euler(dt=0.1), EnergyDistance()
    state = flow.init(torch.randn(200, 2, generator=seeded(2)), field, RNG)
    before = measure(state.x, target, RNG)
    for _ in range(60):
        state, _ = flow.step(state, field, RNG)
    assert measure(state.x, target, RNG) < 0.05 * before
