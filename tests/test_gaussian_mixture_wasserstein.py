"""Gaussian mixture W2: the known mixtures, one component, the fit, closed form against autograd, its bounds."""

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses import _mixtures
from dmviz.losses._mixtures import Mixture, between, fitted, mixture_distance, mixture_plan, moments_of
from dmviz.losses.bures_wasserstein import BuresWasserstein
from dmviz.losses.gaussian_mixture_wasserstein import GaussianMixtureWasserstein
from dmviz.losses.wasserstein import Wasserstein

FOLDER = Path(__file__).parent / "known"
MORE = json.loads((FOLDER / "transport_more.json").read_text())
KNOWN = json.loads((FOLDER / "transport_values.json").read_text())


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def known_mixtures():
    inputs = MORE["gmm_mw2sq"]["inputs"]
    return (Mixture(*(tensor(inputs[f"{part}{side}"]) for part in ("weights", "means", "covs"))) for side in (1, 2))


def clusters(n, seed=0, centres=((0.0, 0.0), (8.0, 0.0), (0.0, 8.0)), spreads=(1.0, 0.5, 0.7)):
    """n points about each centre, with the label of its centre."""
    rng = seeded(seed)
    parts = [tensor(c) + s * torch.randn(n, len(c), generator=rng, dtype=torch.float64)
             for c, s in zip(centres, spreads, strict=True)]  # fmt: skip
    return torch.cat(parts), torch.arange(len(centres)).repeat_interleave(n)


def test_known_mixtures():
    case = MORE["gmm_mw2sq"]
    assert mixture_distance(*known_mixtures()).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_the_plan_keeps_both_weights():
    one, other = known_mixtures()
    plan = mixture_plan(one, other, between(one, other).cost)
    assert torch.allclose(plan.sum(1), one.weight, atol=1e-15)
    assert torch.allclose(plan.sum(0), other.weight, atol=1e-15)


@pytest.mark.parametrize("name", ["bures_w2sq_2d"])
def test_one_gaussian_each_is_the_bures_distance_with_its_map(name):
    i = KNOWN[name]["inputs"]
    one, other = (
        Mixture(tensor([1.0]), tensor([[float(v) for v in i[f"m{k}"]]]), tensor([i[f"S{k}"]])) for k in (1, 2)
    )
    assert mixture_distance(one, other).item() == pytest.approx(KNOWN[name]["value"], abs=1e-10)
    assert torch.allclose(between(one, other).map[0, 0], tensor(KNOWN["bures_map"]["value"]), atol=1e-9)
    i = MORE["w2_gaussians_2d"]["inputs"]
    one, other = (
        Mixture(tensor([1.0]), tensor([[float(v) for v in i[f"m{k}"]]]), tensor([i[f"S{k}"]])) for k in (1, 2)
    )
    assert mixture_distance(one, other).item() == pytest.approx(MORE["w2_gaussians_2d"]["value"], abs=1e-8)


def test_with_one_component_it_is_the_bures_wasserstein_loss():
    x, _ = clusters(20)
    y, _ = clusters(15, seed=1)
    a = torch.rand(60, generator=seeded(2), dtype=torch.float64)
    a = a / a.sum()
    got = velocity_of(
        GaussianMixtureWasserstein(components=1), x, Cloud(y @ tensor([[1.0, 0.5], [0, 2]])), seeded(0), a
    )
    want = velocity_of(BuresWasserstein(), x, Cloud(y @ tensor([[1.0, 0.5], [0, 2]])), seeded(0), a)
    assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)
    assert torch.allclose(got.v, want.v, atol=1e-10)


def test_the_fit_finds_clusters_that_are_far_apart():
    x, label = clusters(50)
    a = torch.full((150,), 1 / 150, dtype=torch.float64)
    model, share = fitted(x, a, 3, 200)
    found = [share[label == k].mean(0).argmax().item() for k in range(3)]
    assert sorted(found) == [0, 1, 2]
    for k, at in enumerate(found):
        mine = x[label == k]
        assert torch.allclose(moments_of(x, a, share).mean[at], mine.mean(0), atol=1e-3)
        assert torch.allclose(model.weight[at], tensor(1 / 3), atol=1e-3)


def test_the_fit_raises_the_likelihood_to_a_place_where_it_is_flat():
    x, _ = clusters(30, centres=((0.0, 0.0), (2.5, 0.0), (0.0, 2.5)))
    a = torch.full((90,), 1 / 90, dtype=torch.float64)

    def likelihood(m):
        parts = [torch.distributions.MultivariateNormal(c, s).log_prob(x) + w.log() for w, c, s in zip(*m, strict=True)]
        return torch.stack(parts).logsumexp(0).mean().item()

    found = [likelihood(fitted(x, a, 3, rounds)[0]) for rounds in (1, 5, 20, 1000)]
    assert found == sorted(found)
    assert found[0] < found[-1] - 1e-3
    assert likelihood(fitted(x, a, 3, 1)[0]) < found[-1]


def test_the_quick_rounds_are_those_of_the_definition(monkeypatch):
    x, _ = clusters(20, centres=((0.0, 0.0), (2.5, 0.0), (0.0, 2.5)))
    a = torch.rand(60, generator=seeded(2), dtype=torch.float64)
    quick = fitted(x + 5, a / a.sum(), 3, 30)
    monkeypatch.setattr(_mixtures, "_PRODUCTS", 0)
    plain = fitted(x + 5, a / a.sum(), 3, 30)
    assert torch.allclose(quick[1], plain[1], atol=1e-9)
    assert torch.allclose(quick[0].mean, plain[0].mean, atol=1e-9)


def test_moved_clusters_are_matched_as_wholes():
    x, label = clusters(40)
    moves = tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    target = Cloud(x + moves[label])
    answer = velocity_of(GaussianMixtureWasserstein(), x, target, seeded(0))
    assert answer.value.item() == pytest.approx(moves.square().sum(1).mean().item(), rel=1e-6)
    assert torch.allclose(answer.v, 2 * moves[label], atol=1e-5)


def test_it_is_at_least_the_distance_of_means_and_its_plan_is_the_best_of_all():
    x, _ = clusters(20)
    y, _ = clusters(20, seed=5, centres=((5.0, 5.0), (1.0, -3.0), (-4.0, 2.0)), spreads=(0.4, 1.0, 0.8))
    value = GaussianMixtureWasserstein()(x, Cloud(y), seeded(0)).item()
    a = torch.full((60,), 1 / 60, dtype=torch.float64)
    one, other = (moments_of(z, a, fitted(z, a, 3, 200)[1]) for z in (x, y))
    table = between(one, other).cost
    best = min(sum(table[i, j].item() for i, j in enumerate(order)) / 3 for order in permutations(range(3)))
    assert value == pytest.approx(best, rel=1e-3)  # the weights are a third each up to what overlaps
    assert value >= (x.mean(0) - y.mean(0)).square().sum().item()
    assert value >= 0.95 * Wasserstein()(x, Cloud(y), seeded(0)).item()  # W2 <= MW2 for the mixtures themselves


@pytest.mark.parametrize(("n", "m", "d", "k"), [(40, 30, 2, 3), (25, 60, 3, 5), (4, 9, 2, 6), (1, 5, 2, 3)])
def test_closed_form_equals_autograd(n, m, d, k):
    rng = seeded(n)
    x, y = torch.randn(n, d, generator=rng, dtype=torch.float64), torch.randn(m, d, generator=rng).double() + 1
    a = torch.rand(n, generator=rng, dtype=torch.float64)
    a[0] = 0 if n > 1 else 1
    for weight in (None, a / a.sum()):
        loss = GaussianMixtureWasserstein(components=k)
        got, want = (f(loss, x, Cloud(y), seeded(0), weight) for f in (velocity_of, autograd_velocity))
        assert torch.allclose(got.v, want.v, atol=1e-9)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-10)


def flowed(x, target, steps):
    field, carry = aim(GaussianMixtureWasserstein(), target), None
    for _ in range(steps):
        answer = field(x, seeded(0), carry)
        x, carry = x + 0.1 * answer.v, answer.carry
    return field.value(x, seeded(0)).item()


def test_a_flow_arrives_at_a_mixture_with_the_same_masses_and_settles_between_others():
    x, _ = clusters(30, seed=3, centres=((0.0, 0.0), (8.0, 0.0), (4.0, 9.0)))
    y, _ = clusters(30, centres=((10.0, 0.0), (4.0, 0.0), (0.0, 14.0)), spreads=(0.3, 0.9, 0.6))
    first = GaussianMixtureWasserstein()(x, Cloud(y), seeded(0)).item()
    assert flowed(x, Cloud(y), 30) < 1e-4 * first
    half = torch.cat([y[:30], y[-15:]])  # masses of 2/3 and 1/3 against thirds: one component must serve both
    assert flowed(x, Cloud(half), 30) > 0.1


def test_points_that_coincide_go_as_one_whatever_rounding_makes_of_their_mean():
    x, a = tensor([[0.34561234], [0.34561234]]), tensor([0.8187, 0.1813])
    y = torch.randn(7, 1, generator=seeded(1), dtype=torch.float64)
    answer = velocity_of(GaussianMixtureWasserstein(), x, Cloud(y), seeded(0), a)
    assert torch.allclose(answer.v, 2 * (y.mean() - x), atol=1e-12)


def test_a_run_that_has_blown_up_ends_by_its_nan():
    x = torch.randn(8, 2, generator=seeded(3), dtype=torch.float64)
    x[3, 0] = float("nan")
    answer = velocity_of(GaussianMixtureWasserstein(), x, Cloud(x.nan_to_num()), seeded(0))
    assert torch.isnan(answer.value)
