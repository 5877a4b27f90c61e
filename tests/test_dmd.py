"""Distribution matching distillation: Gaussians of bumps, the normaliser by hand, and clouds that do not touch."""

import math

import pytest
import torch
from pair_cases import clouds, hermite, path

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._kde import Bumps
from dmviz.losses.dmd import Dmd
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.shapes.eight_gaussians import EightGaussians

__all__ = ["path"]


def shaken(x: torch.Tensor, sigma: float, seed: int) -> torch.Tensor:
    """The particles as the loss shakes them: one draw for the level, then noise."""
    rng = seeded(seed)
    torch.rand(1, generator=rng, dtype=torch.float64)
    return x + sigma * torch.randn(x.shape, generator=rng, dtype=torch.float64)


def test_velocity_is_the_difference_of_scores_at_shaken_particles(path: str) -> None:
    x, a, target = clouds(15, 9, 2)
    h, sigma = 0.4, 0.9
    at, width = shaken(x, sigma, 5), math.hypot(h, sigma)
    p, q = (Bumps(z, w, width, False)(at).score for z, w in ((target.x, target.weight), (x, a)))
    plain = velocity_of(Dmd(h, sigma, sigma, normalise=False), x, target, seeded(5), a)
    torch.testing.assert_close(plain.v, p - q, rtol=1e-8, atol=1e-9)
    denoised = at + sigma**2 * p
    by_hand = (denoised - (at + sigma**2 * q)) / ((x - denoised).abs().mean(1, keepdim=True) + 1e-6 * sigma)
    released = velocity_of(Dmd(h, sigma, sigma), x, target, seeded(5), a)
    torch.testing.assert_close(released.v, by_hand, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(released.value, plain.value)


def test_noise_makes_bumps_wider_exactly() -> None:
    """Bumps of width h on N(0, v): under noise N(0, v + h^2 + sigma^2), whose score is linear."""
    v, h, sigma = 0.5, 0.4, 0.8
    cloud = hermite([0.0], [[v]], 60)
    target = Cloud(cloud.x + 2.0, cloud.weight)
    answer = velocity_of(Dmd(h, sigma, sigma, normalise=False), cloud.x, target, seeded(1), cloud.weight)
    torch.testing.assert_close(
        answer.v, torch.full_like(answer.v, 2.0 / (v + h * h + sigma * sigma)), rtol=1e-5, atol=0
    )


def test_mean_over_noise_is_the_gradient_of_kl_between_the_noised_laws() -> None:
    """N(m, 1) against N(0, 2^2) after noise: -E v is the slope of KL in m, whatever the shaking."""
    m, h, sigma, n = 1.5, 0.3, 0.7, 4000
    levels = (torch.arange(n).double() + 0.5) / n
    z = torch.special.ndtri(levels)[:, None]
    x, y = m + math.sqrt(1 - h * h) * z, math.sqrt(4 - h * h) * z
    v = velocity_of(Dmd(h, sigma, sigma, normalise=False), x, Cloud(y), seeded(2)).v
    assert -v.mean().item() == pytest.approx(m / (4 + sigma * sigma), rel=0.03)  # 4,000 draws of noise


def test_levels_lie_within_the_range_one_in_each_part() -> None:
    loss = Dmd(noise_low=0.1, noise_high=1.6, levels=4)
    sigmas = loss._sigmas(seeded(3))
    for k, sigma in enumerate(sigmas):
        assert 0.1 * 2**k <= sigma <= 0.1 * 2 ** (k + 1)
    assert sigmas != loss._sigmas(seeded(4))


def test_several_levels_are_their_mean() -> None:
    x, a, target = clouds(8, 6, 2)
    rng = seeded(6)
    loss, one = Dmd(levels=2, normalise=False), Dmd(levels=1, normalise=False)
    both = velocity_of(loss, x, target, seeded(6), a)
    first, second = loss._sigmas(rng)
    parts = []
    for sigma in (first, second):
        noise = torch.randn(x.shape, generator=rng, dtype=torch.float64)
        width = math.hypot(one.bandwidth, sigma)
        p, q = (Bumps(z, w, width, False)(x + sigma * noise).score for z, w in ((target.x, target.weight), (x, a)))
        parts.append(p - q)
    torch.testing.assert_close(both.v, (parts[0] + parts[1]) / 2, rtol=1e-8, atol=1e-9)


def test_value_is_never_negative_and_zero_on_equal_clouds_whose_particles_rest(path: str) -> None:
    x, a, target = clouds(12, 9, 3)
    same = velocity_of(Dmd(), x, Cloud(x, a), seeded(1), a)
    assert same.value.abs() < 1e-12 and same.v.abs().max() < 1e-9
    assert velocity_of(Dmd(), x, target, seeded(1), a).value > 0


def test_value_is_that_of_the_middle_level_whatever_was_drawn() -> None:
    x, a, target = clouds(12, 9, 2)
    middle = Dmd(noise_low=0.5, noise_high=0.5)(x, target, seeded(1), a)
    for seed in (1, 2):
        torch.testing.assert_close(Dmd(noise_low=0.1, noise_high=2.5)(x, target, seeded(seed), a), middle)
    width = math.hypot(0.2, 0.5)
    p, q = (Bumps(z, w, width, False).log(x) for z, w in ((target.x, target.weight), (x, a)))
    torch.testing.assert_close(middle, a @ ((p - q).exp() - 1 - (p - q)))


def test_autograd_is_led_by_the_velocity() -> None:
    x, a, target = clouds(12, 9, 3)
    closed, auto = velocity_of(Dmd(), x, target, seeded(1), a), autograd_velocity(Dmd(), x, target, seeded(1), a)
    torch.testing.assert_close(closed.v, auto.v)
    assert closed.value.item() == auto.value.item()


def test_clouds_that_do_not_touch_find_each_other() -> None:
    target = EightGaussians().sample(200, seeded(1))
    x = torch.randn(200, 2, generator=seeded(2)) * 0.3 + 6.0
    field, measure = aim(Dmd(noise_high=4.0), Cloud(target.x)), EnergyDistance()
    before = measure(x, target, seeded(0))
    for step in range(250):
        x = x + 0.1 * field(x, seeded(3, step)).v
    assert measure(x, target, seeded(0)) < 0.02 * before


def test_levels_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError, match="Dmd: noise_low must be at most noise_high, got 2 and 1"):
        Dmd(noise_low=2.0, noise_high=1.0)
