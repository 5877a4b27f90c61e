"""Dirichlet-prior shaping: the Beta law against SciPy, the grid, its pull, corners, and rows that come to the prior."""

import numpy as np
import pytest
import torch
from pair_cases import clouds, tensor
from scipy.stats import beta

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses.dirichlet_prior import DirichletPrior, beta_cdf, clipped_density, shaping_grid

RNG = seeded(0)


def test_it_is_the_mean_squared_gap_to_the_beta_law_on_the_grid() -> None:
    x = torch.randn(7, 3, generator=seeded(1), dtype=torch.float64)
    alpha = np.array([1.4, 0.7, 0.7])
    shares = np.sort(x.softmax(1).numpy(), axis=0)
    grid = np.arange(1, 8)[:, None] / 8
    wanted = np.mean((grid - beta.cdf(shares, alpha, alpha.sum() - alpha)) ** 2)
    got = DirichletPrior(alpha=0.7, favor=2.0)(x, Cloud(x), RNG)
    assert got.item() == pytest.approx(wanted, rel=1e-12)


def test_shares_that_lie_on_the_grid_of_a_uniform_prior_cost_nothing() -> None:
    # Two classes and alpha 1: B(p) = p, so that p = 1/4, 1/2, 3/4 is the best that three rows can do.
    p = tensor([[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
    answer = velocity_of(DirichletPrior(), p.log(), Cloud(p), RNG)
    assert answer.value.item() < 1e-30
    assert answer.v.abs().max().item() < 1e-14


def test_weights_that_are_equal_are_no_weights() -> None:
    x = torch.randn(7, 3, generator=seeded(1), dtype=torch.float64)
    loss = DirichletPrior(alpha=0.5)
    with_weights = loss(x, Cloud(x), RNG, torch.full((7,), 1 / 7, dtype=torch.float64))
    assert with_weights.item() == pytest.approx(loss(x, Cloud(x), RNG).item(), rel=1e-12)


def test_the_grid_looks_the_same_from_both_ends() -> None:
    rows, mass = tensor([[0.1, 0.2, 0.7]]), tensor([0.5, 0.2, 0.3])
    up, down = shaping_grid(rows, mass), shaping_grid(1 - rows, mass)
    assert torch.allclose(up + down, torch.ones(1, 3).double())


def test_beta_law_and_density_are_those_of_scipy_where_nothing_is_clipped() -> None:
    p, a, b = tensor([[0.1, 0.4, 0.9]]), tensor([[0.8]]), tensor([[2.5]])
    assert np.allclose(beta_cdf(p, a, b), beta.cdf(p, a, b), rtol=1e-13)
    assert np.allclose(clipped_density(p, a, b), beta.pdf(p, a, b), rtol=1e-12)


def test_the_density_is_held_at_corners_and_far_in_the_tail() -> None:
    p = tensor([[0.0, 1.0, 0.5]])
    assert clipped_density(p, tensor([[0.5]]), tensor([[0.5]]))[0, :2].tolist() == [100.0, 100.0]
    assert clipped_density(p, tensor([[9.0]]), tensor([[9.0]]))[0, :2].tolist() == [0.001, 0.001]
    assert clipped_density(p, tensor([[1.0]]), tensor([[1.0]]))[0].tolist() == [1.0, 1.0, 1.0]
    assert clipped_density(p, tensor([[0.5]]), tensor([[5.0]]))[0, :2].tolist() == [100.0, 0.001]


def test_velocity_is_minus_the_finite_difference_over_weight() -> None:
    x, a, target = clouds(6, 5, 3)
    x = x + 0.02 * torch.arange(6).double()[:, None] ** 2 * tensor([[1.0, 0.0, 0.0]])  # no ties
    loss, h = DirichletPrior(alpha=0.8, favor=1.5), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(6):
        for d in range(3):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), abs=1e-7)


def test_a_pull_never_changes_the_sum_of_a_row() -> None:
    x, a, target = clouds(20, 5, 4)
    assert velocity_of(DirichletPrior(alpha=0.4), x, target, RNG, a).v.sum(1).abs().max().item() < 1e-14


def test_rows_at_a_corner_stay_finite() -> None:
    x = torch.tensor([[1e30, 0.0, -1e30], [60.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    answer = velocity_of(DirichletPrior(alpha=0.3), x, Cloud(x), RNG)
    assert torch.isfinite(answer.v).all()
    assert torch.isfinite(answer.value)


def test_the_flow_makes_rows_decide_or_hesitate() -> None:
    start = torch.randn(200, 3, generator=seeded(1), dtype=torch.float64)
    spread = {}
    for alpha, dt, size in ((0.3, 5.0, 1.0), (10.0, 1.0, 0.5)):  # far in a tail rows move at the floor's pace
        x = size * start
        for _ in range(300):
            x = x + dt * velocity_of(DirichletPrior(alpha=alpha), x, Cloud(x), RNG).v
        spread[alpha] = x.softmax(1).var(0).mean().item()
    # A symmetric Dirichlet law of three classes has variance (1/3) (2/3) / (3 alpha + 1) in each.
    assert spread[0.3] == pytest.approx(2 / 9 / 1.9, rel=0.1)
    assert spread[10.0] == pytest.approx(2 / 9 / 31, rel=0.2)
