"""MMD with missing labels: joint laws, ways of hiding, and what each estimator is on average."""

import pytest
import torch
from pair_cases import clouds, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.missing_label_mmd import RAREST, MissingLabelMmd
from dmviz.losses.mmd import Mmd

__all__ = ["path"]
RNG = seeded(0)
ESTIMATORS = ["reweighted", "naive", "doubly_robust", "oracle"]


def problem(n: int, m: int, d: int = 2, groups: int = 3) -> tuple[torch.Tensor, torch.Tensor, Cloud]:
    x, a, target = clouds(n, m, d)
    return x, a, Cloud(target.x, target.weight, label=torch.arange(m) % groups)


def test_the_oracle_is_the_joint_mmd_of_places_and_labels() -> None:
    x, a, target = problem(12, 9)
    loss = MissingLabelMmd("oracle", bandwidth=0.8)
    g, h = loss.labels(12, target), target.label
    k = lambda u, v: torch.exp(-torch.cdist(u, v).square() / (2 * 0.8**2))  # noqa: E731
    own = a @ (k(x, x) * (g[:, None] == g)) @ a
    there = target.weight @ (k(target.x, target.x) * (h[:, None] == h)) @ target.weight
    cross = a @ (k(x, target.x) * (g[:, None] == h)) @ target.weight
    assert loss(x, target, RNG, a).item() == pytest.approx((own + there - 2 * cross).item(), abs=1e-9)


def test_a_target_without_labels_or_with_one_is_the_plain_mmd(path: str) -> None:
    x, a, target = clouds(12, 9, 2)
    plain = Mmd(bandwidth=0.8)(x, target, RNG, a).item()
    for label in (None, torch.full((9,), 4)):
        got = MissingLabelMmd("oracle", bandwidth=0.8)(x, Cloud(target.x, target.weight, label), RNG, a).item()
        assert got == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("mechanism", ["by_label", "by_place", "evenly"])
@pytest.mark.parametrize("estimator", ["reweighted", "naive", "doubly_robust"])
def test_with_nothing_hidden_every_estimator_is_the_oracle(estimator: str, mechanism: str) -> None:
    _, _, target = problem(12, 30)
    shares = MissingLabelMmd(estimator, 0.0, mechanism).shares(target)
    assert torch.allclose(shares, MissingLabelMmd("oracle").shares(target), atol=1e-15)


@pytest.mark.parametrize("mechanism", ["by_label", "by_place", "evenly"])
def test_weights_by_inverse_chance_are_right_on_average_and_naive_ones_are_not(mechanism: str) -> None:
    _, _, target = problem(12, 40)
    truth = MissingLabelMmd("oracle").shares(target)

    def gap(estimator: str) -> tuple[torch.Tensor, torch.Tensor]:
        draws = torch.stack(
            [MissingLabelMmd(estimator, 0.4, mechanism, hiding_seed=s).shares(target) for s in range(300)]
        )
        return (draws.mean(0) - truth).abs(), 4.5 * draws.std(0) / 300**0.5 + 1e-4

    robust, error = gap("doubly_robust")
    assert (robust <= error).all()  # each point for each label
    reweighted, error = gap("reweighted")
    assert (reweighted <= error + 0.02 * truth.max()).all()  # its scaling to 1 leaves a little
    naive, error = gap("naive")
    assert mechanism == "evenly" or (naive > 3 * error + 0.02 * truth.max()).any()


def test_weights_sum_to_one() -> None:
    _, _, target = problem(12, 60)
    for estimator in ESTIMATORS:
        for mechanism in ("by_label", "by_place", "evenly"):
            share = MissingLabelMmd(estimator, 0.6, mechanism).shares(target)
            assert share.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_chances_follow_the_mechanism() -> None:
    _, _, target = problem(12, 60)
    even = MissingLabelMmd(hidden=0.3, mechanism="evenly").chances(target)
    assert torch.allclose(even, torch.full_like(even, 0.7))
    by_label = MissingLabelMmd(hidden=0.3, mechanism="by_label").chances(target)
    assert torch.allclose(by_label, 1 - 0.3 * target.label.double())
    by_place = MissingLabelMmd(hidden=0.9, mechanism="by_place").chances(target)
    away = (target.x - target.x.mean(0)).norm(dim=1)
    assert by_place[away.argmin()] == by_place.max()
    assert by_place.min() >= RAREST


def test_a_guess_from_neighbours_finds_well_separated_labels() -> None:
    y = torch.cat([torch.randn(50, 2, generator=seeded(i), dtype=torch.float64) * 0.2 + 5 * i for i in range(3)])
    target = Cloud(y, label=torch.arange(3).repeat_interleave(50))
    share = MissingLabelMmd("doubly_robust", 0.5, "by_label", bandwidth=0.5).shares(target)
    assert torch.allclose(share, MissingLabelMmd("oracle").shares(target), atol=1e-6)
    assert not torch.allclose(
        MissingLabelMmd("reweighted", 0.5, "by_label").shares(target),
        MissingLabelMmd("oracle").shares(target),
        atol=1e-3,
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "imq"])
@pytest.mark.parametrize(("n", "m", "d"), [(40, 25, 2), (2, 9, 1), (20, 30, 12)])
def test_velocity_is_minus_gradient_over_weight(n: int, m: int, d: int, kernel: str, estimator: str, path: str) -> None:
    x, a, target = problem(n, m, d)
    loss = MissingLabelMmd(estimator, 0.6, "by_place", kernel, 0.8)
    auto = autograd_velocity(loss, x, target, RNG, a)
    for aimed in (target, loss.prepare(target)):
        closed = velocity_of(loss, x, aimed, RNG, a)
        assert torch.allclose(closed.v, auto.v, atol=1e-9)
        assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-10)


def test_labels_that_are_all_lost_leave_their_particles_without_pull() -> None:
    target = Cloud(tensor([[0.0, 0.0], [1.0, 0.0]]), label=torch.tensor([0, 1]))
    x = tensor([[0.0, 1.0], [0.5, 0.5]])
    seeds = [s for s in range(60) if MissingLabelMmd("naive", 0.9, hiding_seed=s).shares(target)[1, 1] == 0]
    assert seeds  # the second label is seen one time in twenty
    v = velocity_of(MissingLabelMmd("naive", 0.9, hiding_seed=seeds[0]), x, target, RNG).v
    assert v[0].any()
    assert not v[1].any()


def test_particles_keep_their_label_and_go_to_their_own_group() -> None:
    y = torch.cat([torch.randn(30, 2, generator=seeded(i), dtype=torch.float64) * 0.2 + 2 * i for i in range(2)])
    target = Cloud(y, label=torch.arange(2).repeat_interleave(30))
    x = torch.randn(60, 2, generator=seeded(5), dtype=torch.float64) * 0.2 + 1.0
    loss = MissingLabelMmd("doubly_robust", 0.4, bandwidth=1.0)
    for _ in range(200):
        x = x + 0.3 * velocity_of(loss, x, target, RNG).v
    assert (x[:30].mean(0) - y[:30].mean(0)).abs().max() < 0.3
    assert (x[30:].mean(0) - y[30:].mean(0)).abs().max() < 0.3
