"""SFRIK: known sets of directions, polynomials, evenness, the sphere's own moments, and gradients."""

import math

import pytest
import torch
from pair_cases import agrees, clouds, known, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import _polynomial
from dmviz.losses.sfrik import Sfrik

KNOWN = known("more")
RNG = seeded(0)
SETS = [case for case in KNOWN if case.startswith("sfrik") and "_P" not in case]


def value(x: torch.Tensor, loss: Sfrik | None = None, weight: torch.Tensor | None = None) -> float:
    return (loss or Sfrik())(x, Cloud(x), RNG, weight).item()


@pytest.mark.parametrize("case", SETS)
def test_known_sets_of_directions(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x = tensor(inputs.get("X", inputs.get("x", [[0.0, 0.6, 0.8]])))  # collapsed: any one direction
    assert agrees(value(x, Sfrik(*(float(w) for w in inputs["weights"]))), KNOWN[case])
    assert agrees(autograd_velocity(Sfrik(), x, Cloud(x), RNG).value.item(), KNOWN[case])


@pytest.mark.parametrize("degree", [2, 3])
def test_known_polynomials(degree: int) -> None:
    case = KNOWN[f"sfrik_P{degree}_d5"]
    d, t = case["inputs"]["d"], case["inputs"]["t"]
    x = torch.zeros(2, d).double()
    x[0, 0], x[1, 0], x[1, 1] = 1.0, t, math.sqrt(1 - t * t)
    pair = 2 * Sfrik().energies(x)[degree - 1].item() - 1  # (1 + 1 + 2 P) / 4 over all pairs
    assert agrees(pair, case)


def test_in_the_plane_degrees_are_cosines_of_multiples_of_the_angle() -> None:
    angle = tensor([0.3, 1.7, 2.2, 4.0])
    x = torch.stack((angle.cos(), angle.sin()), 1)
    for degree in (1, 2, 3):
        expected = (degree * (angle[:, None] - angle)).cos().mean().item()
        assert Sfrik().energies(x)[degree - 1].item() == pytest.approx(expected, abs=1e-12)


def test_five_directions_of_a_regular_pentagon_are_even() -> None:
    angle = torch.arange(5, dtype=torch.float64) * (2 * math.pi / 5)
    x = torch.stack((angle.cos(), angle.sin()), 1)
    assert value(x) == pytest.approx(0.0, abs=1e-12)
    assert velocity_of(Sfrik(), x, Cloud(x), RNG).v.abs().max() < 1e-12


def test_by_chance_it_is_the_sum_of_weights_over_the_number_of_particles() -> None:
    draws = tensor([value(torch.randn(100, 4, generator=seeded(1, i), dtype=torch.float64)) for i in range(60)])
    assert draws.mean().item() == pytest.approx(81 / 100, abs=4 * draws.std().item() / 60**0.5)


@pytest.mark.parametrize("d", [2, 3, 8, 50])
def test_velocity_is_minus_gradient_over_weight_and_across_the_direction(d: int) -> None:
    x, a, target = clouds(40, 5, d)
    closed, auto = velocity_of(Sfrik(), x, target, RNG, a), autograd_velocity(Sfrik(), x, target, RNG, a)
    assert torch.allclose(closed.v, auto.v, rtol=1e-9, atol=1e-9)
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10)
    assert (closed.v * x).sum(1).abs().max() < 1e-9 * closed.v.abs().max()


def test_moments_and_tiles_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    x, a, target = clouds(400, 5, 6)
    by_moments = velocity_of(Sfrik(), x, target, RNG, a)
    monkeypatch.setattr(_polynomial, "SMALL", 0)
    by_tiles = velocity_of(Sfrik(), x, target, RNG, a)
    assert torch.allclose(by_moments.v, by_tiles.v, rtol=1e-9, atol=1e-9)


def test_lengths_and_the_target_do_not_matter() -> None:
    x, a, target = clouds(20, 5, 3)
    stretch = torch.rand(20, 1, generator=seeded(2), dtype=torch.float64) * 10 + 0.1
    assert value(x * stretch, weight=a) == pytest.approx(value(x, weight=a), rel=1e-12)
    assert Sfrik()(x, target, RNG, a).item() == value(x, weight=a)


def test_a_particle_at_the_origin_has_no_direction_and_does_not_move() -> None:
    x, _, _ = clouds(20, 5, 3)
    with_origin = torch.cat([x, torch.zeros(1, 3).double()])
    assert value(with_origin) == pytest.approx(value(x) * (20 / 21) ** 2, rel=1e-12)
    for answer in (velocity_of, autograd_velocity):
        assert not answer(Sfrik(), with_origin, Cloud(x), RNG).v[20].any()
    assert value(torch.zeros(3, 2).double()) == 0.0


def test_descent_on_the_sphere_comes_to_an_even_spread() -> None:
    x = torch.nn.functional.normalize(torch.randn(50, 3, generator=seeded(4), dtype=torch.float64) + 1, dim=1)
    begin = value(x)
    for _ in range(300):
        x = torch.nn.functional.normalize(x + 0.005 * velocity_of(Sfrik(), x, Cloud(x), RNG).v, dim=1)
    assert value(x) < 1e-2 * begin
