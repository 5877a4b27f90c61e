"""Truncated kernel Stein discrepancy: known arrays, its conditioned kernel, boundary points, and gradients."""

import math

import pytest
import torch
from pair_cases import agrees, clouds, hermite, known, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.ksd import Ksd
from dmviz.losses.truncated_ksd import TruncatedKsd, boundary_points

__all__ = ["path"]
KNOWN = known("more")
RNG = seeded(0)


def quartic(x: torch.Tensor) -> torch.Tensor:
    """A score whose Jacobian is not symmetric in form and changes from place to place."""
    return -x * (1 + 0.3 * x.square().sum(1, keepdim=True)) + torch.sin(x).roll(1, 1)


def normal(x: torch.Tensor) -> Cloud:
    return Cloud(x, score=lambda z: -z)


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("ridge", [0.0, 0.001])
def test_known_arrays(ridge: float, estimator: str, path: str) -> None:
    case = KNOWN[f"tksd2_{'V' if estimator == 'biased' else 'U'}_ridge{ridge}"]
    x = tensor(case["inputs"]["X"])
    # The least ridge stands for none: it changes the value by 1e-8.
    loss = TruncatedKsd("ball", 1.0, case["inputs"]["l"], 8, max(ridge, 1e-8), estimator)
    assert agrees(loss(x, normal(x), RNG).item(), case)
    assert agrees(autograd_velocity(loss, x, normal(x), RNG).value.item(), case)


def test_the_same_points_without_a_border(path: str) -> None:
    case = KNOWN["ksd2_V_same_points"]
    x, length = tensor(case["inputs"]["X"]), case["inputs"]["l"]
    assert agrees(Ksd(bandwidth=length)(x, normal(x), RNG).item(), case)
    assert agrees(TruncatedKsd(radius=900.0, bandwidth=length)(x, normal(x), RNG).item(), case)


def test_it_is_the_stein_discrepancy_of_a_kernel_that_vanishes_on_the_border() -> None:
    x, a, _ = clouds(6, 2, 2)
    loss = TruncatedKsd("box", 1.5, 0.9, 12, 1e-6)
    z = boundary_points("box", 12, 2) * 1.5

    def base(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(u[:, None] - v[None]).square().sum(-1) / (2 * 0.9**2))

    inverse = torch.linalg.inv(base(z, z) + 1e-6 * torch.eye(12).double())

    def conditioned(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return base(u[None], v[None])[0, 0] - (base(u[None], z) @ inverse @ base(z, v[None]))[0, 0]

    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            su, sv = quartic(x[i : i + 1])[0], quartic(x[j : j + 1])[0]
            k, (ku, kv) = conditioned(x[i], x[j]), torch.func.grad(conditioned, (0, 1))(x[i], x[j])
            cross = torch.func.jacrev(torch.func.grad(conditioned, 1), 0)(x[i], x[j])
            total += (a[i] * a[j] * (k * (su @ sv) + su @ kv + sv @ ku + cross.trace())).item()
    assert loss(x, Cloud(x, score=quartic), RNG, a).item() == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("domain", ["ball", "box"])
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("d", [1, 2, 3, 10])
def test_velocity_is_minus_gradient_over_weight_with_the_scores_jacobian(
    d: int, estimator: str, domain: str, path: str
) -> None:
    x, a, _ = clouds(30, 2, d)
    target, loss = Cloud(x, score=quartic), TruncatedKsd(domain, 2.0, 0.9, 20, 1e-3, estimator)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    assert (closed.v - auto.v).abs().max() <= 1e-9 * auto.v.abs().max()
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-9)


def test_gradient_by_finite_differences() -> None:
    x, a, _ = clouds(7, 2, 2)
    target, step, loss = Cloud(x, score=quartic), 1e-5, TruncatedKsd(radius=1.5)
    v = velocity_of(loss, x, target, RNG, a).v
    for i, d in ((0, 1), (5, 0)):
        move = torch.zeros_like(x)
        move[i, d] = step
        slope = (loss(x + move, target, RNG, a) - loss(x - move, target, RNG, a)).item() / (2 * step)
        assert -v[i, d].item() * a[i].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_more_boundary_points_lower_it_and_it_stays_below_the_uncut_discrepancy() -> None:
    x, a, _ = clouds(20, 2, 2)
    values = [TruncatedKsd(boundary=m, ridge=1e-6)(x, normal(x), RNG, a).item() for m in (1, 2, 4, 8, 16, 32)]
    assert values == sorted(values, reverse=True)  # each set holds the one before
    assert values[0] <= Ksd(bandwidth=1.0)(x, normal(x), RNG, a).item()
    assert values[-1] >= 0


def test_a_density_cut_at_the_border_scores_less_than_its_discrepancy_as_if_uncut() -> None:
    whole = hermite([0.0], [[1.0]], 120)
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None]
    weight = torch.exp(-0.5 * grid[:, 0] ** 2)
    weight[0], weight[-1] = weight[0] / 2, weight[-1] / 2  # trapezes
    weight = weight / weight.sum()
    cut = TruncatedKsd(radius=1.0, ridge=1e-8)(grid, normal(grid), RNG, weight).item()
    assert cut == pytest.approx(0.0, abs=1e-6)
    assert Ksd(bandwidth=1.0)(grid, normal(grid), RNG, weight).item() > 0.01
    assert Ksd(bandwidth=1.0)(whole.x, normal(whole.x), RNG, whole.weight).item() == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_boundary_points_lie_on_the_border(d: int) -> None:
    ball, box = (boundary_points(domain, 40, d) for domain in ("ball", "box"))
    assert torch.allclose(ball.square().sum(1), torch.ones(len(ball)).double())
    assert torch.allclose(box.abs().amax(1), torch.ones(len(box)).double())
    assert len(ball) == len(box) == (2 if d == 1 else 40)


def test_boundary_points_of_the_plane_are_evenly_spaced() -> None:
    ball, box = (boundary_points(domain, 40, 2) for domain in ("ball", "box"))
    assert torch.allclose((ball - ball.roll(1, 0)).norm(dim=1), tensor(2 * math.sin(math.pi / 40)).expand(40))
    assert torch.allclose((box - box.roll(1, 0)).norm(dim=1), tensor(0.2).expand(40))


def test_a_target_without_a_score_is_refused_in_one_sentence() -> None:
    x, a, _ = clouds(10, 2, 2)
    with pytest.raises(ValueError, match="needs the score"):
        TruncatedKsd()(x, Cloud(x), RNG, a)


def test_descent_lowers_it() -> None:
    x, _, _ = clouds(60, 2, 2)
    x, values = 0.3 * x, []
    for _ in range(40):
        v, value, _ = velocity_of(TruncatedKsd(radius=1.0), x, normal(x), RNG)
        values.append(value.item())
        x = x + 0.01 * v
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.8 * values[0]
