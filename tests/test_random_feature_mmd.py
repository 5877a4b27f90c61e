"""Random feature MMD: the kernels its waves stand for, the exact MMD on average, gradients, fixed and fresh waves."""

import math

import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._kernels import Kernel, kernel_of
from dmviz.losses.mmd import Mmd
from dmviz.losses.random_feature_mmd import RandomFeatureMmd, waves

KERNELS = ["gaussian", "laplacian", "imq"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [1, 3])
def test_products_of_waves_average_to_the_kernel(kernel: str, d: int) -> None:
    count, apart = 200_000, 0.9 / math.sqrt(d)
    drawn = waves(kernel, count, d, seeded(4)).over(0.7, tensor([[5.0] * d]))
    heights = [drawn.along(tensor([[z] * d]), slice(0, count)).cos() for z in (0.3, 0.3 + apart)]
    exact = kernel_of(Kernel(kernel, (0.7,)), tensor(0.81)).item()
    assert 2 * (heights[0] * heights[1]).mean().item() == pytest.approx(exact, abs=4 / math.sqrt(count))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_mean_over_draws_is_the_biased_mmd(kernel: str) -> None:
    x, a, target = clouds(50, 40, 2)
    loss = RandomFeatureMmd(kernel, 0.8, features=512)
    draws = tensor([loss(x, target, seeded(1, i), a).item() for i in range(30)])
    exact = Mmd(kernel, 0.8)(x, target, seeded(0), a).item()
    assert draws.mean().item() == pytest.approx(exact, abs=4 * draws.std().item() / 30**0.5)


def test_the_mean_velocity_is_that_of_the_biased_mmd() -> None:
    x, a, target = clouds(12, 10, 2)
    draws = torch.stack([velocity_of(RandomFeatureMmd(features=4096), x, target, seeded(2, i), a).v for i in range(12)])
    exact = velocity_of(Mmd(), x, target, seeded(0), a).v
    assert ((draws.mean(0) - exact).abs() <= 5 * draws.std(0) / 12**0.5 + 1e-4).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("draw", ["fresh", "fixed"])
@pytest.mark.parametrize(("n", "d"), [(1, 2), (50, 1), (3000, 2), (30, 12)])
def test_velocity_is_minus_gradient_over_weight(n: int, d: int, draw: str, kernel: str) -> None:
    x, a, target = clouds(max(n, 2), 40, d)
    x, a = x[:n], a[:n] / a[:n].sum()
    loss = RandomFeatureMmd(kernel, 0.8, features=200, draw=draw)
    auto = autograd_velocity(loss, x, target, seeded(3), a)
    for aimed in (target, loss.prepare(target)):
        closed = velocity_of(loss, x, aimed, seeded(3), a)
        assert torch.allclose(closed.v, auto.v, rtol=1e-9, atol=1e-10)
        assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-13)


def test_probe_at_the_particles_is_their_velocity() -> None:
    x, a, target = clouds(25, 20, 3)
    loss = RandomFeatureMmd(draw="fixed")
    assert torch.allclose(loss.probe(x, x, target, seeded(0), a), velocity_of(loss, x, target, seeded(0), a).v)


def test_another_wave_seed_gives_other_waves_and_fresh_ones_follow_the_generator() -> None:
    x, a, target = clouds(25, 20, 3)
    values = [RandomFeatureMmd(draw="fixed", wave_seed=s)(x, target, seeded(0), a).item() for s in (0, 1)]
    assert values[0] != values[1]
    fresh = RandomFeatureMmd()
    assert fresh(x, target, seeded(0), a).item() != fresh(x, target, seeded(1), a).item()


def test_unlike_characteristic_functions_it_changes_when_both_clouds_move() -> None:
    x, a, target = clouds(25, 20, 2)
    loss = RandomFeatureMmd(features=16, draw="fixed")
    moved = loss(x + 1.0, Cloud(target.x + 1.0, target.weight), seeded(0), a).item()
    assert abs(moved - loss(x, target, seeded(0), a).item()) > 1e-3


def test_far_from_the_origin_float32_keeps_four_digits() -> None:
    x = torch.randn(60, 2, generator=seeded(1)).mul(256).round().div(256) + 4096
    y = torch.randn(50, 2, generator=seeded(2)).mul(256).round().div(256) + 4097
    loss = RandomFeatureMmd(draw="fixed")
    exact = velocity_of(loss, x.double(), Cloud(y.double()), seeded(0))
    quick = velocity_of(loss, x, Cloud(y), seeded(0))
    assert (quick.v - exact.v).abs().max() <= 1e-4 * exact.v.abs().max()
    assert quick.value.item() == pytest.approx(exact.value.item(), rel=1e-4)


def test_the_phase_does_not_depend_on_where_angles_are_counted_from() -> None:
    x, near = tensor([[0.3, -1.2]]), waves("gaussian", 50, 2, seeded(4))
    for origin in ([0.0, 0.0], [3.0, 7.0]):
        moved = near.over(0.5, tensor([origin]))
        plain = (x @ near.w.T / 0.5 + near.b).cos()
        assert torch.allclose(moved.along(x, slice(0, 50)).cos(), plain, atol=1e-12)


def test_descent_on_fixed_waves_lowers_it() -> None:
    x, _, target = clouds(60, 50, 2)
    loss, values = RandomFeatureMmd(bandwidth=1.0, draw="fixed"), []
    for _ in range(40):
        v, value, _ = velocity_of(loss, x, target, seeded(0))
        values.append(value.item())
        x = x + 0.1 * v
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.5 * values[0]
