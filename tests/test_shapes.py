"""Shapes: points follow the law that the shape says they do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dmviz.catalog import entry_class, menu
from dmviz.cloud import Cloud, seeded
from dmviz.params import Range, params_of
from dmviz.shapes._curve import gauss_legendre
from dmviz.shapes.anisotropic_gaussian import AnisotropicGaussian
from dmviz.shapes.checkerboard import Checkerboard
from dmviz.shapes.drawn import MOST_POINTS, Drawn, decode, encode
from dmviz.shapes.eight_gaussians import EightGaussians
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture
from dmviz.shapes.letters import Letters
from dmviz.shapes.picture import Picture
from dmviz.shapes.pinwheel import Pinwheel
from dmviz.shapes.ring import Ring
from dmviz.shapes.spiral import Spiral
from dmviz.shapes.swiss_roll import SwissRoll
from dmviz.shapes.twenty_five_gaussians import TwentyFiveGaussians
from dmviz.shapes.two_moons import TwoMoons
from dmviz.shapes.uniform_disc import UniformDisc
from dmviz.shapes.uniform_sphere import UniformSphere
from dmviz.shapes.uniform_square import UniformSquare

NAMES = menu("shapes")
PLANE = [  # laws in the plane with a density, with and without noise
    Gaussian(),
    Gaussian(center=-0.5, scale=0.3),
    AnisotropicGaussian(scale=1.0, ratio=6.0, angle=-70.0),
    GaussianMixture(),
    GaussianMixture(components=5, weights="1,0,2,0.5,3", spread=0.2),
    Ring(),
    Ring(noise=0.6),
    TwoMoons(),
    TwoMoons(noise=0.05),
    Spiral(),
    Spiral(arms=3, turns=2.5, noise=0.2),
    EightGaussians(),
    TwentyFiveGaussians(),
    Checkerboard(),
    Checkerboard(fields=5, noise=0.1),
    Pinwheel(),
    Pinwheel(vanes=3, bend=-1.0),
    SwissRoll(),
    UniformSquare(),
    UniformSquare(noise=0.2),
    UniformDisc(),
    UniformSphere(dim=2, noise=0.1),
    Letters(),
    Picture(),
    Picture(picture="galaxy", contrast=2.0),
    Drawn(),
    Drawn(points="0,0; 1,0.5; -1,0.5", noise=0.3),
]
SOLID = [
    AnisotropicGaussian(dim=3),
    GaussianMixture(dim=3, components=4),
    UniformSphere(dim=3, noise=0.2),
    SwissRoll(dims="3", noise=0.3),
    UniformSquare(dim=3, noise=0.3),
]
FLAT = [shape for shape in PLANE if getattr(shape, "noise", 1.0) == 0]
SCORED = [shape for shape in (*PLANE, *SOLID) if shape not in FLAT]


def drawn(shape: object, n: int, seed: int = 0) -> Cloud:
    return shape.sample(n, seeded(seed))  # type: ignore[attr-defined]


def grid(side: int, dim: int, half: float = 5.0) -> tuple[Tensor, float]:
    """Middles of the cells of a cube, and the volume of one."""
    line = (torch.arange(side, dtype=torch.float64) + 0.5) / side * 2 * half - half
    return torch.cartesian_prod(*[line] * dim), (2 * half / side) ** dim


# ---- every shape


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    shape = entry_class("shapes", name)()
    assert torch.equal(drawn(shape, 50).x, drawn(shape, 50).x)
    assert not torch.equal(drawn(shape, 50).x, drawn(shape, 50, seed=1).x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 2, 1001])
def test_any_number_of_points_comes_as_float32_with_its_labels(name: str, n: int) -> None:
    cloud = drawn(entry_class("shapes", name)(), n)
    assert cloud.x.dtype == torch.float32
    assert len(cloud) == n
    assert cloud.x.isfinite().all()
    assert cloud.label is None or cloud.label.dtype == torch.int64


@pytest.mark.parametrize("name", NAMES)
def test_most_points_lie_where_the_view_starts(name: str) -> None:
    x = drawn(entry_class("shapes", name)(), 2000).x
    assert (x.abs() <= 3).double().mean() > 0.95


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_parameters_give_finite_points_and_a_finite_law_at_them(data: st.DataObject) -> None:
    cls = entry_class("shapes", data.draw(st.sampled_from(NAMES)))
    chosen = {p.name: data.draw(_value(p)) for p in params_of(cls) if p.kind in ("int", "float", "choice")}
    cloud = drawn(cls(**chosen), 7, seed=data.draw(st.integers(0, 99)))
    assert cloud.x.isfinite().all()
    if cloud.log_prob is not None:
        # float64 of the rounded points: within float32's step of the law's own sample
        assert not cloud.log_prob(cloud.x.double()).isnan().any()
    if cloud.score is not None:
        assert cloud.score(cloud.x.double()).isfinite().all()


def _value(param: object) -> st.SearchStrategy:
    if param.kind == "choice":  # type: ignore[attr-defined]
        return st.sampled_from(param.choices)  # type: ignore[attr-defined]
    hint = param.hint  # type: ignore[attr-defined]
    assert isinstance(hint, Range)
    if param.kind == "int":  # type: ignore[attr-defined]
        return st.integers(int(hint.low), int(hint.high))
    return st.floats(hint.low, hint.high)


@pytest.mark.parametrize("name", NAMES)
def test_every_label_has_a_name(name: str) -> None:
    shape = entry_class("shapes", name)()
    cloud = drawn(shape, 500)
    names = getattr(shape, "label_names", ())
    assert (cloud.label is None) == (not names)
    assert cloud.label is None or int(cloud.label.max()) < len(names)


# ---- densities and scores


@pytest.mark.parametrize("shape", PLANE, ids=repr)
def test_points_fall_where_the_density_promises(shape: object) -> None:
    n = 20_000
    cloud = drawn(shape, n, seed=3)
    # The midpoint rule is exact to 1e-8 where the noise is as wide as a cell; edges of flat laws need finer cells.
    fine = 15 if cloud.score is not None else 40
    points, cell = grid(16 * fine, 2)
    mass = cloud.log_prob(points).exp() * cell  # type: ignore[misc]
    assert mass.sum() == pytest.approx(1, abs=1e-3 if fine == 15 else 0.01)
    mean = (mass[:, None] * points).sum(0)
    spread = (mass[:, None] * (points - mean) ** 2).sum(0)
    # Five standard errors of a mean and of a variance, and the rule's own error on edges.
    assert (cloud.x.double().mean(0) - mean).abs().max() < 5 * (spread.max() / n).sqrt() + 0.01
    assert (cloud.x.double().var(0) / spread - 1).abs().max() < 0.06
    expected = mass.reshape(16, fine, 16, fine).sum((1, 3)).flatten() * n
    place = ((cloud.x.double() + 5) / 10 * 16).floor().long().clamp(0, 15)
    count = torch.bincount(place[:, 0] * 16 + place[:, 1], minlength=256)
    seen = expected > 20
    # Mean 1 with a standard deviation of at most 0.5 for the dozen or more cells seen.
    assert ((count - expected) ** 2 / expected)[seen].mean() < 2
    assert count[expected < 1e-3].sum() <= 3


@pytest.mark.parametrize("shape", SCORED, ids=repr)
def test_the_score_is_the_gradient_of_the_log_density(shape: object) -> None:
    cloud = drawn(shape, 60)
    assert cloud.score is not None
    x = torch.cat([cloud.x.double(), 4 * seeded_normal(40, cloud.dim)]).requires_grad_(True)
    (grad,) = torch.autograd.grad(cloud.log_prob(x).sum(), x)  # type: ignore[misc]
    score = cloud.score(x.detach())
    assert score.isfinite().all()
    # Float64 rounding, against the size of the score at that place.
    assert ((score - grad).norm(dim=1) / (1 + grad.norm(dim=1))).max() < 1e-9


@pytest.mark.parametrize("shape", SCORED, ids=repr)
def test_the_score_can_be_differentiated_and_keeps_its_type_and_device(shape: object, device: str) -> None:
    cloud = drawn(shape, 5)
    assert cloud.score is not None
    for dtype in (torch.float32, torch.float64):
        x = cloud.x.to(dtype).requires_grad_(True)
        score = cloud.score(x)
        assert score.dtype == dtype
        (second,) = torch.autograd.grad(score.sum(), x)
        assert second.isfinite().all()
    there = cloud.x.to(device)
    assert torch.allclose(cloud.score(there).cpu(), cloud.score(cloud.x), rtol=1e-3, atol=1e-2)
    with torch.no_grad():
        plain = cloud.score(cloud.x)
    assert torch.allclose(plain, cloud.score(cloud.x.double()).float(), rtol=1e-3, atol=1e-2)


def seeded_normal(n: int, dim: int) -> Tensor:
    return torch.randn(n, dim, generator=seeded(7), dtype=torch.float64)


@pytest.mark.parametrize("shape", [s for s in SOLID if not isinstance(s, AnisotropicGaussian)], ids=repr)
def test_a_density_in_space_has_mass_one(shape: object) -> None:
    points, cell = grid(45, 3, half=4.5)
    log_prob = drawn(shape, 1).log_prob
    # Cells of 0.2 are no wider than the noise: the rule's error is far below 2e-3.
    assert (log_prob(points).exp() * cell).sum() == pytest.approx(1, abs=2e-3)  # type: ignore[misc]


def test_the_score_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from dmviz.shapes import _law

    x = seeded_normal(1000, 2)
    whole = drawn(EightGaussians(), 1).score(x)  # type: ignore[misc]
    monkeypatch.setattr(_law, "_BLOCK", 64)
    assert torch.equal(drawn(EightGaussians(), 1).score(x), whole)  # type: ignore[misc]


# ---- single shapes against exact values


@given(st.floats(-10, 10), st.floats(0.01, 10), st.integers(1, 512))
@settings(max_examples=20, deadline=None)
def test_a_gaussian_has_its_mean_and_deviation(center: float, scale: float, dim: int) -> None:
    n = max(1, 40_000 // dim)
    x = drawn(Gaussian(center=center, scale=scale, dim=dim), n).x.double()
    # Five standard errors over all n D numbers.
    assert abs(x.mean() - center) < 5 * scale / math.sqrt(n * dim) + 1e-6 * abs(center)
    assert abs((x - center).square().mean().sqrt() / scale - 1) < 5 / math.sqrt(2 * n * dim) + 1e-4


@given(st.floats(1, 100), st.floats(-180, 180), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_a_stretched_gaussian_has_its_covariance(ratio: float, angle: float, dim: int) -> None:
    shape = AnisotropicGaussian(scale=1.0, ratio=ratio, angle=angle, dim=dim)
    x = drawn(shape, 20_000).x.double()
    q, s = shape.turn(), shape.deviations()
    assert s[0] == pytest.approx(1)
    assert dim == 1 or s[-1] == pytest.approx(1 / ratio)
    # Five standard errors of a covariance whose largest entry is 1.
    assert (torch.cov(x.T).reshape(dim, dim) - (q * s**2) @ q.T).abs().max() < 5 * math.sqrt(2 / 20_000)
    assert torch.allclose(q @ q.T, torch.eye(dim, dtype=torch.float64))


@pytest.mark.parametrize(("k", "dim"), [(1, 1), (4, 1), (3, 2), (8, 2), (4, 3), (9, 3), (2, 10), (11, 10), (30, 10)])
def test_clouds_of_a_mixture_lie_apart_at_the_radius(k: int, dim: int) -> None:
    middles = GaussianMixture(components=k, dim=dim, radius=2.0).middles()
    assert middles.shape == (k, dim)
    if dim > 1:
        assert torch.allclose(middles.norm(dim=1), middles.new_tensor(2.0))
    gaps = torch.cdist(middles, middles) + 9 * torch.eye(k)
    assert gaps.min() > 0.3
    if 2 < k <= dim + 1:  # a regular simplex
        assert torch.allclose(gaps[gaps < 9], gaps.min())


def test_a_mixture_keeps_its_shares() -> None:
    label = drawn(GaussianMixture(weights="1,0,3"), 8000).label
    share = torch.bincount(label, minlength=3) / 8000  # type: ignore[arg-type]
    assert share.tolist() == pytest.approx([0.25, 0, 0.75], abs=0.025)  # five standard errors
    assert share[1] == 0


@pytest.mark.parametrize("text", ["1,2", "1,2,x", "1,-1,3", "0,0,0", "1,nan,1", "inf,1,1", ",,"])
def test_shares_that_are_no_shares_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="GaussianMixture: weights must be 3 numbers") as caught:
        GaussianMixture(weights=text)
    assert "\n" not in str(caught.value)


def test_quadrature_of_a_curve_agrees_with_a_much_finer_one() -> None:
    node = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for shape, arms in ((TwoMoons(noise=0.05), "_upper"), (SwissRoll(noise=0.05), "_roll")):
        cloud = drawn(shape, 30)
        x = cloud.x.double()
        ways = [getattr(shape, arms)(node)]
        if isinstance(shape, TwoMoons):
            ways.append(-ways[0])
        bells = [torch.exp(-(torch.cdist(x, way) ** 2) / (2 * 0.05**2)).mean(1) for way in ways]
        exact = torch.stack(bells).mean(0) / (2 * math.pi * 0.05**2)
        # 1e-6 is what the docstrings promise.
        assert (cloud.log_prob(x).exp() / exact - 1).abs().max() < 1e-6  # type: ignore[misc]


@given(st.integers(1, 6), st.floats(0.1, 4))
@settings(max_examples=20, deadline=None)
def test_arms_of_a_spiral_turn_evenly_with_the_radius(arms: int, turns: float) -> None:
    cloud = drawn(Spiral(arms=arms, turns=turns, radius=2.0, noise=0.0), 300)
    x, arm = cloud.x.double(), cloud.label
    turn = torch.atan2(x[:, 1], x[:, 0]) / (2 * math.pi) - turns * x.norm(dim=1) / 2 - arm / arms
    assert (turn - turn.round()).abs().max() < 1e-5  # float32 at up to 4 turns


def test_a_swiss_roll_grows_by_the_same_step_each_turn() -> None:
    x = drawn(SwissRoll(dims="3", radius=4.5, height=2.0, noise=0.0), 500).x.double()
    turn = torch.atan2(x[:, 2], x[:, 0]) / (2 * math.pi) - x[:, [0, 2]].norm(dim=1) / 2  # r = t / pi here
    assert (turn - turn.round()).abs().max() < 1e-5
    assert x[:, 1].abs().max() <= 1.0
    assert 1.5 <= x[:, [0, 2]].norm(dim=1).min() < x[:, [0, 2]].norm(dim=1).max() <= 4.5001


def test_moons_are_half_turns_of_each_other_and_reach_into_each_other() -> None:
    cloud = drawn(TwoMoons(radius=1.0, noise=0.0), 1000)
    upper, lower = cloud.x[cloud.label == 0], -cloud.x[cloud.label == 1]
    for moon in (upper, lower):
        around = moon - torch.tensor([-0.5, -0.25])
        assert (around.norm(dim=1) - 1).abs().max() < 1e-6
        assert around[:, 1].min() >= -1e-6
    assert upper[:, 0].max() > -lower[:, 0].max() + 0.5


def test_gauss_legendre_is_exact_for_polynomials() -> None:
    node, weight = gauss_legendre(8)
    for power in range(16):
        assert float((weight * node**power).sum()) == pytest.approx(1 / (power + 1), abs=1e-13)


@pytest.mark.parametrize(
    "shape", [Ring(noise=0.0), TwoMoons(noise=0.0), Spiral(noise=0.0), SwissRoll(noise=0.0), Drawn(noise=0.0)], ids=repr
)
def test_a_law_on_a_line_has_no_density(shape: object) -> None:
    cloud = drawn(shape, 10)
    assert cloud.score is None
    assert cloud.log_prob is None


@pytest.mark.parametrize("shape", FLAT, ids=repr)
def test_a_flat_law_offers_no_score(shape: object) -> None:
    cloud = drawn(shape, 10)
    assert cloud.score is None
    assert cloud.log_prob is not None


def test_a_ring_far_away_pulls_straight_back() -> None:
    score = drawn(Ring(radius=2.0, noise=0.1), 1).score
    x = torch.tensor([[1000.0, 0.0], [0.0, 0.0], [1e-6, 0.0]], dtype=torch.float64)
    got = score(x)  # type: ignore[misc]
    # A flat wall at R: (R - r) / s^2, less the 1 / 2r of the curved one.
    assert got[0, 0] == pytest.approx((2 - 1000) / 0.01 - 0.5 / 1000, rel=1e-9)
    assert got[1].abs().max() == 0


def test_a_square_far_outside_keeps_its_digits() -> None:
    score = drawn(UniformSquare(side=2.0, noise=0.1), 1).score
    x = torch.tensor([[30.0, 0.0]], dtype=torch.float64)
    # The tail of a Gaussian beyond the edge: -(x - 1) / s^2 - 1 / (x - 1).
    assert score(x)[0, 0] == pytest.approx(-29 / 0.01 - 1 / 29, rel=1e-6)  # type: ignore[misc]


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_a_ball_is_filled_evenly(dim: int) -> None:
    r = drawn(UniformDisc(radius=2.0, dim=dim), 20_000).x.double().norm(dim=1)
    share = (r / 2) ** dim  # uniform on [0, 1]
    at = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    assert (torch.quantile(share, at) - at).abs().max() < 5 * 0.5 / math.sqrt(20_000)


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 512])
def test_a_sphere_has_one_radius_and_no_favourite_way(dim: int) -> None:
    x = drawn(UniformSphere(radius=2.0, dim=dim), 4000).x.double()
    assert (x.norm(dim=1) - 2).abs().max() < 1e-5
    assert x.mean(0).norm() < 5 * 2 / math.sqrt(4000)


def test_letters_tell_where_they_are() -> None:
    cloud = drawn(Letters(text="AV"), 4000)
    left, right = (cloud.x[cloud.label == k, 0] for k in (0, 1))
    assert left.mean() < 0 < right.mean()
    assert cloud.x.abs().max() <= 2.5 + 1e-5


@pytest.mark.parametrize("text", ["", "   ", "a\nb", "\u200b"])
def test_a_word_without_letters_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="Letters: ") as caught:
        drawn(Letters(text=text), 5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["é", "語", "🙂", "e\u0301", "م", "A" * 50])
def test_any_sign_is_drawn_somehow(text: str) -> None:
    assert drawn(Letters(text=text), 50).x.isfinite().all()


# ---- drawn by hand


@given(st.lists(st.tuples(st.floats(-32, 32), st.floats(-32, 32)), min_size=1, max_size=200))
@settings(max_examples=50, deadline=None)
def test_drawn_points_come_back_to_half_a_thousandth(points: list[tuple[float, float]]) -> None:
    text = encode(points)
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    back = decode(text)
    assert (back - torch.tensor(points, dtype=torch.float64)).abs().max() <= 0.5e-3 + 1e-12
    assert encode(back) == text


def test_five_thousand_drawn_points_fit_and_one_more_does_not() -> None:
    points = seeded_normal(MOST_POINTS + 1, 2)
    assert drawn(Drawn(points=encode(points[:-1])), 10).x.shape == (10, 2)
    with pytest.raises(ValueError, match="at most 5,000, got 5,001"):
        encode(points)


@pytest.mark.parametrize("text", ["", "AB", "AAAAA", "1,2,3", "a,b", "99,0", "nan,1", "é", "!!!!", ";,;", "AAAA BBBB"])
def test_text_that_is_no_drawing_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="Drawn: points must") as caught:
        Drawn(points=text)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 60), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_drawn_points_are_dealt_out_evenly(k: int, n: int) -> None:
    points = torch.stack([torch.arange(k) / 2, torch.zeros(k)], 1)
    x = drawn(Drawn(points=encode(points), noise=0.0), n).x
    count = torch.bincount((x[:, 0] * 2).round().long(), minlength=k)
    assert count.max() - count.min() <= 1
