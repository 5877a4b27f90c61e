"""Categorical projection: known shares, the closest law on the atoms, both comparisons and their pulls."""

import json
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, tensor
from scipy.special import rel_entr

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses._bins import Bins
from dmviz.losses.categorical_projection import CategoricalProjection, projection
from dmviz.losses.cramer import Cramer, merged

KNOWN = json.loads((Path(__file__).parent / "known" / "order.json").read_text())
RNG = seeded(0)
ATOMS = Bins.around(tensor([0.0]), tensor([2.0]), 5)


def projected(inputs: dict) -> torch.Tensor:
    assert inputs["atoms"] == [-2.0, -1.0, 0.0, 1.0, 2.0]
    return projection(tensor(inputs["x"])[:, None], tensor(inputs["w"]), ATOMS)[0]


def test_points_are_split_between_atoms_and_held_at_the_outer_ones() -> None:
    wanted = tensor(KNOWN["c51_projection"]["value"])
    assert torch.allclose(
        projected(KNOWN["c51_projection"]["inputs"]), wanted, rtol=0, atol=KNOWN["c51_projection"]["tolerance"]
    )


def test_what_the_projection_loses_is_a_known_cramer_distance() -> None:
    case = KNOWN["cramer_dist_sq"]
    x, atoms = tensor(case["inputs"]["x"]).clamp(-2, 2)[None], tensor(case["inputs"]["atoms"])[None]
    lost = merged(x, tensor(case["inputs"]["w"]), atoms, projected(case["inputs"])).value
    assert abs(lost.item() - case["value"]) <= case["tolerance"]


def test_no_other_law_on_the_atoms_is_closer() -> None:
    inputs = KNOWN["c51_projection"]["inputs"]
    x, w, atoms = tensor(inputs["x"]).clamp(-2, 2)[None], tensor(inputs["w"]), tensor(inputs["atoms"])[None]
    best, p = merged(x, w, atoms, projected(inputs)).value.item(), projected(inputs)
    for k in range(4):
        for move in (-0.01, 0.01):
            other = p.clone()
            other[k] += move
            other[k + 1] -= move
            assert merged(x, w, atoms, other).value.item() > best


def test_the_cramer_comparison_is_the_cramer_distance_of_the_projections() -> None:
    x, a, target = clouds(20, 15, 1)
    loss = CategoricalProjection(atoms=9, reach=3.0)
    bins, atoms = loss._bins(x), torch.linspace(-3, 3, 9).double()[:, None]
    p, q = projection(x, a, bins)[0], projection(target.x, target.weight, bins)[0]
    wanted = Cramer()(atoms, Cloud(atoms, q), RNG, p).item()
    assert loss(x, target, RNG, a).item() == pytest.approx(wanted, rel=1e-12)


def test_many_atoms_come_to_the_cramer_distance_itself() -> None:
    x, a, target = clouds(20, 15, 2)
    exact = Cramer()(x, target, RNG, a).item()
    errors = [abs(CategoricalProjection(atoms=k)(x, target, RNG, a).item() - exact) for k in (33, 512)]
    assert errors[1] < 0.1 * errors[0]
    assert errors[1] < 1e-2 * exact


def test_cross_entropy_is_less_the_target_s_entropy() -> None:
    loss = CategoricalProjection(atoms=3, reach=1.0, compare="cross_entropy")
    x, target = tensor([[-0.5], [0.5]]), Cloud(tensor([[-1.0], [0.0], [0.5]]))
    p, q = [0.25, 0.5, 0.25], [1 / 3, 0.5, 1 / 6]
    assert loss(x, target, RNG).item() == pytest.approx(sum(map(rel_entr, q, p)), rel=1e-4)  # the floor


@pytest.mark.parametrize("compare", ["cramer", "cross_entropy"])
def test_velocity_is_minus_the_finite_difference_over_weight(compare: str) -> None:
    x, a, target = clouds(7, 6, 2)
    loss, h = CategoricalProjection(atoms=9, reach=5.0, compare=compare), 1e-6
    v = velocity_of(loss, x, target, RNG, a).v
    for i in range(7):
        for d in range(2):
            step = torch.zeros_like(x)
            step[i, d] = h
            slope = (loss(x + step, target, RNG, a) - loss(x - step, target, RNG, a)) / (2 * h)
            assert v[i, d].item() == pytest.approx(-slope.item() / a[i].item(), rel=1e-5, abs=1e-6)


def test_beyond_the_outer_atoms_there_is_no_pull() -> None:
    x = torch.tensor([[-9.0], [0.3]])
    v = velocity_of(CategoricalProjection(), x, Cloud(torch.tensor([[1.0]])), RNG).v
    assert v[0].item() == 0.0
    assert v[1].item() > 0.0
