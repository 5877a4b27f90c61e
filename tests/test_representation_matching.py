"""Representation distribution matching: known values, landmarks, the exact MMD as a limit, floor and excess."""

import pytest
import torch
from pair_cases import agrees, clouds, known, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._kernels import Kernel
from dmviz.losses._nystrom import embedding, landmarks, nearest
from dmviz.losses._pairs import kernel_sums, own_sums
from dmviz.losses.mmd import Mmd
from dmviz.losses.representation_matching import RepresentationMatching

__all__ = ["path"]
KNOWN = known("more")
RNG = seeded(0)
KERNEL = Kernel("gaussian")


def attraction(inputs: dict) -> tuple[float, float]:
    """mean_i k(x_i, Z) . alpha without ridge, and the whole loss."""
    x, target = tensor(inputs["X"]), Cloud(tensor(inputs["Y"]))
    pull = embedding(target, tensor(inputs.get("landmarks", inputs["Y"])), KERNEL, False, ridge=0.0)
    cross = kernel_sums(x, pull.z, pull.share, KERNEL, False).s.mean().item()
    uniform = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    own = own_sums(x, uniform, KERNEL, False)[0].item()
    target_own = own_sums(target.x, target.mass(), KERNEL, False)[0].item()
    return cross, own - 2 * cross + target_own


@pytest.mark.parametrize("case", ["nystrom_attraction", "nystrom_full", "rdm_loss_small"])
def test_known_values(case: str) -> None:
    cross, whole = attraction(KNOWN[case]["inputs"])
    assert agrees(whole if case == "rdm_loss_small" else cross, KNOWN[case])


def test_with_the_ridge_the_entry_gives_the_known_loss_to_five_digits(path: str, monkeypatch) -> None:
    inputs = KNOWN["rdm_loss_small"]["inputs"]
    monkeypatch.setattr("dmviz.losses.representation_matching.landmarks", lambda *_: tensor(inputs["landmarks"]))
    loss = RepresentationMatching(median=False, bandwidth=1.0)
    got = loss(tensor(inputs["X"]), Cloud(tensor(inputs["Y"])), RNG).item()
    assert got == pytest.approx(KNOWN["rdm_loss_small"]["value"], abs=1e-5)


def test_all_points_as_landmarks_give_the_mmd(path: str) -> None:
    x, a, target = clouds(30, 25, 2)
    loss, exact = RepresentationMatching(median=False, bandwidth=0.7), Mmd(bandwidth=0.7)
    assert loss(x, target, RNG, a).item() == pytest.approx(exact(x, target, RNG, a).item(), abs=1e-5)
    assert torch.allclose(velocity_of(loss, x, target, RNG, a).v, velocity_of(exact, x, target, RNG, a).v, atol=1e-3)


def test_more_landmarks_come_closer_to_the_mmd() -> None:
    x, _, target = clouds(80, 400, 2)
    exact = Mmd(median=True)(x, target, RNG).item()
    gaps = [abs(RepresentationMatching(landmarks=n)(x, target, RNG).item() - exact) for n in (2, 8, 64)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4


@pytest.mark.parametrize("d", [1, 2, 12])
@pytest.mark.parametrize("count", [5, 256])
def test_velocity_is_minus_gradient_over_weight(d: int, count: int, path: str) -> None:
    x, a, target = clouds(50, 60, d)
    loss = RepresentationMatching(landmarks=count)
    auto = autograd_velocity(loss, x, target, RNG, a)
    for aimed in (target, loss.prepare(target)):
        closed = velocity_of(loss, x, aimed, RNG, a)
        assert torch.allclose(closed.v, auto.v, atol=1e-9)
        assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-10)
        assert torch.allclose(loss.probe(x, x, aimed, RNG, a), closed.v, atol=1e-9)


def test_landmarks_are_means_of_the_points_nearest_to_them() -> None:
    points = torch.cat([torch.randn(100, 2, generator=seeded(i)).double() * 0.1 + 5 * i for i in range(4)])
    z = landmarks(Cloud(points), 4, seeded(3))
    near, _ = nearest(points, z)
    for i in range(4):
        assert torch.allclose(z[i], points[near == i].mean(0))
    assert sorted(near.bincount().tolist()) == [100] * 4 or len(near.unique()) == 4


def test_repeated_points_leave_no_cluster_empty_and_no_infinity() -> None:
    points = torch.cat([torch.zeros(50, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])]).double()
    z = landmarks(Cloud(points), 5, seeded(0))
    assert torch.isfinite(z).all()
    value = RepresentationMatching(landmarks=5)(points, Cloud(points), RNG)
    assert torch.isfinite(value) and value >= 0


def test_floor_is_that_of_the_biased_estimator_and_real_points_have_no_excess() -> None:
    target = Cloud(torch.randn(400, 2, generator=seeded(8), dtype=torch.float64))
    loss = RepresentationMatching(landmarks=200)
    kernel = loss._frozen(target).kernel
    own = own_sums(target.x, target.mass(), kernel, False)[0].item()
    draws = tensor([loss.floor(target, 50, seeded(1, i)).item() for i in range(6)])
    assert draws.mean().item() == pytest.approx((1 - own) / 50, abs=4 * draws.std().item() / 6**0.5 + 1e-5)
    real = torch.randn(50, 2, generator=seeded(9), dtype=torch.float64)
    assert loss.excess(real + 1.0, target, seeded(2)) > 10 * abs(loss.excess(real, target, seeded(2)))


def test_another_landmark_seed_starts_elsewhere() -> None:
    x, a, target = clouds(20, 200, 2)
    values = [RepresentationMatching(landmarks=5, landmark_seed=s)(x, target, RNG, a).item() for s in (0, 1)]
    assert values[0] != values[1]
