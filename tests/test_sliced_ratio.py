"""Sliced Wasserstein ratio: 1 for real data, the mean over feature spaces, equal sizes, and degenerate targets."""

import pytest
import torch
from pair_cases import tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import drives
from dmviz.losses.sliced_ratio import CAP, SlicedRatio, sw_ratio

RNG = seeded(0)


def normal(n: int, seed: int, d: int = 2) -> torch.Tensor:
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def test_real_data_score_about_one() -> None:
    target = Cloud(normal(2000, 1))
    scores = tensor(
        [SlicedRatio(slices=128, split_seed=s)(normal(1000, 10 + s), target, RNG).item() for s in range(12)]
    )
    assert scores.mean().item() == pytest.approx(1.0, abs=0.35)
    assert SlicedRatio(slices=128)(normal(1000, 3) + 0.5, target, RNG).item() > 3


def test_a_shift_counts_in_units_of_the_real_distance() -> None:
    train, val = normal(300, 1, 3), normal(300, 2, 3)
    far = [sw_ratio([val + s], [train], [val]) for s in (0.0, 1.0, 10.0)]
    assert far[0] == 1.0
    assert far[1] < far[2]
    # Far away SW_2 is the shift over the root of d, and its length is 10 root 3.
    real = sw_ratio([val + 10.0], [train], [train + 1.0])
    assert real == pytest.approx(10.0, rel=0.02)


def test_several_feature_spaces_are_averaged() -> None:
    train, val, gen = normal(200, 1), normal(200, 2), normal(250, 3) + 0.3
    wide = [torch.cat([z, z**2], 1) for z in (gen, train, val)]
    alone = sw_ratio([gen], [train], [val]), sw_ratio([wide[0]], [wide[1]], [wide[2]])
    both = sw_ratio([gen, wide[0]], [train, wide[1]], [val, wide[2]])
    assert both == pytest.approx(sum(alone) / 2, rel=1e-12)


def test_it_is_one_for_the_validation_half_itself() -> None:
    target, loss = Cloud(normal(400, 5)), SlicedRatio()
    ruler = loss.prepare(target).memo["ruler"]
    held = torch.tensor([i for i in range(400) if not (target.x[i] == ruler.train.x).all(1).any()])
    assert len(held) == 200
    assert loss(target.x[held], target, RNG).item() == pytest.approx(1.0, rel=1e-12)
    assert loss(ruler.train.x, target, RNG).item() == pytest.approx(0.0, abs=1e-6)


def test_all_three_clouds_are_cut_to_one_size() -> None:
    target = Cloud(normal(400, 5))
    few = [SlicedRatio(split_seed=s)(normal(20, 40 + s), target, RNG).item() for s in range(20)]
    assert sum(few) / 20 == pytest.approx(1.0, abs=0.3)
    many = [SlicedRatio(split_seed=s)(normal(3000, 60 + s), target, RNG).item() for s in range(8)]
    assert sum(many) / 8 == pytest.approx(1.0, abs=0.3)


def test_prepared_or_not_it_is_the_same() -> None:
    x, target = normal(77, 3), Cloud(normal(120, 4), torch.full((120,), 1 / 120).double())
    for n in (77, 20):
        cold, warm = (SlicedRatio()(x[:n], t, RNG).item() for t in (target, SlicedRatio().prepare(target)))
        assert cold == pytest.approx(warm, rel=1e-12)


def test_equal_weights_written_out_change_nothing() -> None:
    x, y = normal(50, 3), normal(100, 4)
    plain = SlicedRatio()(x, Cloud(y), RNG).item()
    weight = torch.full((50,), 1 / 50).double()
    assert SlicedRatio()(x, Cloud(y, weight.repeat(2) / 2), RNG, weight).item() == pytest.approx(plain, rel=1e-6)


def test_equal_halves_give_the_largest_ratio_and_equal_points_one() -> None:
    target = Cloud(torch.ones(6, 2).double())
    assert SlicedRatio()(torch.zeros(3, 2).double(), target, RNG).item() == pytest.approx(CAP)
    assert SlicedRatio()(torch.ones(3, 2).double(), target, RNG).item() == 1.0
    assert SlicedRatio()(torch.zeros(3, 2).double(), Cloud(torch.ones(1, 2).double()), RNG).item() == pytest.approx(CAP)


def test_it_only_judges() -> None:
    assert not drives(SlicedRatio())
