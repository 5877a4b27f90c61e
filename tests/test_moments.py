"""Losses that see means, deviations, covariances, higher moments or ranks: known values, closed forms, transfers."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, hermite, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._moments import columns, deviation, unbiased
from dmviz.losses.bures_wasserstein import BuresWasserstein
from dmviz.losses.central_moments import CentralMoments
from dmviz.losses.coral import Coral
from dmviz.losses.feature_order import FeatureOrder, efdm
from dmviz.losses.frechet import Frechet
from dmviz.losses.mean_std import MeanStd, adain
from dmviz.losses.wasserstein import Wasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "moments.json").read_text())
RNG = seeded(0)
LOSSES = [
    MeanStd(),
    MeanStd(deviations=False),
    Coral(),
    Coral(form="benchmark"),
    Frechet(),
    CentralMoments(),
    CentralMoments(moments=1),
    FeatureOrder(),
]


def cornered(mean: list[float], covariance: list[list[float]], divided_by: int = 0) -> torch.Tensor:
    """Few points with exactly this mean, and this covariance divided by n (or n - 1, with 1)."""
    root = torch.linalg.cholesky(tensor(covariance))
    n = 2 * len(mean)
    steps = math.sqrt(len(mean) * (n - divided_by) / n) * root.T
    return torch.cat((steps, -steps)) + tensor(mean)


@pytest.mark.parametrize(
    ("case", "loss"),
    [
        ("meanstd_loss", MeanStd()),
        ("coral", Coral()),
        ("fid_small", Frechet()),
        ("cmd_k5", CentralMoments(span=1.0)),
        ("cmd_k5_range4", CentralMoments(span=4.0)),
    ],
)
def test_known_clouds(case: str, loss) -> None:
    x, a, target = small(KNOWN[case]["inputs"])
    assert agrees(loss(x, target, RNG, a).item(), KNOWN[case])
    assert agrees(aim(loss, target)(x, RNG).value.item(), KNOWN[case])


def test_means_alone() -> None:
    inputs = KNOWN["dm_loss"]["inputs"]
    target = Cloud(tensor(inputs["real"]).double())
    assert agrees(MeanStd(deviations=False)(tensor(inputs["syn"]).double(), target, RNG).item(), KNOWN["dm_loss"])


@pytest.mark.parametrize(("form", "place"), [("paper", 0), ("benchmark", 1)])
def test_both_forms_of_coral(form, place: int) -> None:
    inputs = KNOWN["coral_forms"]["inputs"]
    x, y = (cornered([0, 0], inputs[c], divided_by=1) for c in ("cov_s", "cov_t"))
    want = KNOWN["coral_forms"]["value"][place]
    assert Coral(form=form)(x, Cloud(y), RNG).item() == pytest.approx(want, abs=KNOWN["coral_forms"]["tolerance"])


def test_frechet_between_gaussians() -> None:
    inputs = KNOWN["fid_gauss"]["inputs"]
    x, y = (cornered(inputs[m], inputs[s], divided_by=1) for m, s in (("m1", "S1"), ("m2", "S2")))
    assert agrees(Frechet()(x, Cloud(y), RNG).item(), KNOWN["fid_gauss"])


def test_central_moments_of_two_normal_laws() -> None:
    inputs = KNOWN["cmd_gauss"]["inputs"]
    x, y = (hermite([inputs[m]], [[inputs[s] ** 2]], 20) for m, s in (("m1", "s1"), ("m2", "s2")))
    assert agrees(CentralMoments(span=1.0)(x.x, y, RNG, x.weight).item(), KNOWN["cmd_gauss"])


def test_known_transfers() -> None:
    for name, transfer in (("efdm", efdm), ("adain", adain)):
        inputs = KNOWN[name]["inputs"]
        got = transfer(tensor(inputs["content"])[:, None], tensor(inputs["style"])[:, None])[:, 0]
        assert (got - tensor(KNOWN[name]["value"])).abs().max() <= 45 * KNOWN[name]["tolerance"]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dim", [1, 4])
def test_closed_form_is_autograd(loss, dim: int) -> None:
    x, a, target = clouds(13, 11, dim)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    assert (closed.v - auto.v).abs().max() < 1e-10
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradient_is_the_slope_of_the_value(loss) -> None:
    x = torch.randn(7, 3, generator=seeded(1), dtype=torch.float64)
    target = Cloud(torch.randn(9, 3, generator=seeded(2), dtype=torch.float64) * 0.6 + 1)
    v, step = velocity_of(loss, x, target, RNG).v, 1e-6
    for i, d in ((0, 0), (5, 2)):
        there = torch.zeros_like(x)
        there[i, d] = step
        slope = (loss(x + there, target, RNG) - loss(x - there, target, RNG)) / (2 * step)
        assert -(v[i, d] / 7).item() == pytest.approx(slope.item(), abs=1e-7)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_one_point_and_equal_points_have_finite_velocities(loss) -> None:
    y = Cloud(torch.randn(5, 2, generator=seeded(2), dtype=torch.float64))
    for x in (tensor([[0.3, 0.1]]), tensor([[0.3, 0.1]] * 4), y.x):
        for found in (velocity_of(loss, x, y, RNG), autograd_velocity(loss, x, y, RNG)):
            assert torch.isfinite(found.v).all()


@pytest.mark.parametrize("loss", [MeanStd(), Frechet()], ids=repr)
def test_one_step_of_half_arrives_at_its_moments(loss) -> None:
    x, y = (torch.randn(n, 1, generator=seeded(n), dtype=torch.float64) * n for n in (6, 9))
    there = Cloud(y + 2)
    n = 6 if isinstance(loss, Frechet) else 1
    # On a line the map is the same for both, up to the factor of an unbiased variance.
    step = velocity_of(loss, x, there, RNG).v / 2
    moved = x + (step.mean(0) + (step - step.mean(0)) * ((n - 1) / n if n > 1 else 1))
    assert loss(moved, there, RNG).item() == pytest.approx(0, abs=1e-10)


def test_frechet_is_bures_wasserstein_for_many_points() -> None:
    x, y = (torch.randn(4000, 3, generator=seeded(s), dtype=torch.float64) * (s + 1) for s in (1, 2))
    assert Frechet()(x, Cloud(y), RNG).item() == pytest.approx(BuresWasserstein()(x, Cloud(y), RNG).item(), rel=1e-3)


def test_coral_does_not_see_where_clouds_lie() -> None:
    x, a, target = clouds(9, 8, 3)
    assert Coral()(x + 7, target, RNG, a).item() == pytest.approx(Coral()(x, target, RNG, a).item(), rel=1e-12)
    moved = Coral(form="benchmark")(x + 7, target, RNG, a).item()
    assert moved > Coral(form="benchmark")(x, target, RNG, a).item() + 1


def test_unbiased_is_n_over_n_minus_one() -> None:
    assert unbiased(torch.full((5,), 0.2, dtype=torch.float64)).item() == pytest.approx(5 / 4)
    assert unbiased(tensor([1.0])).item() == 0


def test_a_constant_column_far_out_has_no_deviation() -> None:
    x = torch.full((7, 1), 1234.567).double()
    assert deviation(columns(x, torch.rand(7, generator=seeded(1)).double().softmax(0))).item() == 0


def test_transfers_arrive_at_zero() -> None:
    x, y = (torch.randn(n, 3, generator=seeded(n), dtype=torch.float64) * n for n in (20, 30))
    assert MeanStd()(adain(x, x + 2, eps=0.0), Cloud(x + 2), RNG).item() == pytest.approx(0, abs=1e-12)
    assert FeatureOrder()(efdm(x, x.flip(0) * 3), Cloud(x * 3), RNG).item() == pytest.approx(0, abs=1e-12)
    left = FeatureOrder()(efdm(x, y), Cloud(y), RNG).item()
    assert velocity_of(FeatureOrder(), efdm(x, y), Cloud(y), RNG).v.abs().max() < 1e-9
    assert 0 < left < 0.2 * FeatureOrder()(x, Cloud(y), RNG).item()


def test_gradients_pass_through_a_transfer_as_if_nothing_was_replaced() -> None:
    x = torch.randn(6, 2, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, 2, generator=seeded(2), dtype=torch.float64, requires_grad=True)
    efdm(x, y).square().sum().backward()
    assert (x.grad - 2 * efdm(x, y)).abs().max() < 1e-12
    assert y.grad is None


def test_on_a_line_order_is_transport() -> None:
    x, a, target = clouds(9, 8, 1)
    assert FeatureOrder()(x, target, RNG, a).item() == pytest.approx(Wasserstein()(x, target, RNG, a).item(), rel=1e-6)


@pytest.mark.parametrize("loss", [Frechet(), FeatureOrder()], ids=repr)
def test_a_prepared_target_is_not_used_for_other_points(loss) -> None:
    x, a, target = clouds(9, 8, 2)
    prepared = aim(loss, target).target
    other = Cloud(target.x + 1, target.weight, memo=prepared.memo)
    assert torch.equal(loss(x, other, RNG, a), loss(x, Cloud(other.x, other.weight), RNG, a))
    moved = velocity_of(loss, x, Cloud(other.x, other.weight), RNG, a).v
    assert torch.equal(velocity_of(loss, x, other, RNG, a).v, moved)
