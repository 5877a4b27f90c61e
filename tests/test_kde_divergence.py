"""Divergences of smoothed clouds: Gaussians that are their own smoothing, tables, and flows that arrive."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, hermite, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses._kde import scott
from dmviz.losses.kde_divergence import KdeDivergence

__all__ = ["path"]
KNOWN = json.loads((Path(__file__).parent / "known" / "densities.json").read_text())
RNG = seeded(0)
DIVERGENCES = ["reverse_kl", "kl", "jensen_shannon", "hellinger", "jeffreys", "softened_reverse_kl", "softened_kl",
               "pearson_chi2", "neyman_chi2"]  # fmt: skip


def table(name: str, u: torch.Tensor) -> torch.Tensor:
    r = u.exp()
    return {
        "reverse_kl": -u, "kl": r * u, "jeffreys": (r - 1) * u, "hellinger": 1 - r.sqrt(),
        "jensen_shannon": 0.5 * (r * u - (r + 1) * ((r + 1) / 2).log()), "pearson_chi2": (r - 1) ** 2,
        "softened_reverse_kl": (r + 1) * ((r + 1) / (2 * r)).log(), "neyman_chi2": (r - 1) ** 2 / r,
        "softened_kl": (r + 1) * ((r + 1) / 2).log(),
    }[name]  # fmt: skip


@pytest.mark.parametrize("points", ["both", "particles"])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_value_is_the_mean_that_the_docstring_states(name: str, points: str, path: str) -> None:
    x, a, target = clouds(12, 9, 2)
    y, b, h = target.x, target.weight, 0.8
    density = lambda z, c, w: ((-(z[:, None] - c).square().sum(2) / (2 * h * h)).exp() @ w) / (2 * math.pi * h * h)  # noqa: E731
    u_x, u_y = ((density(z, y, b) / density(z, x, a)).log() for z in (x, y))
    at_one = {"reverse_kl": -1, "kl": 1, "hellinger": -0.5, "softened_reverse_kl": -1, "softened_kl": 1}.get(name, 0)
    phi = lambda u: 2 * (table(name, u) - at_one * (u.exp() - 1)) / (1 + u.exp())  # noqa: E731
    want = a @ table(name, u_x) if points == "particles" else 0.5 * (a @ phi(u_x)) + 0.5 * (b @ phi(u_y))
    loss = KdeDivergence(divergence=name, bandwidth=h, points=points)
    assert loss(x, target, RNG, a).item() == pytest.approx(want.item(), rel=1e-9, abs=1e-12)
    assert loss(x.requires_grad_(True), target, RNG, a).item() == pytest.approx(want.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("case", "name"), [("kl_gauss_0", "kl"), ("jsd_gauss_0", "jensen_shannon"), ("hellinger2_gauss_0", "hellinger"),
                       ("jeffreys_gauss_0", "jeffreys"), ("softrkl_gauss_0", "softened_reverse_kl")]
)  # fmt: skip
def test_gaussians_of_many_points_come_near_the_exact_divergence(case: str, name: str) -> None:
    """Points of N(0, 1 - h^2) under bumps of width h are N(0, 1); only the mean over the points is approximate."""
    h, n = 0.3, 4000
    levels = (torch.arange(n).double() + 0.5) / n
    z = math.sqrt(1 - h * h) * torch.special.ndtri(levels)[:, None]
    loss = KdeDivergence(divergence=name, bandwidth=h)
    got = loss(z + 1.0, Cloud(z), RNG).item()
    assert got == pytest.approx(KNOWN[case]["value"], rel=0.08)  # means over the smaller law: h^2 is 9 % of a variance


def test_two_points_apart_are_as_far_as_a_bounded_divergence_can_say(path: str) -> None:
    here, there = tensor([[0.0, 0.0]]), Cloud(tensor([[300.0, 400.0]]))
    assert KdeDivergence("jensen_shannon")(here, there, RNG).item() == pytest.approx(math.log(2))
    assert KdeDivergence("hellinger")(here, there, RNG).item() == pytest.approx(1.0)
    assert KdeDivergence("reverse_kl", bandwidth=1.0)(here, there, RNG).item() == pytest.approx(125_000)


def test_one_particle_is_pulled_as_by_a_spring(path: str) -> None:
    here, there = tensor([[0.0, 0.0]]), Cloud(tensor([[3.0, 4.0]]))
    loss = KdeDivergence("reverse_kl", bandwidth=5.0, points="particles")
    torch.testing.assert_close(velocity_of(loss, here, there, RNG).v, tensor([[3.0, 4.0]]) / 25)


@pytest.mark.parametrize("far", [0.5, 30.0])
@pytest.mark.parametrize("points", ["both", "particles"])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_velocity_is_the_gradient_near_and_far(name: str, points: str, far: float, path: str) -> None:
    x, a, target = clouds(11, 8, 3)
    there = Cloud(target.x + far, target.weight)
    loss = KdeDivergence(divergence=name, bandwidth=0.7, points=points)
    closed, auto = velocity_of(loss, x, there, RNG, a), autograd_velocity(loss, x, there, RNG, a)
    assert torch.isfinite(closed.v).all()
    torch.testing.assert_close(closed.v, auto.v, rtol=1e-7, atol=1e-7 * float(auto.v.abs().max()) + 1e-300)


def test_gradient_agrees_with_finite_differences(path: str) -> None:
    x, a, target = clouds(6, 5, 2)
    loss, step = KdeDivergence("jeffreys", bandwidth=0.9), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i, d in ((0, 0), (3, 1), (5, 0)):
        up, down = x.clone(), x.clone()
        up[i, d] += step
        down[i, d] -= step
        change = (loss(up, target, RNG, a) - loss(down, target, RNG, a)) / (2 * step)
        assert v[i, d].item() == pytest.approx(-change.item() / a[i].item(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("name", "dt"), [("reverse_kl", 0.02), ("kl", 0.02), ("hellinger", 0.08), ("jeffreys", 0.02)])
def test_flow_goes_down_and_arrives(name: str, dt: float) -> None:
    target = Cloud(torch.randn(60, 2, generator=seeded(1), dtype=torch.float64) + 1)
    field = aim(KdeDivergence(divergence=name, bandwidth=0.7), target)
    x, values = torch.randn(60, 2, generator=seeded(2), dtype=torch.float64) * 0.5, []
    for _ in range(80):
        answer = field(x, RNG)
        values.append(answer.value.item())
        x = x + dt * answer.v
    assert all(after < before for before, after in pairwise(values))
    assert values[-1] < 0.15 * values[0]


def test_a_particle_without_weight_changes_nothing_and_stays(path: str) -> None:
    x, _, target = clouds(8, 6, 2)
    a = tensor([0.0, 0.2, 0.1, 0.1, 0.2, 0.1, 0.3, 0.0])
    for points in ("both", "particles"):
        loss = KdeDivergence(points=points)
        whole, rest = velocity_of(loss, x, target, RNG, a), velocity_of(loss, x[1:7], target, RNG, a[1:7])
        assert whole.v[[0, 7]].abs().max() == 0
        assert whole.value.item() == pytest.approx(rest.value.item(), rel=1e-9)
        torch.testing.assert_close(whole.v[1:7], rest.v)


def test_hermite_points_of_equal_law_have_no_pull() -> None:
    law = hermite([0.0], [[1.0]], 12)
    answer = velocity_of(KdeDivergence(), law.x, Cloud(law.x, law.weight), RNG, law.weight)
    assert answer.value.abs() < 1e-12 and answer.v.abs().max() < 1e-6


@pytest.mark.parametrize("points", ["both", "particles"])
def test_a_probe_where_a_particle_stands_feels_what_it_feels(points: str, path: str) -> None:
    x, a, target = clouds(11, 8, 2)
    loss = KdeDivergence("jeffreys", bandwidth=0.7, points=points)
    torch.testing.assert_close(loss.probe(x, x, target, RNG, a), velocity_of(loss, x, target, RNG, a).v)
    assert torch.isfinite(loss.probe(x + 30.0, x, target, RNG, a)).all()


def test_scotts_width_of_one_place_is_the_bandwidth_wherever_it_lies() -> None:
    weight = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    for shift in (0.0, 0.3, 2.7, 1e4):
        place = torch.tensor([[-0.1724, 0.8753]], dtype=torch.float64) + shift
        assert scott(Cloud(place, torch.tensor([1.0 - 1e-16], dtype=torch.float64)), 0.5) == 0.5
        assert scott(Cloud(place.expand(3, -1).clone(), weight), 0.5) == 0.5
