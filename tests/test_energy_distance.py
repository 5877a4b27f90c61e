"""Energy distance: known values, Gaussians, the one-dimensional formula, unit vectors, one particle's speed."""

import math

import pytest
import torch
from pair_cases import agrees, clouds, gaussian_samples, known, lattice, path, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses import _compiled
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import discrepancy_velocity, kernel_sums
from dmviz.losses.energy_distance import EnergyDistance

__all__ = ["path"]
KNOWN = known("energy")
LOSS, RNG = EnergyDistance(), seeded(0)


def test_weighted_arrays_in_the_plane_equal_the_mean_over_projections(path: str) -> None:
    x, a, target = small(KNOWN["energy_slice_identity"]["inputs"])
    assert agrees(LOSS(x, target, RNG, a).item(), KNOWN["energy_slice_identity"])


def test_weighted_arrays_on_the_line(path: str) -> None:
    inputs = KNOWN["energy_1d_weighted"]["inputs"]
    x, y = tensor(inputs["x"])[:, None], tensor(inputs["y"])[:, None]
    got = LOSS(x, Cloud(y, tensor(inputs["b"])), RNG, tensor(inputs["a"]))
    assert agrees(got.item(), KNOWN["energy_1d_weighted"])


def test_uniform_arrays_with_and_without_the_diagonal(path: str) -> None:
    x, _, target = small(KNOWN["mmd2_V_uniform_neg_dist"]["inputs"])
    assert agrees(LOSS(x, target, RNG).item(), KNOWN["mmd2_V_uniform_neg_dist"])
    without = discrepancy_velocity(x, target, Kernel("distance"), None, unbiased=True).value
    assert agrees(without.item(), KNOWN["mmd2_U_uniform_neg_dist"])


def test_two_points_are_twice_their_distance(path: str) -> None:
    r = KNOWN["energy_dirac"]["inputs"]["r"]
    assert agrees(LOSS(tensor([[0.0, 0.0]]), Cloud(tensor([[0.0, r]])), RNG).item(), KNOWN["energy_dirac"])


@pytest.mark.parametrize("case", ["energy_gauss_0", "energy_gauss_1"])
def test_gaussians_on_the_line(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]

    def on_lattice(step: float) -> float:
        x, target = lattice(0.0, inputs["s1"], step), lattice(math.sqrt(inputs["dist_sq"]), inputs["s2"], step)
        return LOSS(x.x, target, RNG, x.weight).item()

    # The kink of |x - y| leaves an error of step^2; two steps take it out.
    extrapolated = (4 * on_lattice(1 / 64) - on_lattice(1 / 32)) / 3
    assert extrapolated == pytest.approx(KNOWN[case]["value"], abs=1e-8)


@pytest.mark.parametrize(("case", "d"), [("e_abs_gauss_d1", 1), ("e_abs_gauss_d3", 3)])
def test_mean_distance_between_normal_points(case: str, d: int, path: str) -> None:
    n = 3000
    x = torch.randn(n, d, generator=seeded(1), dtype=torch.float64)
    s = kernel_sums(x, x, torch.full((n,), 1 / n).double(), Kernel("distance"), path == "compiled").s
    # Standard error of the mean distance of n points: twice that of E|x - X'|, whose deviation is below 0.8.
    assert -s.mean().item() * n / (n - 1) == pytest.approx(KNOWN[case]["value"], abs=4 * 2 * 0.8 / math.sqrt(n))


def test_gaussians_in_ten_dimensions(path: str) -> None:
    inputs, n, d = KNOWN["energy_gauss_4"]["inputs"], 3000, 10
    shift = [math.sqrt(inputs["dist_sq"]), *[0.0] * (d - 1)]
    eye = torch.eye(d).double()
    x = gaussian_samples(n, [0.0] * d, (inputs["s1"] ** 2 * eye).tolist(), 1)
    y = gaussian_samples(n, shift, (inputs["s2"] ** 2 * eye).tolist(), 2)
    got = discrepancy_velocity(x, Cloud(y), Kernel("distance"), None, unbiased=True).value
    assert got.item() == pytest.approx(KNOWN["energy_gauss_4"]["value"], abs=0.12)  # four standard errors


def test_velocity_is_the_difference_of_mean_unit_vectors(path: str) -> None:
    x, a, target = clouds(40, 30, 3)
    unit = lambda z: torch.nn.functional.normalize(z, dim=-1)  # noqa: E731
    to_target = (unit(target.x[None] - x[:, None]) * target.weight[:, None]).sum(1)
    to_others = (unit(x[None] - x[:, None]) * a[:, None]).sum(1)
    got = velocity_of(LOSS, x, LOSS.prepare(target), RNG, a)
    assert torch.allclose(got.v, 2 * (to_target - to_others), atol=1e-13)


def test_one_particle_moves_at_speed_two(path: str) -> None:
    case = KNOWN["flow_energy_dirac"]
    x, target = tensor([[float(case["inputs"]["x0"])]]), Cloud(tensor([[0.0]]))
    for _ in range(100):
        x = x + case["inputs"]["t"] / 100 * velocity_of(LOSS, x, target, RNG).v
    assert agrees(x.item(), case)


def test_a_point_that_meets_others_feels_nothing_of_them(path: str) -> None:
    here = torch.zeros(3, 2)
    answer = velocity_of(LOSS, here, Cloud(torch.zeros(2, 2)), RNG)
    assert torch.equal(answer.v, torch.zeros(3, 2))
    assert answer.value.item() == 0.0
    assert torch.isfinite(autograd_velocity(LOSS, here, Cloud(torch.zeros(2, 2)), RNG).v).all()


def test_a_broken_point_is_seen_not_swallowed(path: str) -> None:
    x, _, target = clouds(12, 10, 2, torch.float32)
    x[3, 0] = math.nan
    answer = velocity_of(LOSS, x, target, RNG)
    assert torch.isnan(answer.v[3]).any()
    assert torch.isnan(answer.value)


def test_compiled_never_touches_the_eager_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMVIZ_COMPILE", "0")
    prepared = LOSS.prepare(Cloud(torch.zeros(2, 2)))
    monkeypatch.setenv("DMVIZ_COMPILE", "1")
    assert not _compiled.chosen(prepared.memo, prepared.x)  # a run keeps the kernels it began with
    assert _compiled.chosen(None, prepared.x)
