"""Regularizers of one cloud: known values, gradients against finite differences, and what particles settle on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses.barlow_twins import BarlowTwins
from dmviz.losses.embedding_clustering import EmbeddingClustering
from dmviz.losses.enveloping import Enveloping, coverage, nearest
from dmviz.losses.equiangular import Equiangular, simplex, welch_bound
from dmviz.losses.flops import Flops, activity, expected_products, unevenness
from dmviz.losses.ifsq import Ifsq, activation, bin_entropy, quantise
from dmviz.losses.infonce import InfoNce
from dmviz.losses.knn_entropy import KnnEntropy, kth_neighbour
from dmviz.losses.vicreg import VicReg
from dmviz.losses.wasserstein import Wasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "regularizers.json").read_text())
RNG = seeded(0)


def tensor(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def gaussian(n: int, d: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def score(loss: Any, x: torch.Tensor, weight: torch.Tensor | None = None, target: Cloud | None = None) -> float:
    return loss(x, target or Cloud(x), RNG, weight).item()


def spread(n: int, d: int) -> torch.Tensor:
    return torch.nn.functional.normalize(gaussian(n, d, n), dim=1)


EVERY = [
    Equiangular(threshold=0.3),
    Equiangular(welch=True),
    Flops(),
    Flops("relu"),
    Flops("soft_threshold", threshold=0.4),
    KnnEntropy(k=2),
    Enveloping(homogeneity=0.3, probes=50),
    Ifsq(scale=1.5),
    Ifsq("tanh"),
    InfoNce(),
    InfoNce("symmetric", tau=0.5),
    InfoNce("nt_xent"),
    VicReg(deviation=1.2),
    BarlowTwins(redundancy=0.3),
]


@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_the_gradient_is_that_of_finite_differences(loss: Any) -> None:
    x, target, step = gaussian(7, 3, 9), Cloud(gaussian(7, 3, 10)), 1e-6
    weight = torch.arange(1.0, 8.0, dtype=torch.float64) / 28
    v = velocity_of(loss, x, target, RNG, weight).v
    for i, j in ((0, 0), (3, 2), (6, 1)):
        bump = torch.zeros_like(x)
        bump[i, j] = step
        slope = (score(loss, x + bump, weight, target) - score(loss, x - bump, weight, target)) / (2 * step)
        assert v[i, j].item() == pytest.approx(-slope / weight[i].item(), abs=2e-6)


@pytest.mark.parametrize("loss", EVERY, ids=repr)
@pytest.mark.parametrize("d", [2, 12])
def test_velocity_is_minus_gradient_over_weight_in_several_tiles(loss: Any, d: int) -> None:
    x, target = gaussian(600, d), Cloud(gaussian(600, d, 2))
    x[5], x[8, 0] = x[4], 0.0
    weight = torch.rand(600, generator=seeded(3), dtype=torch.float64)
    weight[7] = 0.0
    weight = weight / weight.sum()
    closed, auto = (f(loss, x, target, RNG, weight) for f in (velocity_of, autograd_velocity))
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10, abs=1e-12)
    assert (closed.v - auto.v).abs().max() <= 1e-8 * auto.v.abs().max()
    assert (closed.v[7] == 0).all()


# ------------------------------------------------------------------------------------ equiangular basis vectors


def test_known_welch_bounds() -> None:
    case = KNOWN["welch_bound"]
    for n, d, value in zip(case["inputs"]["N"], case["inputs"]["d"], case["value"], strict=True):
        assert welch_bound(n, d) == pytest.approx(value, abs=case["tolerance"])


def test_known_simplex() -> None:
    case = KNOWN["dsimplex_pairwise"]
    z = simplex(case["inputs"]["classes"])
    cosine, distance = case["value"]
    assert torch.allclose(z.norm(dim=1), torch.ones(4, dtype=torch.float64))
    assert (z @ z.T)[0, 1:].tolist() == pytest.approx([cosine] * 3, abs=case["tolerance"])
    assert torch.pdist(z).tolist() == pytest.approx([distance] * 6, abs=case["tolerance"])
    with pytest.raises(ValueError, match="at least 2"):
        simplex(1)


@pytest.mark.parametrize(("n", "d"), [(3, 2), (4, 3)])
def test_vectors_settle_at_equal_angles(n: int, d: int) -> None:
    x = spread(n, d)
    field = aim(Equiangular(welch=True), Cloud(x), hold="sphere")
    for k in range(1500):
        x = field.hold(x + 0.5 / (k + 5) * field(x, RNG).v)
    cosine = (x @ x.T - torch.eye(n, dtype=x.dtype)).abs().max().item()
    assert welch_bound(n, d) - 1e-9 <= cosine < welch_bound(n, d) + 0.02


def test_the_six_lines_of_an_icosahedron_are_found_again() -> None:
    g = (1 + math.sqrt(5)) / 2
    x = tensor([[0, 1, g], [0, -1, g], [1, g, 0], [-1, g, 0], [g, 0, 1], [g, 0, -1]]) / math.sqrt(1 + g * g)
    assert score(Equiangular(threshold=1 / math.sqrt(5)), x) == pytest.approx(0.0, abs=1e-12)
    field = aim(Equiangular(threshold=1 / math.sqrt(5)), Cloud(x), hold="sphere")
    x = field.hold(x + 0.1 * gaussian(6, 3))
    assert score(field.loss, x) > 0.01
    for k in range(1500):
        x = field.hold(x + 0.2 / (k + 5) * field(x, RNG).v)
    assert score(field.loss, x) < 1e-3


def test_a_simplex_is_at_rest_under_its_own_bound() -> None:
    _, _, axes = torch.linalg.svd(simplex(4))
    x = simplex(4) @ axes[:3].T  # the same in the three dimensions that it spans
    assert score(Equiangular(welch=True), x) == pytest.approx(0.0, abs=1e-12)
    assert score(Equiangular(threshold=0.3), x) == pytest.approx(0.75 * (1 / 3 - 0.3))


# ------------------------------------------------------------------------------------------------ FLOPs sparsity


def test_known_spread_against_crowded() -> None:
    case = KNOWN["flops_spread_vs_concentrated"]
    got = [score(Flops(), tensor(case["inputs"][k])) for k in ("spread", "concentrated")]
    assert got == pytest.approx(case["value"], abs=case["tolerance"])
    assert unevenness(tensor(case["inputs"]["spread"])) == 1.0
    assert unevenness(tensor(case["inputs"]["concentrated"])) == 2.0


def test_known_value_of_a_gaussian_by_quadrature() -> None:
    case = KNOWN["flops_gaussian_expectation"]
    at, w = np.polynomial.legendre.leggauss(200)
    z = 5.0 * (tensor(at) + 1.0)  # |a| up to 10 standard deviations
    density = tensor(w) * 5.0 * (-0.5 * z.square()).exp() * math.sqrt(2 / math.pi)
    got = score(Flops(), z[:, None].expand(-1, 16), density)
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def test_activations_cut_and_are_counted() -> None:
    x = tensor([[-2.0, 0.5], [1.0, 0.05]])
    assert Flops("relu").embedding(x).tolist() == [[0.0, 0.5], [1.0, 0.05]]
    cut = Flops("soft_threshold", threshold=0.1).embedding(x)
    assert torch.allclose(cut, tensor([[-1.9, 0.4], [0.9, 0.0]]))
    assert activity(cut).tolist() == [1.0, 0.5]
    assert expected_products(cut) == 1.25


def test_columns_in_use_shrink_fastest() -> None:
    x = tensor([[1.0, 0.1], [1.0, 0.1]])
    v = velocity_of(Flops(), x, Cloud(x), RNG).v
    assert torch.allclose(v, tensor([[-2.0, -0.2]]))


# --------------------------------------------------------------------------------------------------- kNN entropy


def test_known_entropy_of_a_gaussian() -> None:
    case = KNOWN["entropy_gaussian_2d"]
    assert -score(KnnEntropy(k=3), gaussian(3000, 2, 5)) == pytest.approx(case["value"], abs=case["tolerance"])


def test_uniform_law_has_entropy_zero_and_stretching_adds_a_log() -> None:
    x = torch.rand(4000, 3, generator=seeded(2), dtype=torch.float64)
    assert score(KnnEntropy(), x) == pytest.approx(0.0, abs=0.15)  # a twentieth of the points lie at the border
    assert score(KnnEntropy(), 5.0 * x) == pytest.approx(score(KnnEntropy(), x) - 3 * math.log(5.0))


@pytest.mark.parametrize("d", [1, 2, 12])
def test_the_kth_neighbour_is_the_kth_in_a_full_sort(d: int) -> None:
    x = gaussian(700, d)
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(-1)
    for k in (1, 3, 40):
        assert torch.equal(kth_neighbour(x, k), distance.argsort(1)[:, k])


def test_among_equal_points_no_point_is_its_own_neighbour() -> None:
    x = torch.zeros(60, 2, dtype=torch.float64)
    x[:3] = gaussian(3, 2)
    for k in (1, 5, 59):
        assert (kth_neighbour(x, k) != torch.arange(60)).all()
    got = velocity_of(KnnEntropy(), x, Cloud(x), RNG)
    assert torch.isfinite(got.v).all() and torch.isfinite(got.value)


def test_one_particle_and_particles_without_weight_are_left_out() -> None:
    one = tensor([[1.0, 2.0]])
    assert score(KnnEntropy(), one) == 0.0
    x, weight = gaussian(5, 2), tensor([0.25, 0.25, 0.0, 0.25, 0.25])
    assert score(KnnEntropy(), x, weight) == pytest.approx(score(KnnEntropy(), x[weight > 0]))


def test_held_in_a_box_particles_become_more_uniform() -> None:
    x = 0.2 * gaussian(200, 2)
    field = aim(KnnEntropy(), Cloud(x), hold="box", radius=1.0)
    before = -score(KnnEntropy(), x)
    for _ in range(300):
        x = field.hold(x + 0.001 * field(x, RNG).v)
    assert -score(KnnEntropy(), x) > before + 1.0
    assert x.std(0).tolist() == pytest.approx([1 / math.sqrt(3)] * 2, abs=0.1)


# -------------------------------------------------------------------------------------- enveloping, homogeneity


def test_known_envelope_of_a_square_by_many_even_probes() -> None:
    case = KNOWN["srl_envelope_square_population"]
    angle = (torch.arange(200_000).double() + 0.5) * (2 * math.pi / 200_000)
    probes = torch.stack([angle.cos(), angle.sin()], 1)
    got = 1 - coverage(tensor(case["inputs"]["surrogates"]), probes).item()
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("d", [2, 9])
def test_both_ways_to_the_nearest_particle_agree(d: int) -> None:
    u, probes = spread(80, d), spread(300, d)
    assert torch.equal(nearest(u, probes), (probes @ u.T).argmax(1))


def test_random_probes_come_near_the_whole_sphere() -> None:
    square = tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    got = score(Enveloping(homogeneity=0.0, probes=20_000), square)
    assert got == pytest.approx(KNOWN["srl_envelope_square_population"]["value"], abs=0.003)


def test_particles_come_to_cover_the_circle() -> None:
    x = spread(6, 2)
    field = aim(Enveloping(homogeneity=0.0, probes=4000), Cloud(x), hold="sphere")
    for _ in range(300):
        x = field.hold(x + 0.2 * field(x, RNG).v)
    assert score(field.loss, x) == pytest.approx(1 - 6 / math.pi * math.sin(math.pi / 6), abs=0.01)


def test_homogeneity_of_an_arc_by_hand_and_order_matters() -> None:
    angle = tensor([0.0, 0.3, 0.6, 0.9])
    arc = torch.stack([angle.cos(), angle.sin()], 1)
    loss = Enveloping(enveloping=0.0, homogeneity=2.0)
    assert score(loss, arc) == pytest.approx(-2.0 * 3 * math.cos(0.3))
    assert score(loss, arc[[0, 2, 1, 3]]) > score(loss, arc) + 0.1


def test_on_a_line_both_ends_are_looked_for() -> None:
    assert score(Enveloping(homogeneity=0.0), tensor([[2.0]])) == pytest.approx(1.0)
    assert score(Enveloping(homogeneity=0.0), tensor([[2.0], [-1.0]])) == pytest.approx(0.0)


def test_rows_of_zeros_cover_nothing() -> None:
    x = tensor([[0.0, 0.0], [1.0, 0.0]])
    got = velocity_of(Enveloping(), x, Cloud(x), RNG)
    assert (got.v[0] == 0).all()
    nothing = velocity_of(Enveloping(), x * 0, Cloud(x), RNG)
    assert nothing.value == 1.0 and (nothing.v == 0).all()


# -------------------------------------------------------------------------------------------- embedding clustering


def test_known_plan_of_two_against_two() -> None:
    case = KNOWN["ecr_2x2"]
    side = math.sqrt(case["inputs"]["cost"][0][1])
    x = tensor([[0.0], [side]])
    loss = EmbeddingClustering(blur=1 / math.sqrt(2 * case["inputs"]["alpha"]), weight=float(case["inputs"]["weight"]))
    assert score(loss, x) == pytest.approx(case["value"], abs=case["tolerance"])


@pytest.mark.parametrize("blur", [0.1, 0.5, 3.0])
@pytest.mark.parametrize(("n", "m"), [(4, 9), (9, 4), (6, 6)])
def test_the_gradient_follows_the_plan(blur: float, n: int, m: int) -> None:
    x, y, step = gaussian(n, 2, 3), gaussian(m, 2, 4), 1e-5
    a, b = (torch.rand(k, generator=seeded(k), dtype=torch.float64) + 0.1 for k in (n, m))
    a, target = a / a.sum(), Cloud(y, b / b.sum())
    loss = EmbeddingClustering(blur=blur)
    v = velocity_of(loss, x, target, RNG, a).v
    for i, j in ((0, 0), (3, 1), (2, 0)):
        bump = torch.zeros_like(x)
        bump[i, j] = step
        slope = (score(loss, x + bump, a, target) - score(loss, x - bump, a, target)) / (2 * step)
        assert v[i, j].item() == pytest.approx(-slope / a[i].item(), abs=1e-5)


def test_a_narrow_blur_is_exact_transport_and_a_wide_one_the_mean_of_all_pairs() -> None:
    x, y = gaussian(8, 2, 3), gaussian(8, 2, 4)
    exact = Wasserstein()(x, Cloud(y), RNG).item()
    assert score(EmbeddingClustering(blur=0.02), x, None, Cloud(y)) == pytest.approx(exact, rel=1e-6)
    wide = torch.cdist(x, y).square().mean().item()
    assert score(EmbeddingClustering(blur=100.0), x, None, Cloud(y)) == pytest.approx(wide, rel=1e-3)


def test_centres_part_the_target_evenly() -> None:
    at = tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    y = torch.cat([c + 0.1 * gaussian(20, 2, 5) for c in at])
    x = 1.5 + 0.01 * gaussian(3, 2, 6)  # all in the middle
    field = aim(EmbeddingClustering(blur=0.3), Cloud(y))
    for _ in range(60):
        x = x + 0.2 * field(x, RNG).v
    assert torch.cdist(at, x).min(1).values.max() < 0.15
    assert torch.allclose(EmbeddingClustering(blur=0.3).plan(x, Cloud(y)).sum(1), tensor([1 / 3] * 3))


def test_larger_clouds_by_the_other_solver_agree_with_autograd_and_a_warm_start() -> None:
    x, y = gaussian(150, 2, 3), gaussian(400, 2, 4)
    loss, target = EmbeddingClustering(blur=0.5), Cloud(y)
    closed = velocity_of(loss, x, target, RNG)
    auto = autograd_velocity(loss, x, target, RNG)
    warm = velocity_of(loss, x, target, RNG, None, closed.carry)
    assert (closed.v - auto.v).abs().max() < 1e-9
    assert (closed.v - warm.v).abs().max() < 1e-3 * closed.v.abs().max()
    exact = _exact_clustering(x, y, 0.5)
    assert closed.value.item() == pytest.approx(exact, rel=1e-4)


def _exact_clustering(x: torch.Tensor, y: torch.Tensor, blur: float) -> float:
    cost = torch.cdist(x, y).square()
    f, g = torch.zeros(len(x), dtype=x.dtype), torch.zeros(len(y), dtype=x.dtype)
    for _ in range(2000):
        f = -(g - cost / (2 * blur**2)).logsumexp(1)
        g = -(f[:, None] - cost / (2 * blur**2)).logsumexp(0)
    plan = (f[:, None] + g - cost / (2 * blur**2)).exp()
    return float((plan * cost).sum() / plan.sum())


def test_too_many_pairs_are_refused_in_one_sentence() -> None:
    x = torch.zeros(3001, 1)
    with pytest.raises(ValueError, match=r"^EmbeddingClustering: particles times target points must be at most"):
        EmbeddingClustering()(x, Cloud(x), RNG)


# ------------------------------------------------------------------------------------------------------ iFSQ's map


def test_known_points_of_the_map() -> None:
    case = KNOWN["ifsq_points"]
    got = activation(tensor(case["inputs"]["z"]))
    assert got.tolist() == pytest.approx(case["value"], abs=case["tolerance"])


def test_known_variances_of_a_squashed_normal() -> None:
    case = KNOWN["ifsq_variance"]
    at, w = np.polynomial.hermite_e.hermegauss(180)
    z, weight = tensor(at), tensor(w / w.sum())
    got = [(weight * activation(z, kind).square()).sum().item() for kind in ("ifsq", "tanh")]
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def test_known_distance_to_the_uniform_law() -> None:
    case = KNOWN["ifsq_ks_to_uniform"]
    z = torch.linspace(-6, 6, 200_001, dtype=torch.float64)
    got = (torch.special.ndtr(z) - 0.5 * (activation(z) + 1)).abs().max().item()
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def test_the_loss_of_a_normal_cloud_is_small_under_ifsq_and_larger_under_tanh() -> None:
    levels = (torch.arange(4000).double() + 0.5) / 4000
    x = torch.special.ndtri(levels)[:, None]
    quantile = lambda kind: (activation(x[:, 0], kind) - (2 * levels - 1)).square().mean().item()  # noqa: E731
    for kind in ("ifsq", "tanh"):
        assert score(Ifsq(kind), x) == pytest.approx(quantile(kind), abs=1e-6)
    assert score(Ifsq("ifsq"), x) < 0.001 < 0.003 < score(Ifsq("tanh"), x)


def test_evenly_spaced_values_reach_the_floor_and_one_end_the_ceiling() -> None:
    even = (torch.arange(5).double() * 2 + 1) / 5 - 1
    assert score(Ifsq("tanh"), torch.atanh(even)[:, None]) == pytest.approx(1 / 75)
    assert score(Ifsq(), tensor([[40.0], [50.0]])) == pytest.approx(4 / 3)


def test_particles_fill_the_bins() -> None:
    x = 0.2 * gaussian(300, 2)
    field = aim(Ifsq(), Cloud(x))
    before = bin_entropy(activation(x), 9)
    for _ in range(200):
        x = x + 2.0 * field(x, RNG).v
    assert score(Ifsq(), x) < 1e-4
    assert (bin_entropy(activation(x), 9) > before + 1.0).all()  # eight whole bins and two halves: 3.125 bits
    assert bin_entropy(activation(x), 9).tolist() == pytest.approx([3.125] * 2, abs=0.01)


def test_quantised_values_and_their_gradient() -> None:
    y = tensor([-1.0, -0.3, 0.1, 0.8]).requires_grad_(True)
    got = quantise(y, 3)
    assert got.tolist() == [-1.0, 0.0, 0.0, 1.0]
    assert torch.autograd.grad(got.sum(), y)[0].tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="odd"):
        quantise(y, 4)


# ------------------------------------------------------------------------------- InfoNCE, VICReg and Barlow Twins


@pytest.mark.parametrize("case", ["infonce_collapsed", "infonce_simplex", "ntxent_orthonormal"])
def test_known_contrasts(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x, target = tensor(inputs["u"]), Cloud(tensor(inputs["v"]))
    for variant in ("nt_xent",) if case.startswith("nt") else ("one_way", "symmetric"):
        loss = InfoNce(variant, tau=inputs["tau"])
        assert score(loss, x, None, target) == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])
        leaf = x.clone().requires_grad_(True)  # the path that autograd goes
        assert loss(leaf, target, RNG).item() == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


def test_collapse_is_chance() -> None:
    x = torch.ones(9, 3, dtype=torch.float64)
    for variant in ("one_way", "symmetric", "nt_xent"):
        assert score(InfoNce(variant), x) == pytest.approx(InfoNce(variant).chance(9))


def test_contrasts_against_torchs_own_cross_entropy() -> None:
    x, y, tau = gaussian(7, 3, 3), gaussian(7, 3, 4), 0.3
    u, v = (torch.nn.functional.normalize(z, dim=1) for z in (x, y))
    rows, target = u @ v.T / tau, torch.arange(7)
    entropy = torch.nn.functional.cross_entropy
    one, other = entropy(rows, target).item(), entropy(rows.T, target).item()
    pot = torch.cat([u, v]) @ torch.cat([u, v]).T / tau
    pot = pot.masked_fill(torch.eye(14, dtype=torch.bool), -math.inf)
    all_of_them = entropy(pot, torch.cat([target + 7, target])).item()
    expected = {"one_way": one, "symmetric": (one + other) / 2, "nt_xent": all_of_them}
    for variant, value in expected.items():
        assert score(InfoNce(variant, tau=tau), x, None, Cloud(y)) == pytest.approx(value, abs=1e-12)


def test_particles_find_their_partners() -> None:
    y = simplex(4)
    x = gaussian(4, 4, 6)
    field = aim(InfoNce(tau=0.3), Cloud(y), hold="sphere")
    for _ in range(400):
        x = field.hold(x + 0.05 * field(x, RNG).v)
    assert (x * y).sum(1).min() > 0.999


def test_known_value_of_collapse_under_vicreg() -> None:
    case = KNOWN["vicreg_collapsed_total"]
    weights = case["inputs"]["weights"]
    loss = VicReg(variance=float(weights[1]), covariance=2.0 * weights[2])  # of two equal views
    assert score(loss, tensor(case["inputs"]["x"])) == pytest.approx(case["value"], abs=case["tolerance"])


def test_known_hinge_at_rest_and_covariance_of_twin_columns() -> None:
    case = KNOWN["vicreg_duplicate_columns_var"]
    x = tensor(case["inputs"]["x"])
    assert score(VicReg(covariance=0.0), x) == pytest.approx(case["value"], abs=case["tolerance"])
    assert score(VicReg(covariance=2.0), x) == pytest.approx(32 / 9)


def test_vicreg_makes_white_what_was_narrow_and_tilted() -> None:
    x = 0.3 * gaussian(400, 2) @ tensor([[1.0, 0.9], [0.0, 0.4]])
    field = aim(VicReg(), Cloud(x))
    for _ in range(1500):
        x = x + 0.001 * field(x, RNG).v
    assert torch.cov(x.T)[0, 1].abs() < 0.01
    assert torch.diagonal(torch.cov(x.T)).tolist() == pytest.approx([1.0, 1.0], abs=0.05)


def test_known_value_of_negated_views() -> None:
    case = KNOWN["barlow_negated_views"]
    x, y = tensor(case["inputs"]["z1"]), tensor(case["inputs"]["z2"])
    loss = BarlowTwins(redundancy=case["inputs"]["lambd"])
    assert score(loss, x, None, Cloud(y)) == pytest.approx(case["value"], abs=case["tolerance"])
    assert torch.allclose(loss.correlation(x, Cloud(y)), -torch.eye(3, dtype=torch.float64), atol=1e-4)


def test_correlation_does_not_see_shift_and_stretch() -> None:
    x, y = gaussian(30, 3, 3), gaussian(30, 3, 4)
    moved = 100.0 * x * tensor([1.0, 3.0, 0.5]) - 7.0
    assert score(BarlowTwins(), 100.0 * x, None, Cloud(100.0 * y)) == pytest.approx(
        score(BarlowTwins(), moved, None, Cloud(100.0 * y)), abs=1e-7
    )


def test_partners_are_taken_in_order_and_from_the_start_again() -> None:
    x, y = gaussian(7, 3, 3), gaussian(4, 3, 4)
    again = Cloud(y[torch.arange(7) % 4])
    for loss in (InfoNce(), InfoNce("nt_xent"), BarlowTwins()):
        assert score(loss, x, None, Cloud(y)) == pytest.approx(score(loss, x, None, again))
        assert score(loss, x.flip(0), None, again) != pytest.approx(score(loss, x, None, again))
