"""Similarity calibration: known goals and value, ranks of the originals, turning pulls, odd and uneven clouds."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses.similarity_calibration import SimilarityCalibration, similarity_goals

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)


def at_cosines(cosines: list[float]) -> torch.Tensor:
    """Rows whose first half is the x axis and whose second half has these cosines with it."""
    first = tensor([[1.0, 0.0]] * len(cosines))
    second = tensor([[c, math.sqrt(1 - c * c)] for c in cosines])
    return torch.cat((first, second))


def test_goals_are_the_quantiles_of_a_beta_law() -> None:
    case = KNOWN["sdc_targets_beta22_n4"]
    n, shape = case["inputs"]["n_pairs"], case["inputs"]["beta_ab"]
    goals = similarity_goals(torch.arange(n).double(), torch.full((n,), 1 / n).double(), shape, shape)
    assert torch.allclose(goals, tensor(case["value"]), rtol=0, atol=case["tolerance"])


def test_pairs_are_ranked_by_their_originals() -> None:
    case = KNOWN["sdc_loss_uniform_n4"]
    codes, originals = at_cosines(case["inputs"]["hash_cos"]), at_cosines(case["inputs"]["orig_cos"])
    loss = SimilarityCalibration(compare=case["inputs"]["rec_type"], alpha=1.0, beta=1.0)
    assert loss(codes, Cloud(originals), RNG).item() == pytest.approx(case["value"], abs=case["tolerance"])


def test_without_negative_goals_none_is_below_a_right_angle() -> None:
    goals = similarity_goals(torch.arange(4).double(), torch.full((4,), 0.25).double(), 1.0, 1.0, orthogonal=True)
    assert goals.tolist() == [0.0, 0.0, 0.25, 0.75]


@pytest.mark.parametrize("quantization", [0.0, 0.7])
@pytest.mark.parametrize("compare", ["l1", "l2"])
def test_velocity_is_minus_the_finite_difference_over_weight(compare: str, quantization: float) -> None:
    x, a, target = clouds(9, 8, 3)
    loss, h = SimilarityCalibration(compare=compare, quantization=quantization), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(9):
        for d in range(3):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), rel=1e-5, abs=1e-6)


def test_a_code_turns_and_keeps_its_length() -> None:
    x, a, target = clouds(20, 20, 3)
    v = velocity_of(SimilarityCalibration(quantization=1.0), x, target, RNG, a).v
    assert (v * x).sum(1).abs().max().item() < 1e-13


def test_rows_without_a_partner_feel_nothing() -> None:
    x, _, target = clouds(9, 5, 2)
    v = velocity_of(SimilarityCalibration(), x, target, RNG).v
    assert (v[:4].abs().sum(1) > 0).all()  # rows 0 to 3 are the two pairs of the four originals that have partners
    assert v[4:].abs().max().item() == 0.0
    alone = velocity_of(SimilarityCalibration(), x[:1], target, RNG)
    assert alone.value.item() == 0.0 and alone.v.abs().max().item() == 0.0


def test_a_row_at_the_origin_has_no_direction_and_no_pull() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, -1.0], [0.0, 0.0]], requires_grad=True)
    loss = SimilarityCalibration(alpha=2.0, beta=3.0)
    (grad,) = torch.autograd.grad(loss(x, Cloud(torch.randn(4, 2, generator=seeded(1))), RNG), x)
    assert torch.isfinite(grad).all()
    v = velocity_of(loss, x.detach(), Cloud(torch.randn(4, 2, generator=seeded(1))), RNG).v
    assert v[0].tolist() == [0.0, 0.0] and v[3].tolist() == [0.0, 0.0]


def test_codes_at_the_corners_of_a_cube_cost_no_quantization() -> None:
    x = tensor([[1.0, 1.0], [-2.0, 2.0]])
    free, asked = (SimilarityCalibration(quantization=q)(x, Cloud(x), RNG).item() for q in (0.0, 5.0))
    assert asked == pytest.approx(free, abs=1e-14)


def test_the_flow_gives_every_pair_its_similarity() -> None:
    rng = seeded(3)
    x, y = (
        torch.randn(40, 3, generator=rng, dtype=torch.float64),
        torch.randn(40, 3, generator=rng, dtype=torch.float64),
    )
    loss, target = SimilarityCalibration(compare="l2"), Cloud(y)
    for _ in range(200):
        x = torch.nn.functional.normalize(x + 0.2 * velocity_of(loss, x, target, RNG).v, dim=1)
    assert loss(x, target, RNG).item() < 1e-6
