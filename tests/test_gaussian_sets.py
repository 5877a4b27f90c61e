"""Sets of Gaussians: the cost is W2 between Gaussians, how columns are read, limits of the blur, gradients, a flow."""

import math
from itertools import permutations

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._mixtures import Mixture, mixture_distance
from dmviz.losses.gaussian_sets import WIDEST, GaussianSets, flattened
from dmviz.losses.sinkhorn import Sinkhorn

RNG = seeded(0)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def sets(n, m, d=4, seed=0):
    rng = seeded(seed)
    x, y = torch.randn(n, d, generator=rng, dtype=torch.float64), torch.randn(m, d, generator=rng).double() + 0.5
    a, b = torch.rand(n, generator=rng, dtype=torch.float64), torch.rand(m, generator=rng, dtype=torch.float64)
    a[0] = 0
    return x, a / a.sum(), Cloud(y, b / b.sum())


def mixture(x, weight):
    """The same Gaussians with their covariances written out."""
    half = x.shape[1] // 2
    return Mixture(weight, x[:, :half], torch.diag_embed((2 * x[:, half:]).exp()))


def test_one_gaussian_on_the_line_costs_means_and_deviations():
    here, there = tensor([[1.0, math.log(2.0)]]), tensor([[4.0, math.log(6.0)]])
    answer = velocity_of(GaussianSets(), here, Cloud(there), RNG)
    assert answer.value.item() == pytest.approx(3**2 + 4**2, rel=1e-12)
    assert answer.v[0].tolist() == pytest.approx([2 * 3, 2 * 4 * 2])  # the width's pull, times the width


def test_a_narrow_blur_carries_whole_gaussians_along_the_best_plan():
    x, a, target = sets(6, 5)
    got = GaussianSets(blur=0.02)(x, target, RNG, a).item()
    assert got == pytest.approx(mixture_distance(mixture(x, a), mixture(target.x, target.weight)).item(), rel=1e-3)
    x, y = x[:5], target.x
    costs = torch.cdist(flattened(x), flattened(y)).square()
    best = min(sum(costs[i, j].item() for i, j in enumerate(order)) / 5 for order in permutations(range(5)))
    assert GaussianSets(blur=0.02)(x, Cloud(y), RNG).item() == pytest.approx(best, rel=1e-3)


def test_equal_widths_leave_twice_the_sinkhorn_divergence_of_the_means():
    x, a, target = sets(9, 7, 2)
    same = [torch.cat((z, torch.full_like(z, 0.3)), dim=1) for z in (x, target.x)]
    got = velocity_of(GaussianSets(0.4), same[0], Cloud(same[1], target.weight), RNG, a)
    want = velocity_of(Sinkhorn(0.4), x, target, RNG, a)
    assert got.value.item() == pytest.approx(2 * want.value.item(), rel=1e-9)
    assert torch.allclose(got.v[:, :2], 2 * want.v, atol=1e-9)


def test_an_odd_number_of_columns_has_one_flat_axis():
    x, y = tensor([[1.0, 5.0, math.log(2.0)]]), tensor([[1.0, 9.0, math.log(3.0)]])
    assert GaussianSets()(x, Cloud(y), RNG).item() == pytest.approx(4**2 + 1**2, rel=1e-12)


def test_debiasing_is_what_makes_it_zero_at_the_target():
    x, a, _ = sets(12, 3)
    assert abs(GaussianSets(0.5)(x, Cloud(x, a), RNG, a).item()) < 1e-10
    assert velocity_of(GaussianSets(0.5), x, Cloud(x, a), RNG, a).v.abs().max() < 1e-8
    assert GaussianSets(0.5, debias=False)(x, Cloud(x, a), RNG, a).item() > 0.1


@pytest.mark.parametrize("d", [2, 3, 4, 5])
@pytest.mark.parametrize("debias", [True, False])
def test_closed_form_equals_autograd_and_differences(d, debias):
    x, a, target = sets(6, 5, d)
    loss = GaussianSets(0.5, debias)
    got, want = (f(loss, x, loss.prepare(target), RNG, a) for f in (velocity_of, autograd_velocity))
    assert torch.allclose(got.v, want.v, atol=1e-10)
    for k in range(d):
        h = torch.zeros_like(x)
        h[2, k] = 1e-5
        slope = (loss(x + h, target, RNG, a) - loss(x - h, target, RNG, a)) / 2e-5
        assert (-slope / a[2]).item() == pytest.approx(got.v[2, k].item(), abs=1e-7)


def test_widths_end_at_their_bounds_and_feel_no_pull_beyond():
    x, y = tensor([[0.0, WIDEST + 5], [0.0, -WIDEST - 5]]), tensor([[0.0, 1.0]])
    for f in (velocity_of, autograd_velocity):
        answer = f(GaussianSets(), x, Cloud(y), RNG)
        assert torch.isfinite(answer.value)
        assert torch.equal(answer.v[:, 1], torch.zeros(2, dtype=torch.float64))


def test_a_flow_matches_places_and_widths():
    rng = seeded(4)
    x = torch.randn(20, 2, generator=rng, dtype=torch.float64) * 0.5
    y = torch.stack((torch.randn(20, generator=rng).double() + 2, torch.rand(20, generator=rng).double() - 0.5), dim=1)
    field, carry = aim(GaussianSets(), Cloud(y)), None
    first = field.value(x, RNG).item()
    for _ in range(60):
        answer = field(x, RNG, carry)
        x, carry = x + 0.1 * answer.v, answer.carry
    assert answer.value.item() < 1e-2 * first
    assert x[:, 1].mean().item() == pytest.approx(y[:, 1].mean().item(), abs=0.05)


def test_a_single_column_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"^GaussianSets: needs at least two columns, a mean and a log deviation, got"):
        GaussianSets()(torch.zeros(3, 1), Cloud(torch.zeros(3, 1)), RNG)
