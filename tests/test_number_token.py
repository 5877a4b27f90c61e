"""Number-token loss: known values, uneven gaps, the per-row loss that it is for one row, and its pull."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, tensor
from scipy.stats import wasserstein_distance

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses.number_token import NumberToken, mean_gap_squared, mean_law, ordinal_w1

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)


def digit(inputs: dict) -> tuple[torch.Tensor, Cloud]:
    """One row of logits, and a row whose softmax is the label to all digits."""
    logits = tensor([inputs["logits"]])
    label = torch.full_like(logits, -1e3)
    label[0, inputs["target"]] = 0.0
    return logits, Cloud(label)


@pytest.mark.parametrize(("case", "compare"), [("ntl_was", "wasserstein"), ("ntl_mse", "mean")])
def test_one_row_against_a_label_is_the_token_loss(case: str, compare: str) -> None:
    x, target = digit(KNOWN[case]["inputs"])
    assert agrees(NumberToken(compare=compare)(x, target, RNG).item(), KNOWN[case])


def test_gaps_between_uneven_values_count() -> None:
    inputs = KNOWN["ntl_was_uneven"]["inputs"]
    got = ordinal_w1(tensor(inputs["p"]), tensor(inputs["target"]), tensor(inputs["values"]))
    assert agrees(got.item(), KNOWN["ntl_was_uneven"])
    even = ordinal_w1(tensor(inputs["p"]), tensor(inputs["target"]), tensor([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert even.item() == pytest.approx(0.65)


def test_it_is_w1_between_the_mean_laws() -> None:
    x, a, target = clouds(20, 15, 6)
    loss = NumberToken(gap=0.5, growth=1.5)
    values = loss.values(x)
    p, q = mean_law(x, a), mean_law(target.x, target.mass())
    assert loss(x, target, RNG, a).item() == pytest.approx(wasserstein_distance(values, values, p, q), rel=1e-12)


def test_growth_sets_each_gap_from_the_one_before() -> None:
    assert NumberToken(gap=0.5, growth=2.0).values(torch.zeros(1, 4)).tolist() == [0.0, 0.5, 1.5, 3.5]


def test_a_wrong_law_of_the_right_mean_fools_the_mean_alone() -> None:
    middle, ends = tensor([0.0, 1.0, 0.0]), tensor([0.5, 0.0, 0.5])
    values = tensor([0.0, 1.0, 2.0])
    assert mean_gap_squared(middle, ends, values).item() == 0.0
    assert ordinal_w1(middle, ends, values).item() == 1.0


@pytest.mark.parametrize("compare", ["wasserstein", "mean"])
def test_velocity_is_minus_the_finite_difference_over_weight(compare: str) -> None:
    x, a, target = clouds(6, 5, 4)
    loss, h = NumberToken(compare=compare, growth=1.3), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(6):
        for d in range(4):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), abs=1e-7)


def test_a_pull_never_changes_the_sum_of_a_row_nor_anything_on_a_common_shift() -> None:
    x, a, target = clouds(20, 15, 5)
    answer = velocity_of(NumberToken(), x, target, RNG, a)
    assert answer.v.sum(1).abs().max().item() < 1e-14
    moved = velocity_of(NumberToken(), x + 7.0, target, RNG, a)
    assert torch.allclose(answer.v, moved.v, atol=1e-12)


def test_saturated_rows_stay_finite() -> None:
    x = torch.tensor([[1e30, -1e30], [0.0, 0.0]])
    answer = velocity_of(NumberToken(), x, Cloud(torch.zeros(1, 2)), RNG)
    assert torch.isfinite(answer.v).all()
    assert math.isclose(answer.value.item(), 0.25)
