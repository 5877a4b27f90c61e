"""Uniformity and alignment: known values, the simplex, the uniform law, and particles that find them."""

import json
import math
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses.alignment import Alignment
from dmviz.losses.uniformity import Uniformity

KNOWN = json.loads((Path(__file__).parent / "known" / "regularizers.json").read_text())
RNG = seeded(0)


def tensor(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def score(x: torch.Tensor, t: float = 2.0, weight: torch.Tensor | None = None) -> float:
    return Uniformity(t)(x, Cloud(x), RNG, weight).item()


@pytest.fixture(params=["eager", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DMVIZ_COMPILE", "0" if request.param == "eager" else "1")
    return request.param


@pytest.mark.parametrize("case", ["align_alpha2_angles", "align_alpha1_angles"])
def test_alignment_is_a_power_of_the_chord(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    loss = Alignment(alpha=float(inputs["alpha"]), uniformity=0.0)
    got = loss(tensor(inputs["x"]), Cloud(tensor(inputs["y"])), RNG).item()
    assert got == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


@pytest.mark.parametrize("case", ["uniform_tetrahedron_t2", "uniform_square_t2"])
def test_known_arrays(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]
    assert score(tensor(inputs["x"]), inputs["t"]) == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])
    leaf = tensor(inputs["x"]).requires_grad_(True)  # the path that autograd goes
    got = Uniformity(inputs["t"])(leaf, Cloud(leaf), RNG).item()
    assert got == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


def test_the_uniform_law_in_one_two_and_three_dimensions() -> None:
    case = KNOWN["uniform_population_S2_t2"]
    assert Uniformity(2.0).spread(3) == pytest.approx(case["value"], abs=case["tolerance"])
    assert Uniformity(2.0).spread(1) == pytest.approx(math.log((1 + math.exp(-8)) / 2))
    angle = torch.arange(4096).double() * (2 * math.pi / 4096)  # e^{-2t} I_0(2t) by the trapezoidal rule
    assert Uniformity(1.5).spread(2) == pytest.approx(math.log((-3 * (1 - angle.cos())).exp().mean().item()), abs=1e-12)


def test_many_points_on_the_sphere_score_as_the_uniform_law(path: str) -> None:
    x = torch.randn(3000, 3, generator=seeded(1), dtype=torch.float64)
    assert score(x) == pytest.approx(Uniformity().spread(3), abs=0.02)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 2), (4, 3), (5, 12)])
def test_few_particles_end_as_a_regular_simplex(n: int, d: int) -> None:
    x = torch.nn.functional.normalize(torch.randn(n, d, generator=seeded(n), dtype=torch.float64), dim=1)
    field = aim(Uniformity(2.0), Cloud(x), hold="sphere")
    for _ in range(1200):
        x = field.hold(x + 0.01 * field(x, RNG).v)
    assert score(x) == pytest.approx(-2 * 2 * n / (n - 1), abs=1e-5)


def test_lengths_do_not_matter_and_the_velocity_stays_on_the_sphere(path: str) -> None:
    x = torch.randn(30, 4, generator=seeded(2), dtype=torch.float64)
    stretch = torch.linspace(0.1, 9, 30, dtype=torch.float64)[:, None]
    assert score(x * stretch) == pytest.approx(score(x), abs=1e-12)
    v, wide = (velocity_of(Uniformity(), z, Cloud(z), RNG).v for z in (x, x * stretch))
    assert (v * x).sum(1).abs().max() < 1e-12
    assert torch.allclose(wide * stretch, v, atol=1e-12)


@pytest.mark.parametrize("d", [2, 12])
@pytest.mark.parametrize("t", [0.3, 2.0, 20.0])
def test_velocity_is_minus_gradient_over_weight_in_several_tiles(d: int, t: float, path: str) -> None:
    x = torch.randn(700, d, generator=seeded(d), dtype=torch.float64)
    x[5] = x[4]
    a = torch.rand(700, generator=seeded(3), dtype=torch.float64)
    a = a / a.sum()
    closed, auto = (f(Uniformity(t), x, Cloud(x), RNG, a) for f in (velocity_of, autograd_velocity))
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-10)
    assert (closed.v - auto.v).abs().max() <= 1e-8 * auto.v.abs().max()


def test_the_gradient_is_that_of_finite_differences() -> None:
    x = torch.randn(6, 3, generator=seeded(9), dtype=torch.float64)
    target = Cloud(torch.randn(4, 3, generator=seeded(8), dtype=torch.float64))
    for loss in (Uniformity(1.0), Alignment(alpha=1.5, uniformity=0.7)):
        v, step = velocity_of(loss, x, target, RNG).v, 1e-6
        for i, j in ((0, 0), (3, 2), (5, 1)):
            bump = torch.zeros_like(x)
            bump[i, j] = step
            slope = (loss(x + bump, target, RNG) - loss(x - bump, target, RNG)) / (2 * step)
            assert v[i, j].item() == pytest.approx(-6 * slope.item(), abs=1e-7)


def test_opposite_points_under_a_sharp_push_keep_their_digits(path: str) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=dtype)
        assert score(x, 20.0) == pytest.approx(-80.0, rel=1e-6)


def test_no_pair_no_push() -> None:
    one = tensor([[1.0, 2.0]])
    assert score(one) == 0.0
    two, all_on_one = tensor([[1.0, 0.0], [0.0, 1.0]]), tensor([1.0, 0.0])
    got = velocity_of(Uniformity(), two, Cloud(two), RNG, all_on_one)
    assert got.value == 0.0
    assert (got.v == 0.0).all()
    zero = tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert (velocity_of(Uniformity(), zero, Cloud(zero), RNG).v[0] == 0.0).all()


def test_the_target_is_not_read() -> None:
    x = torch.randn(5, 2, generator=seeded(4))
    ours, theirs = (velocity_of(Uniformity(), x, Cloud(y), RNG) for y in (x, x * 0 + 7))
    assert torch.equal(ours.v, theirs.v)


def test_partners_begin_again_where_the_target_is_shorter() -> None:
    x, y = torch.randn(5, 2, generator=seeded(5)), torch.randn(2, 2, generator=seeded(6))
    loss = Alignment()
    assert torch.equal(loss(x, Cloud(y), RNG), loss(x, Cloud(y[[0, 1, 0, 1, 0]]), RNG))


def test_alignment_alone_brings_each_particle_to_its_partner() -> None:
    x, y = (torch.randn(20, 3, generator=seeded(s), dtype=torch.float64) for s in (7, 8))
    field = aim(Alignment(uniformity=0.0), Cloud(y), hold="sphere")
    x = field.hold(x)
    for _ in range(400):
        x = field.hold(x + 0.1 * field(x, RNG).v)
    assert (x - torch.nn.functional.normalize(y, dim=1)).abs().max() < 1e-6
