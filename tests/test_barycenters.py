"""Barycentres: known values on the line, of Gaussians and of clouds, and the loss that flows to them."""

import json
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._barycenters import bures_barycenter, free_barycenter, line_barycenter, spread_start
from dmviz.losses._mixtures import Mixture, between
from dmviz.losses.wasserstein import LARGEST, Wasserstein
from dmviz.losses.wasserstein_1d import Wasserstein1d
from dmviz.losses.wasserstein_barycenter import WassersteinBarycenter

KNOWN = json.loads((Path(__file__).parent / "known" / "transport_more.json").read_text())
RNG = seeded(0)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def labelled(n=12, d=2, weighted=False):
    """Three clusters, of n, n and 2n points."""
    rng = seeded(n)
    y = torch.randn(4 * n, d, generator=rng, dtype=torch.float64)
    label = torch.tensor([0, 1, 2, 2]).repeat_interleave(n)
    y[label == 1] += 4
    y[label == 2, 0] -= 5
    b = torch.rand(4 * n, generator=rng, dtype=torch.float64) if weighted else None
    return Cloud(y, None if b is None else b / b.sum(), label)


def test_on_a_line_quantiles_are_averaged():
    case = KNOWN["bary_1d_quantile"]
    clouds = [Cloud(tensor(points)[:, None]) for points in case["inputs"]["sets"]]
    found = line_barycenter(clouds, tensor(case["inputs"]["weights"]))
    assert torch.allclose(found.x[:, 0], tensor(case["value"]), rtol=0, atol=case["tolerance"])
    assert torch.allclose(found.mass(), torch.full((4,), 0.25, dtype=torch.float64))


def test_on_a_line_any_masses_give_the_least_mean_distance():
    target, share = labelled(5, 1, weighted=True), tensor([0.2, 0.5, 0.3])
    clouds = [Cloud(target.x[target.label == k], target.weight[target.label == k]) for k in range(3)]
    clouds = [Cloud(c.x, c.weight / c.weight.sum()) for c in clouds]
    found = line_barycenter(clouds, share)

    def cost(x):
        return sum(s * Wasserstein1d()(x, c, RNG, found.weight).item() for s, c in zip(share, clouds, strict=True))

    assert found.mass().sum().item() == pytest.approx(1)
    least = cost(found.x)
    for seed in range(5):
        assert cost(found.x + 0.01 * torch.randn(found.x.shape, generator=seeded(seed), dtype=torch.float64)) > least


@pytest.mark.parametrize("name", ["bures_bary2_t0.5", "bures_bary3"])
def test_gaussians_have_the_known_covariance(name):
    case = KNOWN[name]
    i = case["inputs"]
    if "t" in i:
        mean, wide = tensor([i["m1"], i["m2"]]), tensor([i["S1"], i["S2"]])
        share = tensor([1 - i["t"], i["t"]])
    else:
        mean, wide, share = torch.zeros(3, 2, dtype=torch.float64), tensor(i["S"]), tensor(i["weights"])
    where, found = bures_barycenter(mean, wide, share)
    assert torch.allclose(found, tensor(case["value"]), rtol=0, atol=case["tolerance"])
    assert torch.allclose(where, share @ mean)


@pytest.mark.parametrize("t", [0.1, 0.5, 0.8])
def test_two_gaussians_meet_on_the_straight_way_between_them(t):
    i = KNOWN["bures_bary2_t0.5"]["inputs"]
    one, other = tensor(i["S1"]), tensor(i["S2"])
    way = between(*(Mixture(tensor([1.0]), torch.zeros(1, 2).double(), s[None]) for s in (one, other))).map[0, 0]
    step = (1 - t) * torch.eye(2, dtype=torch.float64) + t * way
    _, found = bures_barycenter(torch.zeros(2, 2).double(), torch.stack((one, other)), tensor([1 - t, t]))
    assert torch.allclose(found, step @ one @ step, atol=1e-12)


def test_on_a_line_the_deviations_of_gaussians_are_averaged():
    case = KNOWN["bures_bary_1d"]
    i = case["inputs"]
    mean, wide = tensor(i["m"])[:, None], tensor(i["s"]).square()[:, None, None]
    where, found = bures_barycenter(mean, wide, tensor(i["weights"]))
    assert [where.item(), found.sqrt().item()] == pytest.approx(case["value"], abs=1e-12)


def test_one_point_is_the_mean_of_the_means():
    case = KNOWN["bary_free_k1"]
    clouds = [Cloud(tensor(points)) for points in case["inputs"]["sets"]]
    start = spread_start(clouds, tensor(case["inputs"]["weights"]), 1, seeded(1))
    found = free_barycenter(start, clouds, tensor(case["inputs"]["weights"]))
    assert found[0].tolist() == pytest.approx(case["value"], abs=case["tolerance"])
    case = KNOWN["free_support_barycenter_k1"]
    points = Cloud(tensor(case["inputs"]["points"]))
    found = free_barycenter(points.x[:1], [points], tensor([1.0]))
    assert found[0].tolist() == pytest.approx(case["value"], abs=case["tolerance"])


def test_free_support_lowers_the_loss_until_nothing_moves():
    target = labelled()
    loss = WassersteinBarycenter()
    clouds = [part for _, part in loss.parts(target)]
    share = tensor([weight for weight, _ in loss.parts(target)])
    start = spread_start(clouds, share, 12, seeded(1))
    values = [loss(free_barycenter(start, clouds, share, steps=k), target, RNG).item() for k in (0, 1, 2, 100)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    rest = velocity_of(loss, free_barycenter(start, clouds, share), target, RNG).v
    assert rest.abs().max() < 1e-7


def test_free_support_of_translates_is_the_translate_between():
    x = torch.randn(15, 2, generator=seeded(1), dtype=torch.float64)
    clouds, share = [Cloud(x), Cloud(x + tensor([4.0, 2.0]))], tensor([0.25, 0.75])
    found = free_barycenter(x, clouds, share)
    assert torch.allclose(found, x + 0.75 * tensor([4.0, 2.0]), atol=1e-9)


def test_a_start_is_spread_over_the_clouds():
    clouds = [Cloud(tensor([[0.0], [0.1]])), Cloud(tensor([[10.0]]))]
    for seed in range(10):
        drawn = spread_start(clouds, tensor([0.5, 0.5]), 2, seeded(seed))[:, 0]
        assert (drawn[0] - drawn[1]).abs() > 9 or (drawn[0] - drawn[1]).abs() == pytest.approx(0.1)
        assert torch.equal(drawn, spread_start(clouds, tensor([0.5, 0.5]), 2, seeded(seed))[:, 0])


def test_the_loss_is_the_mean_distance_to_the_labels():
    x, target = torch.randn(9, 2, generator=seeded(1), dtype=torch.float64), labelled(weighted=True)
    for share in ("equal", "mass"):
        want, whole = 0.0, 0.0
        for k in range(3):
            mine = target.label == k
            mass = target.weight[mine].sum().item()
            part = Cloud(target.x[mine], target.weight[mine] / mass)
            weight = 1 / 3 if share == "equal" else mass
            want, whole = want + weight * Wasserstein()(x, part, RNG).item(), whole + weight
        assert whole == pytest.approx(1)
        assert WassersteinBarycenter(share)(x, target, RNG).item() == pytest.approx(want, rel=1e-12)


def test_without_labels_it_is_exact_transport():
    x, y = torch.randn(9, 2, generator=seeded(1), dtype=torch.float64), labelled().x
    got, want = (velocity_of(loss, x, Cloud(y), RNG) for loss in (WassersteinBarycenter(), Wasserstein()))
    assert torch.equal(got.v, want.v)
    assert torch.equal(got.value, want.value)


@pytest.mark.parametrize("d", [1, 2])
def test_closed_form_equals_autograd(d):
    x, target = torch.randn(9, d, generator=seeded(1), dtype=torch.float64), labelled(d=d, weighted=True)
    a = torch.rand(9, generator=seeded(2), dtype=torch.float64)
    a[0] = 0
    for weight in (None, a / a.sum()):
        loss = WassersteinBarycenter()
        got, want = (f(loss, x, loss.prepare(target), RNG, weight) for f in (velocity_of, autograd_velocity))
        assert torch.allclose(got.v, want.v, atol=1e-9)
        assert got.value.item() == pytest.approx(want.value.item(), rel=1e-12)


def test_a_label_without_mass_does_not_count():
    target = labelled(weighted=True)
    weight = torch.where(target.label == 1, 0.0, target.weight)
    parts = WassersteinBarycenter().parts(Cloud(target.x, weight / weight.sum(), target.label))
    assert [share for share, _ in parts] == [0.5, 0.5]


def test_euler_with_half_steps_arrives_at_the_barycentre():
    target = labelled()
    field = aim(WassersteinBarycenter(), target)
    x = torch.randn(12, 2, generator=seeded(1), dtype=torch.float64)
    want = free_barycenter(x, [part for _, part in WassersteinBarycenter().parts(target)], tensor([1.0, 1.0, 1.0]))
    for _ in range(100):
        x = x + 0.5 * field(x, RNG).v
    assert torch.allclose(x, want, atol=1e-7)


def test_too_many_points_are_refused_in_one_sentence():
    x = torch.zeros(LARGEST + 1, 2)
    with pytest.raises(ValueError, match=r"^Wasserstein barycentre: at most 3,000 particles, .* got 3,001: .*fewer"):
        WassersteinBarycenter()(x, Cloud(x[:4]), RNG)
