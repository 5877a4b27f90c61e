"""Soft histograms and their KL: known values, mass that is kept, slopes, the outer centres."""

import json
from pathlib import Path

import pytest
import torch
from pair_cases import clouds

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._bins import Bins, floored, histogram, kl, normalised
from dmviz.losses.soft_histogram_kl import SoftHistogramKl

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)
BUMPS = ["gaussian", "triangular", "sigmoid"]


def column(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def on_centres(centres: list[float]) -> Bins:
    low, high = column(centres[:1])[0], column(centres[-1:])[0]
    return Bins.around(0.5 * (low + high), 0.5 * (high - low), len(centres))


@pytest.mark.parametrize(("case", "bump"), [("softhist_sigmoid", "sigmoid"), ("softhist_tri", "triangular")])
def test_a_histogram_has_its_known_shares(case: str, bump: str) -> None:
    inputs = KNOWN[case]["inputs"]
    h = histogram(column(inputs["x"]), column(inputs["a"])[:, 0], on_centres(inputs["centres"]), bump, inputs["bw"])
    wanted = torch.tensor(KNOWN[case]["value"], dtype=torch.float64)
    assert torch.allclose(normalised(h)[0], wanted, rtol=0, atol=KNOWN[case]["tolerance"])


@pytest.mark.parametrize(
    ("case", "bump"),
    [("softhist_kl_gauss", "gaussian"), ("softhist_kl_sigmoid", "sigmoid"), ("softhist_kl_tri", "triangular")],
)
def test_kl_of_two_histograms_has_its_known_value(case: str, bump: str) -> None:
    inputs, wanted = KNOWN[case]["inputs"], KNOWN[case]
    # The loss has its bins about 0: the same problem, moved by the middle centre.
    x, y = column(inputs["x"]) - 2.0, column(inputs["y"]) - 2.0
    loss = SoftHistogramKl(bump=bump, bins=5, reach=2.0, softness=inputs["bw"])
    got = loss(x, Cloud(y, column(inputs["b"])[:, 0]), RNG, column(inputs["a"])[:, 0]).item()
    assert abs(got - wanted["value"]) <= wanted["tolerance"] * max(1.0, abs(wanted["value"]))


@pytest.mark.parametrize("bump", BUMPS)
def test_every_point_shares_out_its_whole_mass_but_for_soft_edges(bump: str) -> None:
    x, a, _ = clouds(40, 30, 3)
    bins = Bins.around(torch.zeros(3).double(), torch.full((3,), 6.0).double(), 64)
    total = histogram(x, a, bins, bump, 0.5).sum(1)
    assert torch.allclose(total, torch.ones(3).double(), atol=1e-12)


@pytest.mark.parametrize("bump", ["triangular", "gaussian"])
def test_the_mean_of_a_histogram_is_the_mean_of_the_points(bump: str) -> None:
    x, a, _ = clouds(40, 30, 1)
    bins = Bins.around(torch.zeros(1).double(), torch.full((1,), 8.0).double(), 65)
    h = histogram(x, a, bins, bump, 2.0)
    centres = torch.linspace(-8, 8, 65).double()
    # A discrete bell of two bin widths is even about its point up to exp(-2 pi^2 4).
    assert torch.allclose(h[0] @ centres, a @ x[:, 0], atol=1e-12)


@pytest.mark.parametrize("direction", ["reverse", "forward", "both"])
@pytest.mark.parametrize("bump", BUMPS)
def test_velocity_is_minus_the_finite_difference_over_weight(bump: str, direction: str) -> None:
    x, a, target = clouds(7, 6, 2)
    loss = SoftHistogramKl(bump=bump, direction=direction, bins=9, softness=0.7)
    v = velocity_of(loss, x, target, RNG, a).v
    h = 1e-6
    for i in range(7):
        for d in range(2):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), rel=2e-6, abs=1e-7)


@pytest.mark.parametrize("bump", BUMPS)
def test_tiles_of_rows_say_what_one_table_says(bump: str) -> None:
    x = torch.randn(5000, 3, generator=seeded(1), dtype=torch.float64)
    loss, target = SoftHistogramKl(bump=bump, bins=64), Cloud(x[:800] * 0.5 + 0.3)
    closed, auto = velocity_of(loss, x, target, RNG), autograd_velocity(loss, x, target, RNG)
    assert torch.allclose(closed.v, auto.v, atol=1e-10)
    bins = Bins.around(torch.zeros(3).double(), torch.full((3,), 4.0).double(), 64)
    halves = [histogram(part, torch.full((2500,), 1 / 5000).double(), bins, bump) for part in (x[:2500], x[2500:])]
    whole = histogram(x, torch.full((5000,), 1 / 5000).double(), bins, bump)
    assert torch.allclose(whole, halves[0] + halves[1], atol=1e-14)


def test_both_is_the_mean_of_the_two_directions() -> None:
    x, a, target = clouds(20, 15, 2)
    one, other, both = (SoftHistogramKl(direction=w)(x, target, RNG, a) for w in ("reverse", "forward", "both"))
    assert both.item() == pytest.approx(0.5 * (one.item() + other.item()), rel=1e-14)
    assert one.item() != pytest.approx(other.item(), rel=1e-3)


def test_beyond_the_outer_centre_there_is_no_pull_but_the_mass_counts() -> None:
    x, target = torch.tensor([[0.1], [7.0]]), Cloud(torch.tensor([[0.0], [4.0]]))
    answer = velocity_of(SoftHistogramKl(bump="triangular", reach=4.0), x, target, RNG)
    assert answer.v[1].item() == 0.0
    held = SoftHistogramKl(bump="triangular", reach=4.0)(torch.tensor([[0.1], [4.0]]), target, RNG)
    assert answer.value.item() == held.item()


def test_a_far_source_meets_bins_of_the_target_s_own_range() -> None:
    x, a, target = clouds(30, 20, 2)
    loss = SoftHistogramKl(span="target", widen=1.0)
    bins, _ = loss._there(target)
    assert torch.allclose(bins.first, target.x.amin(0))
    assert torch.allclose(bins.first + 31 * bins.width, target.x.amax(0))
    alone = velocity_of(loss, x, Cloud(torch.zeros(3, 2, dtype=torch.float64)), RNG, a)
    assert torch.isfinite(alone.v).all()


def test_the_flow_brings_the_histograms_together() -> None:
    x = torch.randn(200, 1, generator=seeded(1), dtype=torch.float64) * 0.4 - 1.0
    target = Cloud(torch.randn(200, 1, generator=seeded(2), dtype=torch.float64) * 0.7 + 0.5)
    loss = SoftHistogramKl(softness=3.0, direction="both")
    first = loss(x, target, RNG).item()
    for _ in range(200):
        x = x + 0.02 * velocity_of(loss, x, target, RNG).v
    assert loss(x, target, RNG).item() < 0.05 * first


def test_the_floor_keeps_an_empty_bin_finite() -> None:
    p = floored(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    q = floored(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert kl(p, q).item() == pytest.approx(13.8155, abs=1e-3)  # log(1e6)
