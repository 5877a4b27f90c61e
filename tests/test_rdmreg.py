"""RDMReg: the rectified law's numbers, its draws, and particles that take it on."""

import json
from pathlib import Path

import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses.rdmreg import RdmReg, active_fraction, gennorm_sigma, rectified_moments, rectified_sigma
from dmviz.losses.sliced_wasserstein import SlicedWasserstein

KNOWN = json.loads((Path(__file__).parent / "known" / "regularizers.json").read_text())
RNG = seeded(0)


def tensor(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def law(p: float, mean: float, sigma: float) -> stats.rv_continuous:
    return stats.gennorm(p, loc=mean, scale=p ** (1 / p) * sigma)


@pytest.mark.parametrize("case", [name for name in KNOWN if name.startswith("rgg_active")])
def test_known_active_fractions(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    sigma = gennorm_sigma(inputs["p"])
    assert sigma == pytest.approx(inputs["sigma_value"])
    got = active_fraction(inputs["p"], inputs["mu"], sigma)
    assert got == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])
    loss = RdmReg(p=float(inputs["p"]), mean=float(inputs["mu"]))
    assert loss.expected_active(32) == pytest.approx(32 * KNOWN[case]["value"])


def test_known_widths() -> None:
    case = KNOWN["rgg_sigma_GN"]
    for p, value in zip(case["inputs"]["p"], case["value"], strict=True):
        assert gennorm_sigma(p) == pytest.approx(value, abs=case["tolerance"])


@pytest.mark.parametrize("case", [name for name in KNOWN if name.startswith("rgg_mean_var")])
def test_known_mean_and_variance(case: str) -> None:
    inputs = KNOWN[case]["inputs"]
    got = RdmReg(p=float(inputs["p"]), mean=float(inputs["mu"])).mean_and_variance()
    assert got == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


@pytest.mark.parametrize("p", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.8])
def test_moments_are_integrals_of_the_density(p: float, mean: float) -> None:
    sigma = 1.3

    def moment(k: int) -> float:
        density = law(p, mean, sigma).pdf
        return quad(lambda z: z**k * density(z), 0, 3000, points=[max(mean, 0.0), 10, 100], limit=200)[0]

    got = rectified_moments(p, mean, sigma)
    assert got == pytest.approx((moment(1), moment(2) - moment(1) ** 2), abs=1e-6)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 2.0])
def test_variance_is_one_after_the_cut_where_that_is_asked_for(mean: float) -> None:
    for p in (0.5, 1.0, 2.0):
        assert rectified_moments(p, mean, rectified_sigma(p, mean))[1] == pytest.approx(1.0, abs=1e-10)
        assert RdmReg(p=p, mean=mean, width="after", scale=3.0).mean_and_variance()[1] == pytest.approx(9.0)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0])
def test_draws_have_the_law(p: float) -> None:
    loss = RdmReg(p=p, mean=0.5)
    z = loss.sample(20_000, 1, seeded(4))[:, 0].numpy()
    assert (z > 0).mean() == pytest.approx(loss.expected_active(1), abs=0.012)  # three standard errors
    below = lambda t: law(p, 0.5, loss.sigma).cdf(t)  # noqa: E731
    positive = z[z > 0]
    share = (below(positive) - below(0.0)) / (1 - below(0.0))
    assert stats.kstest(share, "uniform").pvalue > 1e-3


def test_known_transport_on_a_line() -> None:
    case = KNOWN["sorted_w2sq_1d"]
    a, b = (tensor(case["inputs"][k])[:, None] for k in "ab")
    got = SlicedWasserstein()(a, Cloud(b), RNG).item()
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def test_known_value_of_a_shift_is_exact_over_whole_frames() -> None:
    case = KNOWN["sliced_w2sq_shift_expectation"]
    x = RdmReg(mean=1.0).sample(50, case["inputs"]["d"], seeded(1))
    loss = SlicedWasserstein(slices=3, directions="orthogonal")
    got = loss(x, Cloud(x + tensor(case["inputs"]["shift"])), RNG).item()
    assert got == pytest.approx(case["value"], abs=case["tolerance"])


def test_on_a_line_the_loss_is_the_sorted_difference_to_its_own_draw() -> None:
    loss, x = RdmReg(draw="fixed", draw_seed=3), torch.randn(40, 1, generator=seeded(2), dtype=torch.float64)
    y = loss.sample(40, 1, seeded(3, 52))
    expected = (x[:, 0].sort().values - y[:, 0].sort().values).square().mean()
    assert loss(x, Cloud(x), RNG).item() == pytest.approx(expected.item())
    assert loss(y.flip(0), Cloud(x), RNG).item() == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("rectify", [False, True])
def test_velocity_is_minus_gradient_over_weight(rectify: bool) -> None:
    x = torch.randn(30, 3, generator=seeded(2), dtype=torch.float64)
    x[3] = x[2]
    a = torch.rand(30, generator=seeded(3), dtype=torch.float64)
    loss = RdmReg(rectify=rectify, slices=16)
    closed, auto = (f(loss, x, Cloud(x), seeded(5), a / a.sum()) for f in (velocity_of, autograd_velocity))
    assert torch.allclose(closed.v, auto.v, atol=1e-9)
    assert not rectify or (closed.v[x < 0] == 0).all()


def test_the_floor_falls_with_the_number_of_points() -> None:
    loss = RdmReg(mean=0.5)
    few, many = (loss(loss.sample(n, 2, seeded(n)), Cloud(torch.zeros(1, 2)), seeded(7)).item() for n in (50, 5000))
    assert 0 < many < few / 20


def test_particles_become_as_sparse_as_the_formula_says() -> None:
    loss = RdmReg(mean=-0.5, slices=32)
    x = torch.randn(600, 3, generator=seeded(8))
    field = aim(loss, Cloud(x))
    for k in range(60):
        x = x + 1.5 * (1.0 if k < 40 else 0.2) * field(x, seeded(k)).v
    near_zero = (x > 0.05).float().mean().item() * 3
    assert near_zero == pytest.approx(loss.expected_active(3), abs=0.12)


def test_both_precisions_see_the_same_draw() -> None:
    x = torch.randn(20, 2, generator=seeded(1), dtype=torch.float64).float()
    narrow, wide = (RdmReg()(z, Cloud(z), seeded(9)).item() for z in (x, x.double()))
    assert narrow == pytest.approx(wide, rel=1e-5)
