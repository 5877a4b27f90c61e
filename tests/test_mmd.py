"""MMD: known values of every kernel, Gaussians, both estimators, the median, the witness and noise injection."""

import math

import pytest
import torch
from pair_cases import agrees, clouds, gaussian_mean, gaussian_samples, hermite, known, lattice, path, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses._kernels import Kernel
from dmviz.losses._pairs import discrepancy_value, paired_discrepancy
from dmviz.losses.mmd import Mmd
from dmviz.params import params_of

__all__ = ["path"]
KNOWN = known("mmd")
RNG = seeded(0)
KERNELS = {
    "rbf_l1": ("gaussian", 1.0),
    "rbf_l2": ("gaussian", 2.0),
    "laplace_s1": ("laplacian", 1.0),
    "imq_c1": ("imq", 1.0),
}
MORE = known("more")
PAIRED = [case for case in MORE if case.startswith("mmd2_Ustat_paired")]
MIXES = [("gaussian_mix", 0.0769060247), ("rational_quadratic_mix", 0.7127202475)]
KINDS = next(p.choices for p in params_of(Mmd) if p.name == "kernel")
ARRAYS = [
    case for case in KNOWN if case.startswith(("mmd2_V_", "mmd2_U_")) and KNOWN[case]["inputs"].get("kernel") in KERNELS
]


def loss_of(case: str) -> Mmd:
    kernel, bandwidth = KERNELS[KNOWN[case]["inputs"]["kernel"]]
    return Mmd(kernel=kernel, bandwidth=bandwidth, estimator="unbiased" if "_U_" in case else "biased")


@pytest.mark.parametrize("case", ARRAYS)
def test_known_arrays(case: str, path: str) -> None:
    x, a, target = small(KNOWN[case]["inputs"])
    assert agrees(loss_of(case)(x, target, RNG, a).item(), KNOWN[case])


@pytest.mark.parametrize("case", ["mmd2_rbf_gauss_0", "mmd2_rbf_gauss_1", "mmd2_rbf_gauss_2"])
def test_gaussians_with_the_gaussian_kernel(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]
    nodes = 80 if len(inputs["m1"]) == 1 else 40
    x, target = hermite(inputs["m1"], inputs["S1"], nodes), hermite(inputs["m2"], inputs["S2"], nodes)
    assert agrees(Mmd(bandwidth=inputs["l"])(x.x, target, RNG, x.weight).item(), KNOWN[case])


def test_gaussians_in_ten_dimensions(path: str) -> None:
    inputs = KNOWN["mmd2_rbf_gauss_3"]["inputs"]
    x, y = (gaussian_samples(2500, inputs[m], inputs[s], i) for i, (m, s) in enumerate((("m1", "S1"), ("m2", "S2"))))
    got = Mmd(bandwidth=inputs["l"], estimator="unbiased")(x, Cloud(y), RNG).item()
    assert got == pytest.approx(KNOWN["mmd2_rbf_gauss_3"]["value"], abs=0.01)  # four standard errors


def test_gaussians_with_the_laplacian_kernel(path: str) -> None:
    inputs = KNOWN["mmd2_laplace_gauss1d_0"]["inputs"]

    def on_lattice(step: float) -> float:
        x, target = lattice(inputs["m1"], inputs["s1"], step), lattice(inputs["m2"], inputs["s2"], step)
        return Mmd("laplacian", inputs["sigma"])(x.x, target, RNG, x.weight).item()

    # The kink of the kernel leaves an error of step^2; two steps take it out.
    extrapolated = (4 * on_lattice(1 / 64) - on_lattice(1 / 32)) / 3
    assert extrapolated == pytest.approx(KNOWN["mmd2_laplace_gauss1d_0"]["value"], abs=1e-8)


def test_gaussians_with_the_inverse_multiquadric(path: str) -> None:
    inputs = KNOWN["mmd2_imq_d2"]["inputs"]
    eye = [[1.0, 0.0], [0.0, 1.0]]
    x, target = hermite([0.0, 0.0], eye, 44), hermite(inputs["m2"], eye, 44)
    # The rule of 44 nodes sees the kernel's poles at r = +-i to five digits.
    assert Mmd("imq", 1.0)(x.x, target, RNG, x.weight).item() == pytest.approx(KNOWN["mmd2_imq_d2"]["value"], abs=1e-5)
    eye5 = torch.eye(5).tolist()
    far = KNOWN["mmd2_imq_d5"]["inputs"]["m2"]
    x, y = gaussian_samples(3000, [0.0] * 5, eye5, 1), gaussian_samples(3000, far, eye5, 2)
    got = Mmd("imq", 1.0, estimator="unbiased")(x, Cloud(y), RNG).item()
    assert got == pytest.approx(KNOWN["mmd2_imq_d5"]["value"], abs=0.008)  # four standard errors


@pytest.mark.parametrize("case", ["mmd2_imq_d2", "mmd2_imq_d5", "mmd2_rq_a1_d2", "mmd2_rq_a1_d5"])
def test_gaussians_with_long_tails(case: str) -> None:
    found = KNOWN[case] if case in KNOWN else MORE[case]
    d, between = found["inputs"]["d"], math.hypot(*found["inputs"]["m2"])
    loss = Mmd("imq" if "imq" in case else "rational_quadratic", 1.0)
    kernel = loss._kernel(Cloud(torch.zeros(1, d)))
    got = 2 * gaussian_mean(kernel, d, 0.0) - 2 * gaussian_mean(kernel, d, between)
    assert agrees(got, found)


def test_gaussians_with_the_rational_quadratic_kernel_by_samples(path: str) -> None:
    case = MORE["mmd2_rq_a1_d5"]
    eye = torch.eye(5).tolist()
    x, y = gaussian_samples(3000, [0.0] * 5, eye, 1), gaussian_samples(3000, case["inputs"]["m2"], eye, 2)
    got = Mmd("rational_quadratic", 1.0, estimator="unbiased")(x, Cloud(y), RNG).item()
    assert got == pytest.approx(case["value"], abs=0.008)  # four standard errors


def test_one_shift_of_the_line(path: str) -> None:
    x, target = hermite([0.0], [[1.0]], 80), hermite([1.0], [[1.0]], 80)
    assert agrees(Mmd(bandwidth=1.0)(x.x, target, RNG, x.weight).item(), MORE["mmd2_gaussian_shift1"])


def test_two_points_and_the_root_that_generators_descend(path: str) -> None:
    case = MORE["gmmn_point_masses"]
    got = Mmd(bandwidth=1.0)(tensor(case["inputs"]["gen"]), Cloud(tensor(case["inputs"]["real"])), RNG).sqrt()
    assert agrees(got.item(), case)


@pytest.mark.parametrize(
    ("kernel", "value"), [("gaussian_mix", 0.0769060247), ("rational_quadratic_mix", 0.7127202475)]
)
def test_known_mixes(kernel: str, value: float, path: str) -> None:
    x, a, target = small(MORE["mmd2_mix_rq"]["inputs"])
    got = Mmd(kernel, 1.0)(x, target, RNG, a).item()
    assert got == pytest.approx(value, abs=1e-10)
    if kernel == "rational_quadratic_mix":
        assert agrees(got, MORE["mmd2_mix_rq"])


def test_rational_quadratic_mix_is_the_sum_of_its_three_tails(path: str) -> None:
    x, a, target = clouds(30, 25, 2)
    parts = sum(Mmd("rational_quadratic", 0.8, alpha=s)(x, target, RNG, a).item() for s in (0.1, 1.0, 10.0))
    assert Mmd("rational_quadratic_mix", 0.8)(x, target, RNG, a).item() == pytest.approx(parts, rel=1e-12)


def test_a_large_alpha_is_nearly_the_gaussian(path: str) -> None:
    x, a, target = clouds(30, 25, 2)
    gaussian, nearly = (Mmd(k, 1.0, alpha=20.0)(x, target, RNG, a).item() for k in ("gaussian", "rational_quadratic"))
    assert nearly == pytest.approx(gaussian, rel=0.05)
    assert Mmd("rational_quadratic", 1.0, alpha=1.0)(x, target, RNG, a).item() != pytest.approx(gaussian, rel=0.05)


@pytest.mark.parametrize("case", PAIRED)
def test_paired_estimate_of_the_known_arrays(case: str) -> None:
    inputs = MORE[case]["inputs"]
    kernel = Kernel("distance") if inputs["kernel"] == "neg_dist" else Kernel(KERNELS[inputs["kernel"]][0])
    assert agrees(paired_discrepancy(tensor(inputs["X"]), tensor(inputs["Y"]), kernel).item(), MORE[case])


@pytest.mark.parametrize("case", ["mmd2_V_uniform_neg_dist", "mmd2_U_uniform_neg_dist"])
def test_distance_kernel_of_the_known_arrays(case: str, path: str) -> None:
    x, _, target = small(MORE[case]["inputs"])
    assert agrees(discrepancy_value(x, target, Kernel("distance"), None, "_U_" in case).item(), MORE[case])


def test_multi_scale_is_the_sum_of_its_five_gaussians(path: str) -> None:
    x, a, target = clouds(30, 25, 2)
    parts = sum(Mmd(bandwidth=0.8 * s)(x, target, RNG, a).item() for s in (0.25, 0.5, 1, 2, 4))
    assert Mmd("multi_scale", 0.8)(x, target, RNG, a).item() == pytest.approx(parts, rel=1e-12)


def test_gradient_and_velocity_of_the_known_arrays(path: str) -> None:
    for case in ("mmd2_rbf_l1_grad", "mmd2_rbf_l1_velocity"):
        x, a, target = small(KNOWN[case]["inputs"])
        v = velocity_of(Mmd(bandwidth=1.0), x, target, RNG, a).v
        got = v if case.endswith("velocity") else -v * a[:, None]
        assert torch.allclose(got, tensor(KNOWN[case]["value"]), atol=KNOWN[case]["tolerance"])


def test_noise_moves_the_place_of_evaluation_not_the_particles(path: str) -> None:
    case = KNOWN["mmd2_rbf_l1_noise_velocity"]
    x, a, target = small(case["inputs"])
    at = x + case["inputs"]["beta"] * tensor(case["inputs"]["u"])
    got = Mmd(bandwidth=1.0).probe(at, x, target, RNG, a)
    assert torch.allclose(got, tensor(case["value"]), atol=case["tolerance"])


def test_probe_is_minus_twice_the_slope_of_the_witness(path: str) -> None:
    x, a, target = clouds(20, 15, 2)
    at, step = torch.tensor([[0.3, -0.2], [1.0, 0.4]]).double(), 1e-5
    for kernel in KINDS:
        loss = Mmd(kernel, 0.9)
        for axis in range(2):
            move = torch.zeros(2).double()
            move[axis] = step
            up, down = (loss.witness(at + s * move, x, target, a) for s in (1, -1))
            assert torch.allclose(loss.probe(at, x, target, RNG, a)[:, axis], -(up - down) / step, atol=1e-8)


def test_unbiased_value_of_a_cloud_against_itself_is_not_zero(path: str) -> None:
    x, _, _ = clouds(30, 2, 2)
    k = torch.exp(-torch.cdist(x, x).square() / 2)
    off = (k.sum() - 30) / (30 * 29)
    expected = -2 / 30 * (1 - off)
    got = Mmd(bandwidth=1.0, estimator="unbiased")(x, Cloud(x), RNG)
    assert got.item() == pytest.approx(expected.item(), abs=1e-13)


def test_floor_of_the_biased_estimator(path: str) -> None:
    case = KNOWN["mmd2_biased_floor"]
    exact = hermite([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], 24)
    loss, n = Mmd(bandwidth=float(case["inputs"]["l"])), case["inputs"]["n"]
    prepared = loss.prepare(exact)
    draws = [
        loss(torch.randn(n, 2, generator=seeded(3, i), dtype=torch.float64), prepared, RNG).item() for i in range(80)
    ]
    spread = torch.tensor(draws).std().item() / math.sqrt(len(draws))
    assert sum(draws) / len(draws) == pytest.approx(case["value"], abs=4 * spread)


def test_median_bandwidth_is_the_targets_and_not_the_particles(path: str) -> None:
    points = tensor(KNOWN["median_heuristic_offdiag"]["inputs"]["X"])
    x = tensor([[0.1, 0.2], [5.0, 5.0]])
    by_hand = Mmd(bandwidth=KNOWN["median_heuristic_offdiag"]["value"])(x, Cloud(points), RNG)
    for median in (Mmd(median=True), Mmd(median=True, bandwidth=7.0)):
        assert median(x, Cloud(points), RNG).item() == pytest.approx(by_hand.item(), abs=1e-12)
        assert median(x, median.prepare(Cloud(points)), RNG).item() == pytest.approx(by_hand.item(), abs=1e-12)


def test_median_of_one_point_falls_back_to_the_bandwidth(path: str) -> None:
    x, one = tensor([[0.0], [2.0]]), Cloud(tensor([[1.0], [1.0]]))
    assert Mmd(median=True, bandwidth=0.7)(x, one, RNG).item() == Mmd(bandwidth=0.7)(x, one, RNG).item()


def test_flow_of_one_particle_to_one_point(path: str) -> None:
    case = KNOWN["flow_mmd_rbf_dirac"]
    loss, target = Mmd(bandwidth=float(case["inputs"]["l"])), Cloud(tensor([[0.0]]))
    field = lambda z: velocity_of(loss, z, target, RNG).v  # noqa: E731
    x, dt = tensor([[float(case["inputs"]["x0"])]]), case["inputs"]["t"] / 100
    for _ in range(100):  # Runge-Kutta of order four: error below 1e-9
        k1 = field(x)
        k2 = field(x + dt / 2 * k1)
        k3 = field(x + dt / 2 * k2)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + field(x + dt * k3))
    assert agrees(x.item(), case)


def test_far_away_the_gaussian_no_longer_pulls_and_the_tail_of_imq_does(path: str) -> None:
    x, target = torch.zeros(1, 2), Cloud(torch.tensor([[30.0, 0.0]]))
    answer = velocity_of(Mmd("gaussian", 1.0), x, target, RNG)
    assert answer.v.abs().max() < 1e-20
    assert answer.value.item() == pytest.approx(2.0)
    assert velocity_of(Mmd("imq", 1.0), x, target, RNG).v[0, 0] > 1e-3


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("d", [1, 3, 12])
def test_velocity_is_minus_gradient_over_weight(kernel: str, estimator: str, d: int, path: str) -> None:
    x, a, target = clouds(50, 40, d)
    loss = Mmd(kernel, 0.8, estimator=estimator)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    assert torch.allclose(closed.v, auto.v, atol=1e-10)
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-12)
