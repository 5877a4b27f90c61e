"""Conditional operator discrepancy: the operator itself in finitely many features, conditions, ridge and gradients."""

import math

import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.conditional_operator_discrepancy import MOST, ConditionalOperatorDiscrepancy

RNG = seeded(0)


def features(x: torch.Tensor, like: torch.Tensor, length: float) -> torch.Tensor:
    """(N, J) exact coordinates of gaussian features in the space that the points `like` span."""
    k = lambda u, v: torch.exp(-(u[:, None] - v[None]).square().sum(-1) / (2 * length**2))  # noqa: E731
    values, vectors = torch.linalg.eigh(k(like, like))
    keep = values > 1e-11
    return k(x, like) @ vectors[:, keep] / values[keep].sqrt()


def operator(
    x: torch.Tensor, a: torch.Tensor, like: torch.Tensor, loss: ConditionalOperatorDiscrepancy
) -> torch.Tensor:
    """C_ZY (C_YY + ridge)^-1 written out in coordinates."""
    phi = features(x[:, :-1], like[:, :-1], loss.bandwidth)
    psi = features(x[:, -1:], like[:, -1:], loss.condition_bandwidth)
    c_zy, c_yy = phi.T @ (a[:, None] * psi), psi.T @ (a[:, None] * psi)
    return c_zy @ torch.linalg.inv(c_yy + loss.ridge * torch.eye(len(c_yy)).double())


@pytest.mark.parametrize("d", [2, 4])
def test_it_is_the_distance_between_the_operators_written_out(d: int) -> None:
    x, a, target = clouds(14, 11, d)
    loss = ConditionalOperatorDiscrepancy(0.9, 0.7, 0.1)
    like = torch.cat([x, target.x])
    apart = operator(x, a, like, loss) - operator(target.x, target.weight, like, loss)
    assert loss(x, target, RNG, a).item() == pytest.approx(apart.square().sum().item(), rel=1e-6)


def test_it_is_the_conditional_mmd_of_equal_weights_with_n_times_the_ridge() -> None:
    x, _, target = clouds(10, 8, 3)
    loss, y = ConditionalOperatorDiscrepancy(0.9, 0.7, 0.1), target.x
    k = lambda u, v: torch.exp(-torch.cdist(u, v).square() / (2 * 0.9**2))  # noqa: E731
    l = lambda u, v: torch.exp(-torch.cdist(u, v).square() / (2 * 0.7**2))  # noqa: E731
    (zp, cp), (zq, cq) = ((u[:, :-1], u[:, -1:]) for u in (x, y))
    p, q = (torch.linalg.inv(l(c, c) + 0.1 * len(c) * torch.eye(len(c)).double()) for c in (cp, cq))
    own = [torch.trace(k(z, z) @ w @ l(c, c) @ w) for z, c, w in ((zp, cp, p), (zq, cq, q))]
    cross = torch.trace(k(zp, zq) @ q @ l(cq, cp) @ p)
    assert loss(x, Cloud(y), RNG).item() == pytest.approx((own[0] + own[1] - 2 * cross).item(), rel=1e-9)


@pytest.mark.parametrize("d", [2, 3, 10])
@pytest.mark.parametrize("n", [1, 25])
def test_velocity_is_minus_gradient_over_weight(n: int, d: int) -> None:
    x, a, target = clouds(max(n, 2), 20, d)
    x, a = x[:n], a[:n] / a[:n].sum()
    loss = ConditionalOperatorDiscrepancy(0.8, 0.6, 0.02)
    auto = autograd_velocity(loss, x, target, RNG, a)
    for aimed in (target, loss.prepare(target)):
        closed = velocity_of(loss, x, aimed, RNG, a)
        assert (closed.v - auto.v).abs().max() <= 1e-9 * auto.v.abs().max()
        assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-9, abs=1e-12)


def conditional(n: int, seed: int, y: torch.Tensor, slope: float) -> torch.Tensor:
    noise = 0.1 * torch.randn(n, generator=seeded(seed), dtype=torch.float64)
    return torch.stack((slope * y + noise, y), 1)


def test_the_law_of_the_condition_matters_little_and_the_law_given_it_much() -> None:
    n = 300
    even = torch.rand(n, generator=seeded(1), dtype=torch.float64) * 2 - 1
    leaning = torch.rand(n, generator=seeded(2), dtype=torch.float64).sqrt() * 2 - 1  # more often near 1
    loss = ConditionalOperatorDiscrepancy(0.5, 0.5, 1e-3)
    target = Cloud(conditional(n, 3, even, 1.0))
    same = loss(conditional(n, 4, leaning, 1.0), target, RNG).item()
    other = loss(conditional(n, 5, even, -1.0), target, RNG).item()
    assert other > 10 * same


def test_permuting_the_condition_is_seen_although_both_marginals_stay() -> None:
    y = torch.linspace(-1, 1, 60, dtype=torch.float64)
    x = torch.stack((y, y), 1)
    assert ConditionalOperatorDiscrepancy()(torch.stack((y, y.flip(0)), 1), Cloud(x), RNG).item() > 0.1
    assert ConditionalOperatorDiscrepancy()(x.flip(0), Cloud(x), RNG).item() == pytest.approx(0.0, abs=1e-12)


def test_a_particle_without_weight_changes_nothing_and_stays() -> None:
    x, a, target = clouds(12, 9, 2)
    more, weight = torch.cat([x, tensor([[0.3, 0.1]])]), torch.cat([a, torch.zeros(1).double()])
    loss = ConditionalOperatorDiscrepancy()
    assert loss(more, target, RNG, weight).item() == pytest.approx(loss(x, target, RNG, a).item(), rel=1e-12)
    assert not velocity_of(loss, more, target, RNG, weight).v[12].any()


def test_more_points_than_fit_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"at most 2,000 points, got 2,001\. Take fewer"):
        ConditionalOperatorDiscrepancy()(torch.zeros(MOST + 1, 2), Cloud(torch.zeros(3, 2)), RNG)


def test_two_points_by_hand() -> None:
    got = ConditionalOperatorDiscrepancy(1.0, 1.0, 0.5)(tensor([[0.0, 0.0]]), Cloud(tensor([[0.0, 2.0]])), RNG).item()
    assert got == pytest.approx((2 - 2 * math.exp(-2)) / 1.5**2, rel=1e-12)


def test_descent_matches_the_conditionals() -> None:
    y = torch.linspace(-1, 1, 40, dtype=torch.float64)
    x, target = conditional(40, 6, y, 0.0), Cloud(conditional(40, 7, y, 1.0))
    loss = ConditionalOperatorDiscrepancy(1.0, 0.5, 0.1)
    values = []
    for _ in range(60):
        v, value, _ = velocity_of(loss, x, target, RNG)
        values.append(value.item())
        x = x + 0.1 * v
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.2 * values[0]
