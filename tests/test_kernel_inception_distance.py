"""Kernel inception distance: known arrays, Gaussians, moments against tiles, subsets, and what it cannot see."""

import pytest
import torch
from pair_cases import agrees, clouds, gaussian_samples, hermite, known, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import _polynomial
from dmviz.losses._polynomial import Polynomial, heard
from dmviz.losses.kernel_inception_distance import KernelInceptionDistance

KNOWN = known("more")
RNG = seeded(0)


@pytest.mark.parametrize("case", ["mmd2_V_uniform_poly3", "mmd2_U_uniform_poly3"])
def test_known_arrays(case: str) -> None:
    x, a, target = small(KNOWN[case]["inputs"])
    loss = KernelInceptionDistance(estimator="unbiased" if "_U_" in case else "biased")
    assert agrees(loss(x, target, RNG, a).item(), KNOWN[case])
    assert agrees(autograd_velocity(loss, x, target, RNG, a).value.item(), KNOWN[case])


def test_two_gaussians_of_the_plane() -> None:
    case = KNOWN["kid_pop_d2"]
    eye = torch.eye(2).tolist()
    x, target = hermite([0.0, 0.0], eye, 12), hermite([float(m) for m in case["inputs"]["mu"]], eye, 12)
    got = KernelInceptionDistance(estimator="biased")(x.x, target, RNG, x.weight).item()
    assert agrees(got, case)


def test_two_gaussians_in_64_dimensions_by_samples() -> None:
    case = KNOWN["kid_pop_d64"]
    mean = [(case["inputs"]["mu_sq"] / 64) ** 0.5] * 64
    x, y = (gaussian_samples(2000, m, torch.eye(64).tolist(), i) for i, m in enumerate(([0.0] * 64, mean)))
    got = KernelInceptionDistance(estimator="unbiased")(x, Cloud(y), RNG).item()
    assert got == pytest.approx(case["value"], abs=0.015)  # four standard errors, about


def test_two_gaussians_in_64_dimensions_by_points_with_the_same_three_moments() -> None:
    case, d = KNOWN["kid_pop_d64"], 64
    x = torch.cat([torch.eye(d), -torch.eye(d)]).double() * d**0.5  # those of a standard Gaussian
    shift = torch.full((d,), (case["inputs"]["mu_sq"] / d) ** 0.5, dtype=torch.float64)
    assert agrees(KernelInceptionDistance(estimator="biased")(x, Cloud(x + shift), RNG).item(), case)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_moments_and_tiles_give_the_same_sums(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, target = clouds(500, 400, 3)
    kernel = Polynomial(order, 0.4, 0.7)
    by_moments = heard(x, target.x, target.weight, kernel)
    monkeypatch.setattr(_polynomial, "SMALL", 0)
    by_tiles = heard(x, target.x, target.weight, kernel)
    plain = (x @ target.x.T * 0.4 + 0.7) ** order
    assert torch.allclose(by_moments.s, plain @ target.weight, rtol=1e-12)
    assert torch.allclose(by_tiles.s, by_moments.s, rtol=1e-11)
    assert torch.allclose(by_tiles.grad, by_moments.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize(("d", "order"), [(1, 3), (2, 3), (3, 5), (40, 3), (45, 3), (2, 1)])
def test_velocity_is_minus_gradient_over_weight(d: int, order: int, estimator: str) -> None:
    x, a, target = clouds(50, 40, d)
    loss = KernelInceptionDistance(order=order, scale=0.8, estimator=estimator)
    auto = autograd_velocity(loss, x, target, RNG, a)
    for aimed in (target, loss.prepare(target)):
        closed = velocity_of(loss, x, aimed, RNG, a)
        assert torch.allclose(closed.v, auto.v, rtol=1e-9, atol=1e-9)
        assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10)


def test_order_one_is_the_distance_between_means() -> None:
    x, a, target = clouds(30, 20, 4)
    got = KernelInceptionDistance(order=1, scale=0.5, estimator="biased")(x, target, RNG, a).item()
    assert got == pytest.approx(((a @ x - target.weight @ target.x).square().sum() / 4 / 0.25).item(), rel=1e-10)


def test_it_cannot_tell_laws_apart_that_share_three_moments() -> None:
    normal = hermite([0.0], [[1.0]], 3)  # three nodes already have the normal law's first five moments
    x = hermite([0.0], [[1.0]], 30)
    assert KernelInceptionDistance(estimator="biased")(x.x, normal, RNG, x.weight).item() == pytest.approx(0, abs=1e-11)
    assert (
        KernelInceptionDistance(order=5, constant=0.0, estimator="biased")(
            x.x, Cloud(normal.x + 0.1, normal.weight), RNG, x.weight
        ).item()
        > 1e-3
    )


def test_subsets_average_to_all_points_and_follow_their_seed() -> None:
    x, _, target = clouds(150, 140, 2)
    target = Cloud(target.x)
    every = KernelInceptionDistance(estimator="unbiased")(x, target, RNG).item()
    loss = KernelInceptionDistance(estimator="unbiased", points="subsets", subsets=20, subset_size=40)
    draws = tensor([loss(x, target, seeded(1, i)).item() for i in range(10)])
    assert draws.mean().item() == pytest.approx(every, abs=4 * draws.std().item() / 10**0.5)
    assert loss(x, target, seeded(1, 0)).item() == draws[0].item()
    loss = KernelInceptionDistance(estimator="unbiased", points="subsets", subsets=5, subset_size=80)
    closed, auto = velocity_of(loss, x, target, seeded(2)), autograd_velocity(loss, x, target, seeded(2))
    assert torch.allclose(closed.v, auto.v, rtol=1e-9, atol=1e-9)


def test_descent_lowers_it() -> None:
    x, _, target = clouds(60, 50, 2)
    loss, values = KernelInceptionDistance(estimator="biased"), []
    for _ in range(40):
        v, value, _ = velocity_of(loss, x, target, RNG)
        values.append(value.item())
        x = x + 0.01 * v
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.7 * values[0]


def test_a_single_particle_hears_the_target_alone() -> None:
    one, target = tensor([[0.5, 0.2]]), Cloud(tensor([[1.0, 1.0], [2.0, 0.0]]))
    v = velocity_of(KernelInceptionDistance(estimator="unbiased"), one, target, RNG).v
    pull = heard(one, target.x, target.mass(), Polynomial(3, 0.5, 1.0)).grad
    assert torch.allclose(v, 2 * pull)


def test_the_unbiased_flow_has_no_floor_and_the_biased_one_has() -> None:
    opposite = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    values = {
        name: [KernelInceptionDistance(estimator=name)(s * opposite, Cloud(opposite), RNG).item() for s in (1.0, 10.0)]
        for name in ("biased", "unbiased")
    }
    assert values["unbiased"][1] < -1e5 < values["unbiased"][0]
    assert values["biased"][1] > values["biased"][0] >= 0
