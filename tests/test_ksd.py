"""Kernel Stein discrepancy: known values, Gaussians, one particle's flow, and the score's own Jacobian."""

import pytest
import torch
from pair_cases import agrees, clouds, hermite, known, path, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.ksd import Ksd

__all__ = ["path"]
KNOWN = known("ksd")
RNG = seeded(0)
PRECISION = torch.linalg.inv(tensor([[2.0, 0.5], [0.5, 1.0]]))
SCORES = {"std": lambda x: -x, "gen": lambda x: -(x - tensor([1.0, -2.0])) @ PRECISION}
ARRAYS = [case for case in KNOWN if case.startswith(("ksd2_V", "ksd2_U"))]
NORMAL = Cloud(torch.zeros(1, 1), score=lambda x: -x)


def quartic(x: torch.Tensor) -> torch.Tensor:
    """A score whose Jacobian is not symmetric in form and changes from place to place."""
    return -x * (1 + 0.3 * x.square().sum(1, keepdim=True)) + torch.sin(x).roll(1, 1)


@pytest.mark.parametrize("case", ARRAYS)
def test_known_arrays(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x, a = tensor(inputs["X"]), tensor(inputs["a"]) if "a" in inputs else None
    loss = Ksd(
        kernel="imq" if "imq" in case else "gaussian",
        bandwidth=2.0 if "rbf_l2" in case else 1.0,
        estimator="unbiased" if "_U_" in case else "biased",
    )
    assert agrees(loss(x, Cloud(x, score=SCORES[case[-3:]]), RNG, a).item(), KNOWN[case])


@pytest.mark.parametrize("case", ["ksd2_pop_shift_0", "ksd2_pop_shift_1", "ksd2_pop_scale"])
def test_gaussians_on_the_line(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]
    x = hermite([inputs.get("mu", 0.0)], [[inputs.get("s", 1.0) ** 2]], 150)
    assert agrees(Ksd(bandwidth=float(inputs["l"]))(x.x, NORMAL, RNG, x.weight).item(), KNOWN[case])


def test_gaussians_in_three_dimensions(path: str) -> None:
    case = KNOWN["ksd2_pop_shift_d3"]
    x = hermite([float(m) for m in case["inputs"]["mu"]], torch.eye(3).tolist(), 17)
    got = Ksd(bandwidth=float(case["inputs"]["l"]))(x.x, NORMAL, RNG, x.weight).item()
    assert got == pytest.approx(case["value"], abs=1e-9)


def test_one_particle_is_its_score_squared_plus_the_kernels_own_term(path: str) -> None:
    for kernel in ("gaussian", "imq"):
        got = Ksd(kernel, 0.5)(tensor([[1.0, 2.0]]), NORMAL, RNG).item()
        assert got == pytest.approx(5.0 + 2 / 0.25)


def test_flow_of_one_particle(path: str) -> None:
    case = KNOWN["flow_ksd_single"]
    x, steps = tensor([[float(case["inputs"]["x0"])]]), 200
    dt = case["inputs"]["t"] / steps
    field = lambda z: velocity_of(Ksd(), z, NORMAL, RNG).v  # noqa: E731
    for _ in range(steps):  # Runge-Kutta of order four
        k1 = field(x)
        k2 = field(x + dt / 2 * k1)
        k3 = field(x + dt / 2 * k2)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + field(x + dt * k3))
    assert x.item() == pytest.approx(case["value"], abs=1e-10)


@pytest.mark.parametrize("kernel", ["gaussian", "imq"])
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("d", [1, 2, 11])
def test_velocity_is_minus_gradient_over_weight_with_the_scores_jacobian(
    kernel: str, estimator: str, d: int, path: str
) -> None:
    x, a, _ = clouds(40, 2, d)
    target = Cloud(x, score=quartic)
    loss = Ksd(kernel, 0.9, estimator)
    closed, auto = velocity_of(loss, x, target, RNG, a), autograd_velocity(loss, x, target, RNG, a)
    size = auto.v.abs().max().item()
    assert (closed.v - auto.v).abs().max().item() <= 1e-10 * size
    assert closed.value.item() == pytest.approx(auto.value.item(), rel=1e-10)
    frozen = Cloud(x, score=lambda z: quartic(z).detach())
    assert (velocity_of(loss, x, frozen, RNG, a).v - auto.v).abs().max().item() > 1e-3 * size


def test_gradient_by_finite_differences(path: str) -> None:
    x, a, _ = clouds(7, 2, 2)
    target, step = Cloud(x, score=quartic), 1e-5
    v = velocity_of(Ksd(), x, target, RNG, a).v
    for i, d in ((0, 1), (5, 0)):
        move = torch.zeros_like(x)
        move[i, d] = step
        slope = (Ksd()(x + move, target, RNG, a) - Ksd()(x - move, target, RNG, a)).item() / (2 * step)
        assert -v[i, d].item() * a[i].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_probe_at_the_particles_is_their_velocity(path: str) -> None:
    x, a, _ = clouds(25, 2, 3)
    target = Cloud(x, score=quartic)
    for loss in (Ksd(), Ksd("imq")):
        assert torch.allclose(loss.probe(x, x, target, RNG, a), velocity_of(loss, x, target, RNG, a).v, atol=1e-11)


def test_a_target_without_a_score_is_refused_in_one_sentence(path: str) -> None:
    x, a, _ = clouds(10, 2, 2)
    with pytest.raises(ValueError, match="needs the score"):
        Ksd()(x, Cloud(x), RNG, a)


def test_descent_lowers_it(path: str) -> None:
    x, _, _ = clouds(60, 2, 2)
    x, target = x + 1, Cloud(x, score=SCORES["std"])
    values = []
    for _ in range(40):
        v, value, _ = velocity_of(Ksd(), x, target, RNG)
        values.append(value.item())
        x = x + 0.05 * v
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.5 * values[0]
