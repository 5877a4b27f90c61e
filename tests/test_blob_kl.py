"""KL by blobs: one particle, a table, the flow that goes down, and the blurred Gaussian that it keeps."""

import math
from itertools import pairwise

import pytest
import torch
from pair_cases import clouds, hermite, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses.blob_kl import BlobKl
from dmviz.shapes.eight_gaussians import EightGaussians
from dmviz.shapes.gaussian import Gaussian

__all__ = ["path"]
RNG = seeded(0)


def normal(d: int) -> Cloud:
    log_prob = lambda z: -z.square().sum(1) / 2 - d / 2 * math.log(2 * math.pi)  # noqa: E731
    return Cloud(torch.zeros(1, d, dtype=torch.float64), score=lambda z: -z, log_prob=log_prob)


def test_value_and_velocity_are_those_of_a_table(path: str) -> None:
    (x, a, _), h = clouds(14, 3, 2), 0.6
    leaf = x.clone().requires_grad_(True)
    log_q = (a.log() - (leaf[:, None] - leaf).square().sum(2) / (2 * h * h)).logsumexp(1) - math.log(
        2 * math.pi * h * h
    )
    value = a @ (log_q - normal(2).log_prob(leaf))
    (grad,) = torch.autograd.grad(value, leaf)
    got = velocity_of(BlobKl(h), x, normal(2), RNG, a)
    assert got.value.item() == pytest.approx(value.item(), rel=1e-10)
    assert BlobKl(h)(x, normal(2), RNG, a).item() == pytest.approx(value.item(), rel=1e-10)
    torch.testing.assert_close(got.v, -grad / a[:, None], rtol=1e-8, atol=1e-10)


def test_one_particle_follows_the_score_alone(path: str) -> None:
    torch.testing.assert_close(velocity_of(BlobKl(), tensor([[3.0, 4.0]]), normal(2), RNG).v, tensor([[-3.0, -4.0]]))


def test_a_gaussian_of_points_has_the_value_of_its_blur(path: str) -> None:
    """E_q log(k * q) for q = N(m, v): the cross entropy of N(m, v) and N(m, v + h^2)."""
    m, v, h = 0.7, 0.6, 0.5
    q, wide = hermite([m], [[v]], 80), v + h * h
    exact = -0.5 * math.log(2 * math.pi * wide) - v / (2 * wide) + 0.5 * math.log(2 * math.pi) + (m * m + v) / 2
    assert BlobKl(h)(q.x, normal(1), RNG, q.weight).item() == pytest.approx(exact, abs=1e-6)


def test_flow_goes_down_and_ends_at_the_blurred_balance() -> None:
    """Among Gaussians N(0, v) with w = v + h^2, the value rests where v^2 + (2 h^2 - 1) v + h^4 - 2 h^2 = 0."""
    h = 0.4
    levels = (torch.arange(60).double() + 0.5) / 60
    x, values, field = torch.special.ndtri(levels)[:, None] * 0.5 + 1.0, [], aim(BlobKl(h), normal(1))
    for _ in range(300):
        answer = field(x, RNG)
        values.append(answer.value.item())
        x = x + 0.05 * answer.v
    assert all(after <= before + 1e-12 for before, after in pairwise(values))
    half = 2 * h * h - 1
    balance = (-half + math.sqrt(half**2 - 4 * (h**4 - 2 * h * h))) / 2
    assert x.mean().abs() < 1e-3
    assert x.var(unbiased=False).item() == pytest.approx(balance, rel=0.05)


def test_shapes_with_a_density_serve_it() -> None:
    for shape in (Gaussian(), EightGaussians()):
        target = shape.sample(30, seeded(1))
        x = torch.randn(40, 2, generator=seeded(2))
        closed, auto = velocity_of(BlobKl(), x, target, RNG), autograd_velocity(BlobKl(), x, target, RNG)
        assert closed.v.dtype == torch.float32
        torch.testing.assert_close(closed.v, auto.v, rtol=1e-3, atol=1e-3 * float(auto.v.abs().max()))


def test_a_target_without_a_density_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="BlobKl needs the log density and the score"):
        BlobKl()(tensor([[0.0]]), Cloud(tensor([[1.0]]), score=lambda z: -z), RNG)


def test_probe_far_away_follows_the_score(path: str) -> None:
    at = tensor([[50.0, 0.0], [0.0, 0.0]])
    pull = BlobKl(0.5).probe(at, tensor([[0.0, 0.0]]), normal(2), RNG)
    assert torch.isfinite(pull).all()
    torch.testing.assert_close(pull[1], tensor([0.0, 0.0]))
    torch.testing.assert_close(pull[0], tensor([-50.0 + 50.0 / 0.25, 0.0]))  # its own score, less that of a far bump
