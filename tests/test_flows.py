"""Flows against exact solutions: each reads its right value from tests/known/flows_values.json."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dmviz.catalog import entry_class, menu
from dmviz.cloud import Cloud, seeded
from dmviz.field import aim
from dmviz.flows.adam import Adam
from dmviz.flows.euler import Euler
from dmviz.flows.heavy_ball import HeavyBall
from dmviz.flows.langevin import Langevin
from dmviz.flows.noise_injection import NoiseInjection
from dmviz.flows.svgd import Svgd, median_bandwidth, stein_direction
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.ksd import Ksd
from dmviz.losses.mmd import Mmd
from dmviz.losses.sinkhorn import Sinkhorn
from dmviz.losses.sliced_wasserstein import SlicedWasserstein
from dmviz.losses.wasserstein import Wasserstein

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "known" / "flows_values.json").read_text())
NORMAL = Cloud(torch.zeros(1, 1, dtype=torch.float64), score=lambda z: -z)


def t64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flowed(flow: Any, loss: Any, x: Tensor, target: Cloud, steps: int, weight: Tensor | None = None) -> Any:
    field = aim(loss, target, weight)
    state = flow.init(x, field, seeded(0))
    for step in range(steps):
        state, _ = flow.step(state, field, seeded(0, step))
    return state


def euler(time: float, steps: int) -> Euler:
    return Euler(dt=time / steps, steps="fixed")


def quantiles(mean: float, std: float, n: int = 400) -> Tensor:
    """(n, 1) the mid-quantiles of a Gaussian: a cloud that is Gaussian as exactly as n points can be."""
    levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return (mean + std * math.sqrt(2) * torch.erfinv(2 * levels - 1))[:, None]


def test_w2_flow_halves_the_way_at_the_exact_rate() -> None:
    x, y = (
        torch.randn(30, 2, generator=seeded(1), dtype=torch.float64),
        torch.randn(30, 2, generator=seeded(2)).double(),
    )
    # dmviz flows W2^2, twice the functional W2^2 / 2 of the known value: the same path in half the time.
    steps = 400
    state = flowed(euler(0.5, steps), Wasserstein(), x, Cloud(y), steps)
    field = aim(Wasserstein(), Cloud(y))
    left = float((field(state.x, seeded(0)).value / field(x, seeded(0)).value).sqrt())
    assert left == pytest.approx(KNOWN["flow_w2"]["value"], rel=2e-3)  # Euler: O(dt)
    assert left == pytest.approx((1 - 1 / steps) ** steps, rel=1e-9)  # the scheme itself, exactly


def test_w2_flow_between_gaussians_on_a_line() -> None:
    known = KNOWN["flow_w2_bures"]
    x, y = quantiles(3, 0.5), quantiles(0, 2)
    state = flowed(euler(0.5, 1000), Wasserstein(), x, Cloud(y), 1000)
    shape = quantiles(0, 1).std(correction=0)  # the quantile cloud is a little narrower than its law
    assert float(state.x.mean()) == pytest.approx(known["value"][0], rel=1e-3)
    assert float(state.x.std(correction=0) / shape) == pytest.approx(known["value"][1], rel=1e-3)


def test_sliced_flow_is_slower_by_the_dimension() -> None:
    """On a line d = 1 and the rate is 1; in the plane, with a full orthogonal frame, a shift decays at rate 1/2."""
    known = KNOWN["flow_sw2_iso"]["value"]
    x, y = torch.randn(2000, 2, generator=seeded(3)).double(), torch.randn(2000, 2, generator=seeded(4)).double()
    x, y = [(z - z.mean(0)) @ whiten(z) for z in (x, y)]
    source, target = 0.5 * x + t64([3.0, 0.0]), 2.0 * y
    loss = SlicedWasserstein(draw="fixed", slices=64)
    state = flowed(euler(0.5, 200), loss, source, Cloud(target), 200)
    assert float(state.x[:, 0].mean()) == pytest.approx(known[0], rel=3e-3)
    assert float(state.x.std(0, correction=0).mean()) == pytest.approx(known[1], rel=2e-2)  # 2,000 points: a sample


def whiten(z: Tensor) -> Tensor:
    covariance = torch.cov(z.T, correction=0)
    return torch.linalg.inv(torch.linalg.cholesky(covariance)).T


def test_mmd_flow_of_one_particle() -> None:
    known = KNOWN["flow_mmd_rbf_dirac"]
    state = flowed(euler(1.0, 4000), Mmd(bandwidth=1.0, median=False), t64([[1.0]]), Cloud(t64([[0.0]])), 4000)
    assert float(state.x) == pytest.approx(known["value"], rel=1e-3)


def test_energy_flow_of_one_particle_has_constant_speed() -> None:
    state = flowed(euler(1.0, 50), EnergyDistance(), t64([[3.0]]), Cloud(t64([[0.0]])), 50)
    assert float(state.x) == pytest.approx(KNOWN["flow_energy_dirac"]["value"], abs=1e-12)


@pytest.mark.parametrize("kernel", ["gaussian", "imq"])
def test_ksd_flow_of_one_particle(kernel: str) -> None:
    state = flowed(euler(0.5, 2000), Ksd(kernel=kernel, bandwidth=1.0), t64([[2.0]]), NORMAL, 2000)
    assert float(state.x) == pytest.approx(KNOWN["flow_ksd_single"]["value"], rel=1e-3)


def test_svgd_of_one_particle_climbs_to_the_peak() -> None:
    flow = Svgd(dt=1 / 2000, kernel="fixed", bandwidth=1.0)
    state = flowed(flow, EnergyDistance(), t64([[2.0]]), NORMAL, 2000)
    assert float(state.x) == pytest.approx(KNOWN["flow_svgd_single"]["value"], rel=1e-3)


@pytest.mark.parametrize("blur", [0.3, 3.0])
def test_sinkhorn_flow_of_a_shift_decays_at_rate_one_at_every_blur(blur: float) -> None:
    x = torch.randn(12, 2, generator=seeded(1), dtype=torch.float64)
    shift, steps = t64([3.0, -1.5]), 200
    loss = Sinkhorn(blur=blur)
    state = flowed(euler(1.0, steps), loss, x, Cloud(x + shift), steps)
    left = float((x + shift - state.x).norm(dim=1).mean() / shift.norm())
    assert left == pytest.approx((1 - 1 / steps) ** steps, rel=5e-3)
    assert left == pytest.approx(KNOWN["flow_sinkhorn_translation"]["value"], rel=1e-2)


def test_langevin_reaches_the_ornstein_uhlenbeck_law() -> None:
    mean, variance = KNOWN["flow_ou"]["value"]
    x = 3 + 0.5 * torch.randn(200_000, 1, generator=seeded(5), dtype=torch.float64)
    state = flowed(Langevin(dt=1 / 400), EnergyDistance(), x, NORMAL, 400)
    # Sampling error of 200,000 draws is 0.002 and 0.003; the scheme's own error is of order dt.
    assert float(state.x.mean()) == pytest.approx(mean, abs=0.01)
    assert float(state.x.var()) == pytest.approx(variance, abs=0.015)


def test_langevin_without_temperature_is_plain_ascent() -> None:
    state = flowed(Langevin(dt=0.01, temperature=0.0), EnergyDistance(), t64([[2.0]]), NORMAL, 100)
    assert float(state.x) == pytest.approx(2 * 0.99**100, rel=1e-12)


@pytest.mark.parametrize("name", ["svgd_dir_l1.0", "svgd_dir_l2.0"])
def test_svgd_directions(name: str) -> None:
    known = KNOWN[name]
    x = t64(known["inputs"]["X"])
    assert torch.allclose(stein_direction(x, -x, known["inputs"]["l"]), t64(known["value"]), atol=known["tolerance"])


def test_svgd_bandwidth_is_the_authors() -> None:
    known = KNOWN["svgd_median_h"]
    assert median_bandwidth(t64(known["inputs"]["X"])) == pytest.approx(known["value"], abs=known["tolerance"])


def test_svgd_of_repeated_points_is_svgd_with_weights() -> None:
    x = torch.randn(5, 3, generator=seeded(1), dtype=torch.float64)
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4])
    weight = t64([3, 2, 1, 1, 1]) / 8
    many = stein_direction(x[rows], -x[rows], 0.7)
    few = stein_direction(x, -x, 0.7, weight)
    # Both are centred on their own mean, which cancels out.
    assert torch.allclose(many[[0, 3, 5, 6, 7]], few, atol=1e-12)


@pytest.mark.parametrize("d", [2, 20])
def test_svgd_blocks_do_not_change_the_direction(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(70, d, generator=seeded(1), dtype=torch.float64)
    whole = stein_direction(x, -x, 0.5)
    monkeypatch.setattr("dmviz.flows.svgd.SIDE", 16)
    assert torch.allclose(stein_direction(x, -x, 0.5), whole, atol=1e-14)


def test_noise_moves_the_place_of_the_question_not_the_particles() -> None:
    known = KNOWN["mmd2_rbf_l1_noise_velocity"]
    given = known["inputs"]
    x, target = t64(given["X"]), Cloud(t64(given["Y"]), t64(given["b"]))
    field = aim(Mmd(bandwidth=1.0, median=False), target, t64(given["a"]))
    pull = field.probe(x + given["beta"] * t64(given["u"]), x, seeded(0))
    assert torch.allclose(pull, t64(known["value"]), atol=known["tolerance"])


def test_noise_injection_without_noise_is_euler() -> None:
    x, y = torch.randn(20, 2, generator=seeded(1)).double(), torch.randn(20, 2, generator=seeded(2)).double() + 1
    loss = Mmd(bandwidth=1.0, median=False)
    quiet = flowed(NoiseInjection(dt=0.1, noise=0.0), loss, x, Cloud(y), 20)
    plain = flowed(euler(2.0, 20), loss, x, Cloud(y), 20)
    assert torch.allclose(quiet.x, plain.x, atol=1e-12)


def test_noise_injection_halves_its_noise() -> None:
    x, loss = torch.zeros(4000, 1, dtype=torch.float64), EnergyDistance()
    flow = NoiseInjection(dt=1e-4, noise=1.0, half_life=2)
    field = aim(loss, Cloud(t64([[0.0]])))
    asked: list[float] = []

    class Watching:
        weight, target, score, value, tangent = None, field.target, field.score, field.value, field.tangent
        hold = staticmethod(lambda z: z)

        def __call__(self, *args: Any) -> Any:
            return field(*args)

        def probe(self, at: Tensor, among: Tensor, rng: torch.Generator) -> Tensor:
            asked.append(float((at - among).std()))
            return field.probe(at, among, rng)

    state = flow.init(x, Watching(), seeded(0))
    for step in range(6):
        state, _ = flow.step(state, Watching(), seeded(1, step))
    assert asked == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25], rel=0.05)


def test_heavy_ball_without_momentum_is_euler_and_with_it_follows_the_recursion() -> None:
    x, target = t64([[3.0], [5.0]]), Cloud(t64([[0.0], [1.0]]))
    rest = flowed(HeavyBall(dt=0.01, momentum=0.0, steps="fixed"), Wasserstein(), x, target, 10)
    plain = flowed(Euler(dt=0.01, steps="fixed"), Wasserstein(), x, target, 10)
    assert torch.allclose(rest.x, plain.x, atol=1e-14)
    rolling = flowed(HeavyBall(dt=0.01, momentum=0.8, steps="fixed"), Wasserstein(), x, target, 25)
    place, move = x.clone(), torch.zeros_like(x)
    for _ in range(25):
        move = 0.8 * move + 0.01 * 2 * (target.x - place)
        place = place + move
    assert torch.allclose(rolling.x, place, atol=1e-12)


def test_adam_matches_the_optimiser_of_torch() -> None:
    x, target = t64([[3.0, -1.0], [5.0, 2.0]]), Cloud(t64([[0.0, 0.0], [1.0, 1.0]]))
    mine = flowed(Adam(lr=0.1, steps="fixed"), Wasserstein(), x, target, 30)
    leaf = x.clone().requires_grad_(True)
    theirs = torch.optim.Adam([leaf], lr=0.1, eps=1e-8)
    field = aim(Wasserstein(), target)
    for _ in range(30):
        leaf.grad = -field(leaf.detach(), seeded(0)).v
        theirs.step()
    assert torch.allclose(mine.x, leaf.detach(), atol=1e-9)


SMOOTH = [
    Mmd(bandwidth=1.0, median=False),
    Wasserstein(),
    SlicedWasserstein(draw="fixed"),
    EnergyDistance(),
    Sinkhorn(blur=0.5),
]


@pytest.mark.parametrize("loss", SMOOTH, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dt", [0.01, 1e3])
def test_adaptive_euler_never_lets_a_deterministic_loss_rise(loss: Any, dt: float) -> None:
    x, y = torch.randn(40, 2, generator=seeded(1)).double() - 2, torch.randn(30, 2, generator=seeded(2)).double() + 2
    field = aim(loss, Cloud(y))
    flow = Euler(dt=dt)
    state = flow.init(x, field, seeded(0))
    values, halved = [float(state.value)], False
    for step in range(40):
        state, info = flow.step(state, field, seeded(0, step))
        values.append(float(state.value))
        halved |= "halved" in info.note
    settled = [b <= a * (1 + 1e-6) + 1e-9 for a, b in itertools.pairwise(values[12:])]
    assert all(settled)  # 12 steps of 4 halvings reach any stable step size
    assert values[-1] < values[0]
    assert halved or dt < 1


@pytest.mark.parametrize("flow", [Euler(dt=1e3), HeavyBall(dt=1e3), Adam(lr=10.0)], ids=lambda f: type(f).__name__)
def test_adaptive_steps_say_so_when_they_shrink(flow: Any) -> None:
    x, y = torch.randn(40, 2, generator=seeded(1)).double(), torch.randn(40, 2, generator=seeded(2)).double() + 1
    field = aim(SlicedWasserstein(), Cloud(y))
    state = flow.init(x, field, seeded(0))
    notes = []
    for step in range(30):
        state, info = flow.step(state, field, seeded(0, step))
        notes.append(info.note)
    assert torch.isfinite(state.x).all()
    assert float(state.value) < 100
    assert any("halved" in note for note in notes)


@pytest.mark.parametrize("name", menu("flows"))
@pytest.mark.parametrize("hold", ["free", "box", "sphere"])
def test_a_step_changes_none_of_its_inputs_and_keeps_to_its_bounds(name: str, hold: str, device: str) -> None:
    flow = entry_class("flows", name)()
    x = torch.randn(25, 3, generator=seeded(1)).to(device)
    target = Cloud((torch.randn(20, 3, generator=seeded(2)) + 1).to(device), score=lambda z: 1 - z)
    field = aim(EnergyDistance(), target, None, hold, 1.5)  # type: ignore[arg-type]
    state = flow.init(x, field, seeded(0))
    before = [part.clone() if isinstance(part, Tensor) else part for part in state]
    once, _ = flow.step(state, field, seeded(0, 1))
    again, _ = flow.step(state, field, seeded(0, 1))
    for old, new in zip(before, state, strict=True):
        assert old is new or not isinstance(old, Tensor) or torch.equal(old, new) or bool(old.isnan().all())
    assert torch.equal(once.x, again.x)
    if hold == "box":
        assert float(once.x.abs().max()) <= 1.5
    if hold == "sphere":
        assert torch.allclose(once.x.norm(dim=1), torch.full((25,), 1.5, device=once.x.device), atol=1e-5)
        assert float((once.v * once.x).sum(1).abs().max()) <= 1e-4
