"""Generators of f-divergences and kernel density estimates: Gaussians by quadrature, weights, and every identity."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import clouds, hermite, path, tensor
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._kde import Bumps, led, log_density, scott
from dmviz.losses._ratios import GENERATORS, Ratio, never_negative, total_variation

__all__ = ["path"]
KNOWN = json.loads((Path(__file__).parent / "known" / "densities.json").read_text())
NAMES = {"kl": "kl", "rkl": "reverse_kl", "jeffreys": "jeffreys", "jsd": "jensen_shannon", "hellinger2": "hellinger",
         "chi2": "pearson_chi2", "softrkl": "softened_reverse_kl"}  # fmt: skip
WEIGHTS = {"rkl": "reverse_kl", "kl": "kl", "jsd": "jensen_shannon", "hellinger2": "hellinger",
           "softened_rkl": "softened_reverse_kl", "jeffreys": "jeffreys", "pearson_chi2": "pearson_chi2",
           "neyman_chi2": "neyman_chi2"}  # fmt: skip
U = torch.linspace(-8, 8, 161, dtype=torch.float64)
OTHER_WAY = {"kl": "reverse_kl", "softened_kl": "softened_reverse_kl", "pearson_chi2": "neyman_chi2",
             "jensen_shannon": "jensen_shannon", "hellinger": "hellinger", "jeffreys": "jeffreys"}  # fmt: skip


def log_normal(z: Tensor, mean: float, deviation: float) -> Tensor:
    return -0.5 * ((z - mean) / deviation) ** 2 - math.log(deviation) - 0.5 * math.log(2 * math.pi)


def on_the_line(case: dict) -> tuple[Tensor, Tensor, float]:
    """log p and log q on a lattice, and its step."""
    z = torch.linspace(-30, 30, 2_000_001, dtype=torch.float64)
    return log_normal(z, *case["inputs"]["P"]), log_normal(z, *case["inputs"]["Q"]), 60 / 2_000_000


def matches(got: object, case: dict) -> bool:
    got, value = torch.as_tensor(got, dtype=torch.float64), tensor(case["value"])
    return bool(((got - value).abs() <= case["tolerance"] * value.abs().clamp_min(1.0)).all())


@pytest.mark.parametrize("case", [c for c in KNOWN if c.rsplit("_gauss_", 1)[0] in NAMES])
def test_divergences_of_gaussians_on_the_line(case: str) -> None:
    log_p, log_q, step = on_the_line(KNOWN[case])
    of, u = GENERATORS[NAMES[case.rsplit("_gauss_", 1)[0]]], log_p - log_q
    # Where r is large, f / r over p has the same value and no product of huge and tiny numbers.
    inner = torch.where(u <= 0, log_q.exp() * of.f(Ratio(u.clamp_max(0))), 0.0)
    outer = torch.where(u > 0, log_p.exp() * of.f(Ratio(u.clamp(0, 49))) / Ratio(u.clamp(0, 49)).r, 0.0)
    assert matches((inner + outer).sum() * step, KNOWN[case])
    whole = (0.5 * (log_p.exp() + log_q.exp()) * of.middle(Ratio(u))).sum() * step
    assert matches(whole, KNOWN[case])


@pytest.mark.parametrize("case", ["tv_gauss_1", "tv_gauss_2"])
def test_total_variation_of_gaussians(case: str) -> None:
    log_p, log_q, step = on_the_line(KNOWN[case])
    assert matches((log_q.exp() * total_variation(log_p - log_q)).sum() * step, KNOWN[case])


def test_kl_of_gaussians_in_the_plane() -> None:
    case = KNOWN["kl_gauss2d"]
    laws = [
        torch.distributions.MultivariateNormal(tensor(case["inputs"][m]).double(), tensor(case["inputs"][s]))
        for m, s in (("m1", "S1"), ("m2", "S2"))
    ]
    p = hermite([float(m) for m in case["inputs"]["m1"]], case["inputs"]["S1"], 20)
    u = laws[0].log_prob(p.x) - laws[1].log_prob(p.x)
    assert matches(p.weight @ (GENERATORS["kl"].f(Ratio(u)) / u.exp()), case)


def test_reverse_kl_of_the_generators_gaussian() -> None:
    q = hermite([1.0], [[4.0]], 60)
    u = log_normal(q.x[:, 0], 0.0, 1.0) - log_normal(q.x[:, 0], 1.0, 2.0)
    assert matches(q.weight @ GENERATORS["reverse_kl"].f(Ratio(u)), KNOWN["reverse_kl_gaussian"])


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_at_three_ratios(name: str) -> None:
    case = KNOWN[f"hweight_{name}"]
    assert matches(GENERATORS[WEIGHTS[name]].weight(Ratio(tensor(case["inputs"]["r"]).log())), case)


def test_weights_at_ratio_four_in_the_convention_of_f_distill() -> None:
    s = Ratio(tensor([4.0]).log())
    names = ["reverse_kl", "kl", "jensen_shannon", "softened_reverse_kl", "hellinger", "jeffreys"]
    got = torch.cat([GENERATORS[name].weight(s) for name in names])
    got[2] *= 2  # there JS is KL(p | m) + KL(q | m), without the half
    assert matches(got, KNOWN["f_distill_weights_r4"])


def slope(function, u: Tensor) -> Tensor:
    leaf = u.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(function(Ratio(leaf)).sum(), leaf)
    return grad


@pytest.mark.parametrize("name", GENERATORS)
def test_every_field_of_a_generator_follows_from_f(name: str) -> None:
    of, s = GENERATORS[name], Ratio(U)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)  # noqa: E731
    close(of.change(s), slope(of.f, U))
    close(of.slope(s) * s.r, of.change(s))
    close(of.dual(s), of.change(s) - of.f(s))
    close(of.weight(s), s.r * slope(of.slope, U))  # r^2 f'' = r df'/du
    close(of.middle(s), 2 * (of.f(s) - of.at_one * (s.r - 1)) / (1 + s.r))
    close(of.middle_change(s), slope(of.middle, U))
    at_one = Ratio(tensor([0.0]))
    assert of.slope(at_one).item() == pytest.approx(of.at_one, abs=1e-12)
    assert of.f(at_one).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_divergence_counted_in_the_middle_is_never_negative(name: str) -> None:
    assert (GENERATORS[name].middle(Ratio(U)) >= -1e-12).all()
    assert (never_negative(name, U) >= -1e-12).all()


@pytest.mark.parametrize("name", OTHER_WAY)
def test_the_other_direction_is_on_the_menu(name: str) -> None:
    there, back = GENERATORS[name], GENERATORS[OTHER_WAY[name]]
    torch.testing.assert_close(there.middle(Ratio(U)), back.middle(Ratio(-U)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back.weight(Ratio(U)), U.exp() * there.weight(Ratio(-U)), rtol=1e-9, atol=1e-12)
    assert there.symmetric == (name == OTHER_WAY[name])


@pytest.mark.parametrize("name", GENERATORS)
def test_nothing_overflows_however_far_the_laws_are_apart(name: str) -> None:
    far = tensor([-1e6, -800.0, 800.0, 1e6])
    of = GENERATORS[name]
    for field in (of.middle, of.middle_change, lambda s: slope(of.middle, s.u)):
        assert torch.isfinite(field(Ratio(far))).all()
    torch.testing.assert_close(of.middle_change(Ratio(far)), slope(of.middle, far))
    assert torch.isfinite(of.f(Ratio(far[:2]))).all()
    torch.testing.assert_close(of.change(Ratio(far[:2])), slope(of.f, far[:2]))


def test_known_log_density_and_score(path: str) -> None:
    inputs = KNOWN["kde_logdens"]["inputs"]
    got = Bumps(tensor(inputs["X"]), tensor(inputs["a"]), inputs["h"], path == "compiled")(tensor(inputs["at"]))
    assert matches(got.log, KNOWN["kde_logdens"])
    assert matches(got.score, KNOWN["kde_score"])
    by_autograd = log_density(tensor(inputs["at"]).requires_grad_(True), tensor(inputs["X"]), tensor(inputs["a"]), 0.7)
    assert matches(by_autograd.detach(), KNOWN["kde_logdens"])


def test_known_difference_of_scores(path: str) -> None:
    inputs = KNOWN["dmd_dir_kde"]["inputs"]
    at = tensor(inputs["at"])
    p, q = (
        Bumps(tensor(inputs[z]), tensor(inputs[w]), inputs["h"], path == "compiled")(at).score
        for z, w in (("Y", "b"), ("X", "a"))
    )
    assert matches(p - q, KNOWN["dmd_dir_kde"])


@pytest.mark.parametrize("d", [2, 12])
@pytest.mark.parametrize("h", [0.05, 0.6])
def test_densities_are_those_of_a_table(d: int, h: float, path: str) -> None:
    x, a, target = clouds(600, 450, d)
    b = Bumps(target.x, target.weight, h, path == "compiled")
    leaf = x.clone().requires_grad_(True)
    r2 = (leaf[:, None] - target.x).square().sum(2)
    table = (target.weight.log() - r2 / (2 * h * h)).logsumexp(1) - d / 2 * math.log(2 * math.pi * h * h)
    (score,) = torch.autograd.grad(table.sum(), leaf)
    got = b(x)
    torch.testing.assert_close(got.log, table.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(b.log(x), got.log, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.score, score, rtol=1e-6, atol=1e-6 * float(score.abs().max()))


@pytest.mark.parametrize("far", [0.0, 40.0])
def test_gradients_by_autograd_and_by_pull_are_those_of_a_table(far: float, path: str) -> None:
    x, a, target = clouds(30, 20, 2)
    z, h, c = target.x + far, 0.5, torch.randn(20, generator=seeded(3), dtype=torch.float64)
    x_leaf, z_leaf = x.clone().requires_grad_(True), z.clone().requires_grad_(True)
    table = (a.log() - (z_leaf[:, None] - x_leaf).square().sum(2) / (2 * h * h)).logsumexp(1)
    exact = torch.autograd.grad(c @ table, (x_leaf, z_leaf))
    tiled = torch.autograd.grad(c @ log_density(z_leaf, x_leaf, a, h), (x_leaf, z_leaf))
    bumps = Bumps(x, a, h, path == "compiled")
    for got, want in zip((*tiled, a[:, None] * bumps.pull(c, bumps.log(z), z)), (*exact, exact[0]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8 * float(want.abs().max()))


def test_scotts_width() -> None:
    y = tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 2.0], [1.0, 2.0]])
    assert scott(Cloud(y), 9.0) == pytest.approx(4 ** (-1 / 6))
    assert scott(Cloud(y[:1].repeat(3, 1)), 9.0) == 9.0


def test_a_value_led_by_a_velocity_has_minus_its_gradient() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(True)
    v, a = tensor([[5.0, 6.0], [7.0, 8.0]]), tensor([0.25, 0.75])
    value = led(x, tensor(9.0), v, a)
    (grad,) = torch.autograd.grad(value, x)
    assert value.item() == 9.0
    torch.testing.assert_close(grad, -a[:, None] * v)
