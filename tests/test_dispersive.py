"""Dispersive loss: known values, what collapse and distance give, and the gradients of the four variants."""

import json
import math
from pathlib import Path

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.field import autograd_velocity, velocity_of
from dmviz.losses.dispersive import Dispersive

KNOWN = json.loads((Path(__file__).parent / "known" / "regularizers.json").read_text())
RNG = seeded(0)
VARIANTS = ["infonce_l2", "infonce_cosine", "hinge", "covariance"]


def tensor(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def score(loss: Dispersive, x: torch.Tensor, weight: torch.Tensor | None = None) -> float:
    return loss(x, Cloud(x), RNG, weight).item()


@pytest.fixture(params=["eager", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DMVIZ_COMPILE", "0" if request.param == "eager" else "1")
    return request.param


@pytest.mark.parametrize("case", [name for name in KNOWN if name.startswith("dispersive")])
def test_known_arrays(case: str, path: str) -> None:
    inputs = KNOWN[case]["inputs"]
    loss = Dispersive(
        variant="infonce_cosine" if "cos" in case else "infonce_l2",
        tau=inputs["tau"],
        divide_by_dim=inputs.get("divide_by_dim", False),
    )
    x = tensor(inputs["z"])
    assert score(loss, x) == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])
    leaf = x.clone().requires_grad_(True)  # the path that autograd goes
    assert loss(leaf, Cloud(x), RNG).item() == pytest.approx(KNOWN[case]["value"], abs=KNOWN[case]["tolerance"])


def test_collapse_is_the_worst_and_no_contact_the_best(path: str) -> None:
    same, apart = torch.ones(7, 3, dtype=torch.float64), 100.0 * torch.eye(7, dtype=torch.float64)
    assert score(Dispersive(), same) == pytest.approx(0.0, abs=1e-12)
    assert score(Dispersive("infonce_cosine", tau=0.2), same) == pytest.approx(5.0)
    assert score(Dispersive("hinge", margin=2.0), same) == pytest.approx(16.0)
    assert score(Dispersive("covariance"), same) == pytest.approx(0.0, abs=1e-12)
    assert score(Dispersive(), apart) == pytest.approx(-math.log(7))
    assert score(Dispersive("hinge", margin=2.0), apart) == pytest.approx(16.0 / 7)  # each with itself


def test_the_margin_lets_go() -> None:
    x = tensor([[0.0], [1.0], [9.0]])
    v = velocity_of(Dispersive("hinge", margin=2.0), x, Cloud(x), RNG).v[:, 0]
    assert v.tolist() == pytest.approx([-8.0, 8.0, 0.0])  # 2/3 * 4 * (4 - 1) * 1, with weights 1/3


def test_covariance_by_hand() -> None:
    x = tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])
    off = 1.0 * 2 / 4 - 0.5 * 0.0  # mean of products less product of means
    assert score(Dispersive("covariance"), x) == pytest.approx(2 * off**2)
    line = tensor([[1.0], [5.0]])
    assert score(Dispersive("covariance"), line) == 0.0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("d", [2, 12])
def test_velocity_is_minus_gradient_over_weight_in_several_tiles(variant: str, d: int, path: str) -> None:
    x = torch.randn(700, d, generator=seeded(d), dtype=torch.float64)
    x[5] = x[4]
    a = torch.rand(700, generator=seeded(3), dtype=torch.float64)
    a = a / a.sum()
    loss = Dispersive(variant, tau=0.8, margin=1.5)
    closed, auto = (f(loss, x, Cloud(x), RNG, a) for f in (velocity_of, autograd_velocity))
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-10)
    assert (closed.v - auto.v).abs().max() <= 1e-8 * auto.v.abs().max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_is_that_of_finite_differences(variant: str) -> None:
    x = torch.randn(6, 3, generator=seeded(9), dtype=torch.float64)
    loss, step = Dispersive(variant, tau=1.3, margin=2.0), 1e-6
    v = velocity_of(loss, x, Cloud(x), RNG).v
    for i, j in ((0, 0), (3, 2), (5, 1)):
        bump = torch.zeros_like(x)
        bump[i, j] = step
        slope = (score(loss, x + bump) - score(loss, x - bump)) / (2 * step)
        assert v[i, j].item() == pytest.approx(-6 * slope, abs=1e-7)


def test_weights_count_as_repeated_points(path: str) -> None:
    x = torch.randn(4, 2, generator=seeded(1), dtype=torch.float64)
    twice, weight = torch.cat([x, x[:1]]), tensor([0.4, 0.2, 0.2, 0.2])
    for variant in VARIANTS:
        assert score(Dispersive(variant), x, weight) == pytest.approx(score(Dispersive(variant), twice), abs=1e-12)
