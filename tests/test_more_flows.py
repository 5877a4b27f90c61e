"""Second-order, noisy and sampling flows against exact solutions; right values from tests/known/flows_more.json."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim
from dmviz.flows.euler import Euler
from dmviz.flows.lbfgs import Lbfgs, Past, bent, product
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.ksd import Ksd
from dmviz.losses.mmd import Mmd
from dmviz.losses.sinkhorn import Sinkhorn
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.losses.wasserstein import Wasserstein
from dmviz.run import Setup

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "known" / "flows_more.json").read_text())


def t64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal_law(d: int = 1, spread: float = 1.0) -> Cloud:
    """N(0, spread^2 I) by its density alone."""
    return Cloud(
        torch.zeros(1, d, dtype=torch.float64),
        score=lambda z: -z / spread**2,
        log_prob=lambda z: -0.5 * z.square().sum(1) / spread**2 - d * math.log(spread * math.sqrt(2 * math.pi)),
    )


def gauss(n: int, d: int = 1, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def quantiles(n: int) -> Tensor:
    """(n, 1) mid-quantiles of N(0, 1)."""
    return torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)[:, None]


def flowed(flow: Any, loss: Any, x: Tensor, target: Cloud, steps: int, weight: Tensor | None = None) -> list[Any]:
    """All states, the first at the start."""
    field = aim(loss, target, weight)
    states = [flow.init(x, field, seeded(0))]
    for step in range(steps):
        states.append(flow.step(states[-1], field, seeded(0, step))[0])
    return states


def euler(time: float, steps: int) -> Euler:
    return Euler(dt=time / steps, steps="fixed")


# ------------------------------------------------------------------------------------------------ L-BFGS, backtracking


def test_lbfgs_is_exact_on_a_bowl_after_one_pair() -> None:
    """W2^2 between matched clouds is a bowl of curvature 2: one step along v, and the next lands on the target."""
    x, y = gauss(12, 2), gauss(12, 2, seed=2)
    last = flowed(Lbfgs(dt=0.1), Wasserstein(), x, Cloud(y), 2)[-1]
    assert float(last.value) < 1e-20
    assert last.time == 2.0


def test_the_two_loops_agree_with_the_recursion_of_bfgs() -> None:
    n, d, pairs = 3, 2, 4
    mass, v = t64([0.5, 0.3, 0.2]), gauss(n, d)
    bend = gauss(n * d, n * d, seed=9)
    bend = bend @ bend.T + torch.eye(n * d, dtype=torch.float64)
    wide = mass.repeat_interleave(d)  # the matrix of the inner product is its diagonal
    bend = bend / wide[:, None]  # so that <s, bend s> is symmetric in it
    moves = [gauss(n, d, seed=20 + k) for k in range(pairs)]
    turns = [(bend @ s.flatten()).view(n, d) for s in moves]
    s, y = moves[-1].flatten(), turns[-1].flatten()
    h = torch.eye(n * d, dtype=torch.float64) * float((wide * s) @ y / ((wide * y) @ y))
    eye = torch.eye(n * d, dtype=torch.float64)
    for move, turn in zip(moves, turns, strict=True):
        s, y = move.flatten(), turn.flatten()
        rho = 1 / ((wide * y) @ s)
        h = (eye - rho * torch.outer(s, wide * y)) @ h @ (eye - rho * torch.outer(y, wide * s)) + rho * torch.outer(
            s, wide * s
        )
    assert torch.allclose(bent(v, Past(tuple(moves), tuple(turns)), mass).flatten(), h @ v.flatten(), atol=1e-10)
    assert product(v, v, mass) == pytest.approx(float(mass @ v.square().sum(1)))


@pytest.mark.parametrize("kernel", ["gaussian", "imq"])
def test_lbfgs_descends_ksd_far_below_what_the_same_number_of_gradients_reaches(kernel: str) -> None:
    target = normal_law(2)
    skewed = Cloud(target.x, score=lambda z: -z * t64([1.0, 16.0]))  # N(0, diag(1, 1/16))
    x, loss = 0.5 * gauss(40, 2) + 1.0, Ksd(kernel=kernel, bandwidth=1.0)
    fast = [float(s.value) for s in flowed(Lbfgs(), loss, x, skewed, 60)]
    slow = [float(s.value) for s in flowed(Euler(dt=0.02), loss, x, skewed, 120)]
    assert all(after <= before for before, after in itertools.pairwise(fast))
    assert fast[-1] < 0.7 * slow[-1]


def test_backtracking_euler_descends_ksd_to_a_cloud_with_the_moments_of_its_target() -> None:
    """Adaptive Euler is the backtracking line search: a first step 100 times too long still only goes down."""
    x, loss = 0.5 * gauss(60) + 2.0, Ksd(bandwidth=1.0)
    states = flowed(Euler(dt=10.0), loss, x, normal_law(), 200)
    values = [float(s.value) for s in states]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(values[12:]))
    assert values[-1] < 1e-2 * values[0]
    assert abs(float(states[-1].x.mean())) < 1e-3
    assert float(states[-1].x.std(correction=0)) == pytest.approx(1.0, abs=0.1)  # a 60-point optimum, not the law


@pytest.mark.parametrize(
    "loss",
    [Mmd(bandwidth=1.0, median=False), SlicedWasserstein(draw="fixed"), Sinkhorn(blur=0.5), EnergyDistance()],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("dt", [1e-3, 1e3])
def test_lbfgs_never_lets_the_loss_rise_whatever_the_first_step(loss: Any, dt: float) -> None:
    x, y = gauss(30, 2) - 1, gauss(25, 2, seed=2) + 1
    values = [float(s.value) for s in flowed(Lbfgs(dt=dt), loss, x, Cloud(y), 30)]
    assert all(after <= before * (1 + 1e-6) + 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] < 0.2 * values[0]


def test_lbfgs_of_repeated_particles_is_lbfgs_with_weights() -> None:
    few, rows, weight = gauss(5, 2), torch.tensor([0, 0, 0, 1, 1, 2, 3, 4]), t64([3, 2, 1, 1, 1]) / 8
    y, loss = Cloud(gauss(6, 2, seed=3) + 1), Mmd(bandwidth=1.5, median=False)
    heavy = flowed(Lbfgs(), loss, few, y, 12, weight)[-1].x
    many = flowed(Lbfgs(), loss, few[rows], y, 12)[-1].x
    assert torch.allclose(many, heavy[rows], atol=1e-7)


def test_lbfgs_at_rest_stays_and_says_so() -> None:
    y = gauss(8, 2)
    field, flow = aim(Wasserstein(), Cloud(y)), Lbfgs()
    state, info = flow.step(flow.init(y.clone(), field, seeded(0)), field, seeded(1))
    assert torch.equal(state.x, y)
    assert "Stayed in place" in info.note


def test_lbfgs_says_when_its_past_misleads_and_forgets_it() -> None:
    x, y = gauss(10, 1), Cloud(gauss(10, 1, seed=2))
    field, flow = aim(Wasserstein(), y), Lbfgs()
    state = flow.init(x, field, seeded(0))
    upside_down = Past((state.v,), (-state.v,))
    state, info = flow.step(state._replace(memory=upside_down), field, seeded(1))
    assert "Followed the plain velocity" in info.note
    assert len(state.memory.moves) == 1


def test_lbfgs_is_refused_for_a_loss_that_is_drawn_anew() -> None:
    with pytest.raises(ValueError, match=r"^L-BFGS compares past steps, and Sliced Wasserstein.* is drawn anew"):
        Setup(loss=SlicedWasserstein(), flow=Lbfgs())
    Setup(loss=SlicedWasserstein(draw="fixed"), flow=Lbfgs())
