"""Measures that only judge: neighbours, balls, clusters; known values, null values, and what they are blind to."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import tensor
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._clusters import histograms, kl
from dmviz.losses._neighbours import neighbours
from dmviz.losses.frontier_integral import FrontierIntegral
from dmviz.losses.knn_kl import KnnKl
from dmviz.losses.mauve import Mauve
from dmviz.losses.precision_recall import PrecisionRecall

KNOWN = json.loads((Path(__file__).parent / "known" / "evaluation.json").read_text())
RNG = seeded(0)
MEASURES = ["precision", "recall", "density", "coverage"]


def agrees(got: float, case: dict) -> bool:
    return abs(got - case["value"]) <= case["tolerance"] * max(1.0, abs(case["value"]))


def normal(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("d", [2, 14])
@pytest.mark.parametrize("own", [False, True])
def test_neighbours_are_those_of_a_table(d: int, own: bool) -> None:
    x, y = normal(700, d, 1), normal(500, d, 2)
    x[1] = x[0]
    table = torch.cdist(x, x if own else y, compute_mode="donot_use_mm_for_euclid_dist")
    if own:
        table.fill_diagonal_(math.inf)
    distance, index = neighbours(x, x if own else y, 4, own)
    torch.testing.assert_close(distance, table.topk(4, 1, largest=False).values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(table.gather(1, index), distance, rtol=1e-12, atol=1e-12)
    if own:
        assert not (index == torch.arange(700)[:, None]).any()


def test_many_copies_of_a_point_are_each_others_neighbours() -> None:
    x = torch.zeros(6, 2, dtype=torch.float64)
    distance, index = neighbours(x, x, 2, own=True)
    assert distance.abs().max() == 0
    assert not (index == torch.arange(6)[:, None]).any()


@pytest.mark.parametrize("case", ["knn_kl_k1", "knn_kl_k2"])
def test_known_kl_by_neighbours(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x, y = tensor(inputs["X"]), tensor(inputs["Y"])
    assert agrees(KnnKl(inputs["k"])(x, Cloud(y), RNG).item(), KNOWN[case])
    assert agrees(KnnKl(inputs["k"], "kl")(y, Cloud(x), RNG).item(), KNOWN[case])


def test_kl_by_neighbours_comes_near_that_of_gaussians() -> None:
    x, y = normal(6000, 2, 1), 1.5 * normal(6000, 2, 2) + tensor([1.0, 0.0])
    exact = 0.5 * (2 / 2.25 + 1 / 2.25 - 2 + 2 * math.log(2.25))
    assert KnnKl(5)(x, Cloud(y), RNG).item() == pytest.approx(exact, abs=0.05)


def test_weights_and_copies_of_points_say_the_same() -> None:
    """Targets drawn twice as often on one half: the weighted estimate is that of the law, not of the points."""
    x, y = normal(4000, 1, 1), normal(4000, 1, 2)
    b = torch.where(y[:, 0] > 0, 1.5, 0.5) / 4000
    weighted = KnnKl(5)(x, Cloud(y, b / b.sum()), RNG).item()
    exact = -0.5 * (math.log(1.5) + math.log(0.5))
    assert weighted == pytest.approx(exact, abs=0.05)
    a = torch.cat([torch.full((4000,), 1 / 4000).double(), torch.zeros(50)])
    more = torch.cat([x, normal(50, 1, 3)])
    assert KnnKl(5)(more, Cloud(y), RNG, a).item() == pytest.approx(KnnKl(5)(x, Cloud(y), RNG).item(), abs=1e-9)


def test_copies_give_a_finite_number_and_one_particle_none() -> None:
    x = normal(30, 2, 1)
    same = KnnKl(1)(x, Cloud(x), RNG)
    assert torch.isfinite(same) and same < -20
    twice = KnnKl(1)(torch.cat([x, x]), Cloud(normal(30, 2, 2)), RNG)
    assert torch.isfinite(twice) and twice > 20
    assert KnnKl()(x[:1], Cloud(x), RNG).item() == 0
    assert KnnKl()(x * math.inf, Cloud(x), RNG).isnan()


@pytest.mark.parametrize(
    ("measure", "value"), [("precision", 0.8), ("recall", 1.0), ("density", 1.3), ("coverage", 1.0)]
)
def test_known_precision_recall_density_coverage(measure: str, value: float) -> None:
    case = KNOWN["prdc_density"]
    real, generated = tensor(case["inputs"]["real"]), tensor(case["inputs"]["fake"])
    loss = PrecisionRecall(measure, case["inputs"]["k"])
    assert loss.measure_of(generated, Cloud(real)).item() == pytest.approx(value, abs=1e-12)
    assert loss(generated, Cloud(real), RNG).item() == pytest.approx(1 - value, abs=1e-12)
    if measure == "density":
        assert agrees(loss.measure_of(generated, Cloud(real)).item(), case)


@pytest.mark.parametrize("case", ["coverage_expect", "coverage_expect_10k_k5"])
def test_known_null_of_coverage(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    assert agrees(PrecisionRecall("coverage", inputs["k"]).null(inputs["N"], inputs["M"]), KNOWN[case])


@pytest.mark.parametrize("measure", ["density", "coverage"])
def test_null_values_are_met_on_average(measure: str) -> None:
    loss, rounds = PrecisionRecall(measure, 3), 400
    got = torch.stack([loss.measure_of(normal(15, 2, 2 * s), Cloud(normal(20, 2, 2 * s + 1))) for s in range(rounds)])
    assert got.mean().item() == pytest.approx(loss.null(20, 15), abs=4 * float(got.std()) / math.sqrt(rounds))
    assert math.isnan(PrecisionRecall("recall").null(20, 15))


@pytest.mark.parametrize("measure", MEASURES)
def test_balls_are_those_of_a_table(measure: str) -> None:
    x, y, k = normal(600, 3, 1) * 0.7, normal(450, 3, 2), 4
    between = torch.cdist(y, x)
    own = [torch.cdist(z, z).fill_diagonal_(math.inf).topk(k, 1, largest=False).values[:, -1] for z in (y, x)]
    want = {
        "precision": (between < own[0][:, None]).any(0).double().mean(),
        "density": (between < own[0][:, None]).sum(0).double().mean() / k,
        "recall": (between < own[1]).any(1).double().mean(),
        "coverage": (between.amin(1) < own[0]).double().mean(),
    }[measure]
    assert PrecisionRecall(measure, k).measure_of(x, Cloud(y)).item() == pytest.approx(want.item(), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_lost_mode_costs_recall_and_coverage_and_not_precision(measure: str) -> None:
    y = torch.cat([normal(100, 2, 1), normal(100, 2, 2) + 20])
    value = PrecisionRecall(measure)(normal(100, 2, 3), Cloud(y), RNG).item()
    assert value > 0.45 if measure in ("recall", "coverage") else value < 0.2


@pytest.mark.parametrize("measure", MEASURES)
def test_points_without_weight_are_not_there(measure: str) -> None:
    x, y = normal(30, 2, 1), normal(25, 2, 2)
    a, b = (torch.cat([torch.full((n,), 1 / n).double(), torch.zeros(4)]) for n in (30, 25))
    loss = PrecisionRecall(measure)
    more = loss.measure_of(torch.cat([x, y[:4]]), Cloud(torch.cat([y, x[:4]]), b), a)
    assert more.item() == pytest.approx(loss.measure_of(x, Cloud(y)).item(), abs=1e-12)


@pytest.mark.parametrize("case", ["mauve_0", "mauve_1", "mauve_2", "mauve_equal"])
def test_known_mauve(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    p, q = tensor(inputs["p"]), tensor(inputs["q"])
    assert agrees(Mauve(scaling=inputs.get("c", 5.0)).score(p, q).item(), KNOWN[case])
    assert agrees(Mauve(scaling=inputs.get("c", 5.0)).score(q, p).item(), KNOWN[case])


@pytest.mark.parametrize("case", ["frontier_integral_0", "frontier_integral_1"])
def test_known_frontier_integral(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    assert agrees(FrontierIntegral().of(tensor(inputs["p"]), tensor(inputs["q"])).item(), KNOWN[case])


def test_frontier_integral_with_empty_clusters_and_by_quadrature() -> None:
    of = FrontierIntegral().of
    assert of(tensor([0.5, 0.5, 0.0]), tensor([0.0, 0.5, 0.5])).item() == pytest.approx(0.5)
    assert of(tensor([1.0, 0.0]), tensor([0.0, 1.0])).item() == pytest.approx(1.0)
    p = torch.softmax(normal(1, 9, 1)[0], 0)
    for q in (torch.softmax(normal(1, 9, 2)[0], 0), p * (1 + 1e-5 * normal(1, 9, 3)[0])):
        q = q / q.sum()
        w = torch.linspace(0, 1, 20001, dtype=torch.float64)[:, None]
        r = w * p + (1 - w) * q
        want = 2 * torch.trapezoid(w[:, 0] * kl(p, r) + (1 - w[:, 0]) * kl(q, r), w[:, 0])
        assert of(p, q).item() == pytest.approx(want.item(), rel=1e-5, abs=1e-14)


def test_curve_runs_from_corner_to_corner_and_disjoint_laws_reach_its_least_area() -> None:
    loss, p, q = Mauve(), tensor([0.2, 0.3, 0.5]), tensor([0.4, 0.4, 0.2])
    curve = loss.curve(p, q)
    assert curve[0].tolist() == [1.0, 0.0] and curve[-1].tolist() == [0.0, 1.0]
    assert (curve[1:, 0].diff() <= 1e-12).all() and (curve[:-1, 1].diff() >= -1e-12).all()
    assert loss.score(tensor([1.0, 0.0]), tensor([0.0, 1.0])).item() == pytest.approx(0.0040720963, abs=1e-9)


def test_clusters_of_two_blobs_are_the_blobs() -> None:
    x = torch.cat([normal(30, 2, 1), normal(10, 2, 2) + 50])
    y = torch.cat([normal(10, 2, 3), normal(10, 2, 4) + 50])
    found = histograms(x, Cloud(y), None, seeded(1), 2, "raw", False)
    assert sorted(found.q.tolist()) == pytest.approx([0.25, 0.75])
    assert found.p.tolist() == pytest.approx([0.5, 0.5])
    starred = histograms(x, Cloud(y), None, seeded(1), 2, "raw", True)
    assert sorted(starred.q.tolist()) == pytest.approx([10.5 / 41, 30.5 / 41])
    weighted = histograms(x, Cloud(y), torch.cat([torch.zeros(30), torch.full((10,), 0.1)]), seeded(1), 2, "raw", False)
    assert sorted(weighted.q.tolist()) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("loss", [Mauve(), FrontierIntegral()])
def test_clusters_tell_near_from_far(loss: Mauve | FrontierIntegral) -> None:
    y = normal(800, 2, 1)
    near, far = (loss(normal(800, 2, 2) + shift, Cloud(y), seeded(3)).item() for shift in (0.2, 2.0))
    assert 0 <= near < 0.2 * far <= 1
    assert loss(y, Cloud(y), seeded(3)).item() == pytest.approx(0.0, abs=1e-12)
    assert loss(y * math.nan, Cloud(y), seeded(3)).isnan()


def test_the_released_space_forgets_the_radius_and_raw_does_not() -> None:
    angle = torch.linspace(0, 2 * math.pi, 301, dtype=torch.float64)[:-1]
    ring = torch.stack([angle.cos(), angle.sin()], 1)
    released, auto = (
        Mauve(space=s, clusters=10)(3 * ring, Cloud(ring), seeded(1)).item() for s in ("released", "auto")
    )
    assert released < 0.05 < 0.9 < auto
