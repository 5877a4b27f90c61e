"""Divergences by a critic: Bayes logits, the bound of each divergence, honest halves, and a critic that is fooled."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._ratios import GENERATORS
from dmviz.losses.classifier_divergence import ClassifierDivergence
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.shapes.eight_gaussians import EightGaussians

KNOWN = json.loads((Path(__file__).parent / "known" / "densities.json").read_text())
RNG = seeded(0)
SURE = 1e-15


def weighed(points: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
    weight = torch.exp(-0.5 * ((points[:, 0] - mean) / deviation) ** 2)
    return weight / weight.sum()


def gaussians(p: list[float], q: list[float]) -> tuple[torch.Tensor, torch.Tensor, Cloud]:
    """Both laws as weights on one lattice: the particles and their weights, and the target."""
    points = torch.linspace(-18, 18, 721, dtype=torch.float64)[:, None]
    return points, weighed(points, *q), Cloud(points, weighed(points, *p))


def test_quadratic_critic_finds_the_bayes_logit() -> None:
    case = KNOWN["lr_gauss_logit"]
    x, a, target = gaussians(case["inputs"]["P"], case["inputs"]["Q"])
    critic = ClassifierDivergence(features="quadratic", ridge=SURE).critic(x, target, a)
    got = critic.log_ratio(tensor(case["inputs"]["x"])[:, None])
    assert ((got - tensor(case["value"])).abs() <= case["tolerance"]).all()


@pytest.mark.parametrize(
    ("case", "name"),
    [("kl_gauss_0", "kl"), ("jsd_gauss_0", "jensen_shannon"), ("hellinger2_gauss_0", "hellinger"),
     ("jeffreys_gauss_0", "jeffreys"), ("softrkl_gauss_0", "softened_reverse_kl"), ("chi2_gauss_0", "pearson_chi2"),
     ("jsd_gauss_1", "jensen_shannon"), ("hellinger2_gauss_1", "hellinger"), ("kl_gauss_1", "kl")],
)  # fmt: skip
def test_with_the_right_features_the_bound_is_the_divergence(case: str, name: str) -> None:
    x, a, target = gaussians(KNOWN[case]["inputs"]["P"], KNOWN[case]["inputs"]["Q"])
    got = ClassifierDivergence(name, features="quadratic", ridge=SURE)(x, target, RNG, a)
    assert got.item() == pytest.approx(KNOWN[case]["value"], rel=5e-4)  # log ratios beyond 10 are clipped


@pytest.mark.parametrize("name", GENERATORS)
def test_a_critic_that_cannot_see_the_difference_stays_below_it(name: str) -> None:
    """Equal means and other spreads: a linear critic reads 0, a quadratic one the divergence."""
    x, a, target = gaussians([0.0, 1.0], [0.0, 1.5])
    blind, seeing = (ClassifierDivergence(name, f, ridge=SURE)(x, target, RNG, a) for f in ("linear", "quadratic"))
    assert blind.abs() < 1e-9 < 1e-3 < seeing


def test_accuracy_on_held_out_points_is_that_of_bayes() -> None:
    case = KNOWN["c2st_bayes_accuracy"]
    n = 20_000
    x = torch.randn(n, 1, generator=seeded(1), dtype=torch.float64)
    y = torch.randn(n, 1, generator=seeded(2), dtype=torch.float64) + 2.0
    got = ClassifierDivergence(features="linear").held_out(x, Cloud(y), seeded(3))
    assert abs(got.accuracy.item() - case["value"]) <= case["tolerance"]
    assert got.clipped < 1e-3


def test_held_out_value_does_not_flatter_where_the_clouds_have_one_law() -> None:
    x, y = (torch.randn(60, 2, generator=seeded(s), dtype=torch.float64) for s in (1, 2))
    loss = ClassifierDivergence(ridge=1e-4)
    trained, honest = loss(x, Cloud(y), RNG), loss.held_out(x, Cloud(y), seeded(3))
    assert trained > 0.05
    assert honest.value < 0.02
    assert honest.accuracy.item() == pytest.approx(0.5, abs=0.15)
    with pytest.raises(ValueError, match="at least two points"):
        loss.held_out(x[:1], Cloud(y), seeded(3))


def test_clouds_apart_are_clipped_without_a_ridge_and_still_pulled() -> None:
    x = torch.randn(50, 2, generator=seeded(1), dtype=torch.float64)
    y = x + 40.0
    sharp = ClassifierDivergence(features="linear", ridge=1e-12)
    assert sharp.held_out(x, Cloud(y), seeded(3)).clipped > 0.5
    assert sharp(x, Cloud(y), RNG).item() == pytest.approx(math.log(2), abs=1e-3)
    v = velocity_of(ClassifierDivergence("reverse_kl", "linear"), x, Cloud(y), RNG).v
    assert (v > 0).all()


@pytest.mark.parametrize("features", ["linear", "quadratic", "waves"])
@pytest.mark.parametrize("name", GENERATORS)
def test_velocity_is_the_slope_of_the_value_with_the_critic_held(name: str, features: str) -> None:
    x, a, target = clouds(14, 11, 3)
    loss = ClassifierDivergence(name, features)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    torch.testing.assert_close(closed.v, auto.v, rtol=1e-7, atol=1e-9 * float(auto.v.abs().max()))
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10)


@pytest.mark.parametrize("features", ["linear", "quadratic", "waves"])
def test_the_critic_is_at_the_bottom_of_its_loss(features: str) -> None:
    x, a, target = clouds(14, 11, 2)
    loss = ClassifierDivergence(features=features)
    critic = loss.critic(x, target, a)
    w = critic.w.clone().requires_grad_(True)
    held = critic._replace(w=w)
    cost = 0.5 * (target.weight @ torch.nn.functional.softplus(-held.log_ratio(target.x)))
    cost = cost + 0.5 * (a @ torch.nn.functional.softplus(held.log_ratio(x))) + 0.5 * loss.ridge * w.square().sum()
    (grad,) = torch.autograd.grad(cost, w)
    assert grad.abs().max() < 1e-10


def test_a_warm_start_ends_at_the_same_critic() -> None:
    x, a, target = clouds(40, 30, 2)
    loss = ClassifierDivergence()
    cold = velocity_of(loss, x, target, RNG, a)
    kept = cold.carry.w.clone()
    warm = velocity_of(loss, x + 0.1, target, RNG, a, cold.carry)
    torch.testing.assert_close(warm.v, velocity_of(loss, x + 0.1, target, RNG, a).v, rtol=1e-6, atol=1e-7)
    assert torch.equal(kept, cold.carry.w)


def test_particles_fool_the_critic() -> None:
    target = EightGaussians().sample(200, seeded(1))
    loss, measure = ClassifierDivergence("reverse_kl", waves=64), EnergyDistance()
    field, x, carry = aim(loss, Cloud(target.x)), torch.randn(200, 2, generator=seeded(2)) * 0.5, None
    before = measure(x, target, RNG)
    for _ in range(60):
        answer = field(x, RNG, carry)
        x, carry = x + 0.05 * answer.v, answer.carry
    assert measure(x, target, RNG) < 0.1 * before


def test_products_of_many_coordinates_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="quadratic features serve up to 24 dimensions, got 30"):
        ClassifierDivergence(features="quadratic")(torch.zeros(3, 30), Cloud(torch.ones(2, 30)), RNG)
