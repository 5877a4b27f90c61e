"""Linear-time MMD: known arrays in their order, the mean over shuffles, weights, and gradients."""

import itertools

import pytest
import torch
from pair_cases import agrees, clouds, known, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._kernels import Kernel, kernel_of
from dmviz.losses._pairs import discrepancy_value
from dmviz.losses.linear_time_mmd import LinearTimeMmd, linear_mmd
from dmviz.losses.mmd import Mmd

KNOWN = known("more")
KERNELS = {
    "rbf_l1": Kernel("gaussian"),
    "rbf_l2": Kernel("gaussian", (2.0,)),
    "laplace_s1": Kernel("laplacian"),
    "imq_c1": Kernel("imq"),
    "neg_dist": Kernel("distance"),
}


def radial(kernel: Kernel):
    return lambda u, v: kernel_of(kernel, (u - v).square().sum(1))


@pytest.mark.parametrize("case", [case for case in KNOWN if case.startswith("mmd2_linear")])
def test_known_arrays_in_the_given_order(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x, y, order, a = tensor(inputs["X"]), tensor(inputs["Y"]), torch.arange(4), torch.full((4,), 0.25).double()
    name = inputs["kernel"]
    k = radial(KERNELS[name]) if name in KERNELS else lambda u, v: ((u * v).sum(1) / 2 + 1) ** 3
    assert agrees(linear_mmd(k, x, y, a, a, order, order).item(), KNOWN[case])


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 4), (5, 2)])
def test_the_mean_over_all_orders_is_the_unbiased_mmd_with_weights(n: int, m: int) -> None:
    x, a, target = clouds(n, m, 2)
    kernel, b = Kernel("gaussian", (0.9,)), target.weight
    orders = itertools.product(itertools.permutations(range(n)), itertools.permutations(range(m)))
    values = [linear_mmd(radial(kernel), x, target.x, a, b, torch.tensor(i), torch.tensor(j)) for i, j in orders]
    exact = discrepancy_value(x, target, kernel, a, unbiased=True)
    assert torch.stack(values).mean().item() == pytest.approx(exact.item(), abs=1e-12)


def test_many_rounds_come_close_to_all_pairs() -> None:
    x, a, target = clouds(60, 50, 2)
    values = tensor([LinearTimeMmd(bandwidth=1.0, rounds=8)(x, target, seeded(2, i), a).item() for i in range(40)])
    exact = Mmd(bandwidth=1.0, estimator="unbiased")(x, target, seeded(0), a).item()
    assert values.mean().item() == pytest.approx(exact, abs=4 * values.std().item() / 40**0.5)
    single = tensor([LinearTimeMmd(bandwidth=1.0)(x, target, seeded(3, i), a).item() for i in range(40)])
    assert single.std() > 1.5 * values.std()
    assert single.min() < 0


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "imq", "distance"])
@pytest.mark.parametrize(("n", "m", "d"), [(41, 30, 2), (1, 6, 3), (6, 1, 1), (12, 12, 9)])
def test_velocity_is_minus_gradient_over_weight(kernel: str, n: int, m: int, d: int) -> None:
    x, a, target = clouds(max(n, 2), max(m, 2), d)
    x, a, target = x[:n], a[:n] / a[:n].sum(), Cloud(target.x[:m], target.weight[:m] / target.weight[:m].sum())
    loss = LinearTimeMmd(kernel, 0.8, rounds=3)
    closed, auto = velocity_of(loss, x, target, seeded(5), a), autograd_velocity(loss, x, target, seeded(5), a)
    assert torch.allclose(closed.v, auto.v, atol=1e-10)
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-12)


def test_the_mean_velocity_is_that_of_the_unbiased_mmd() -> None:
    x, a, target = clouds(10, 9, 2)
    loss = LinearTimeMmd("imq", 1.0, rounds=256)
    draws = torch.stack([velocity_of(loss, x, target, seeded(7, i), a).v for i in range(8)])
    exact = velocity_of(Mmd("imq", 1.0, estimator="unbiased"), x, target, seeded(0), a).v
    assert ((draws.mean(0) - exact).abs() <= 5 * draws.std(0) / 8**0.5 + 1e-3).all()


def test_a_particle_without_weight_stays() -> None:
    x, a, target = clouds(10, 9, 2)
    a = torch.cat([a[:9] / a[:9].sum(), torch.zeros(1).double()])
    assert not velocity_of(LinearTimeMmd(), x, target, seeded(1), a).v[9].any()


def test_a_cloud_aimed_at_itself_moves_only_as_particles() -> None:
    x, a, _ = clouds(10, 9, 2)
    loss = LinearTimeMmd(rounds=4)
    shared, copied = (velocity_of(loss, x, Cloud(y, a), seeded(1), a).v for y in (x, x.clone()))
    assert torch.equal(shared, copied)
