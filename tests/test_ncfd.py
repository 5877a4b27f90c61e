"""Neural characteristic function discrepancy: known values, amplitude and phase, learned frequencies, the sphere."""

import json
import math
from pathlib import Path

import pytest
import torch
from pair_cases import agrees, clouds, small, tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, velocity_of
from dmviz.losses import ncfd
from dmviz.losses._moments import smooth_root
from dmviz.losses._waves import Waves, by_frequency, waves
from dmviz.losses.ncfd import Ncfd

KNOWN = json.loads((Path(__file__).parent / "known" / "waves.json").read_text())


def at_frequencies(monkeypatch: pytest.MonkeyPatch, t: list[list[float]], alpha: float) -> Ncfd:
    monkeypatch.setattr(ncfd, "fixed_frequencies", lambda *_: tensor(t))
    return Ncfd(alpha=alpha, draw="fixed", median=False, bandwidth=1.0)


@pytest.mark.parametrize("case", ["ncfd_loss_a0.5", "ncfd_loss_a0.9"])
def test_known_clouds_at_known_frequencies(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = KNOWN[case]["inputs"]
    x, a, target = small(inputs)
    loss = at_frequencies(monkeypatch, inputs["t"], inputs["alpha"])
    assert agrees(loss(x, target, seeded(0), a).item(), KNOWN[case])
    assert agrees(velocity_of(loss, x, target, seeded(0), a).value.item(), KNOWN[case])


@pytest.mark.parametrize(("case", "alpha"), [("ncfd_amp", 1.0), ("ncfd_phase", 0.0)])
def test_amplitude_and_phase_alone(case: str, alpha: float) -> None:
    inputs = KNOWN[case]["inputs"]
    x, a, target = small(inputs)
    p, q = waves(x, a, tensor(inputs["t"])), waves(target.x, target.weight, tensor(inputs["t"]))
    assert (ncfd._square(p, q, alpha) - tensor(KNOWN[case]["value"])).abs().max() <= KNOWN[case]["tolerance"]


def test_two_points_at_one_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = at_frequencies(monkeypatch, [[1.0]], 0.5)
    assert agrees(loss(tensor([[0.0]]), Cloud(tensor([[1.0]])), seeded(0)).item(), KNOWN["ncfd_dirac"])


def test_two_points_at_three_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    case = KNOWN["ncfm_point_masses"]
    inputs = case["inputs"]
    loss = at_frequencies(monkeypatch, [[t] for t in inputs["t"]], inputs["alpha"])
    assert agrees(loss(tensor(inputs["syn"]), Cloud(tensor(inputs["real"])), seeded(0)).item(), case)


def test_amplitudes_do_not_see_a_shift_and_phases_do() -> None:
    x, a, _ = clouds(9, 8, 3)
    moved = Cloud(x + 0.3, a)
    assert Ncfd(alpha=1.0)(x, moved, seeded(0), a).item() < 1e-7
    assert Ncfd(alpha=0.0)(x, moved, seeded(0), a).item() > 0.05


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("draw", ["fresh", "fixed", "learned"])
def test_closed_form_is_autograd(alpha: float, normalise: bool, draw: str) -> None:
    x, a, target = clouds(12, 9, 3)
    x[2] = 0.0
    loss = Ncfd(alpha=alpha, normalise=normalise, draw=draw, frequencies=20)
    closed, auto = velocity_of(loss, x, target, seeded(2), a), autograd_velocity(loss, x, target, seeded(2), a)
    assert (closed.v - auto.v).abs().max() < 1e-10
    assert closed.value.item() == pytest.approx(auto.value.item(), abs=1e-12)


def test_gradient_is_the_slope_of_the_value() -> None:
    x, a, target = clouds(6, 5, 2)
    loss, step, rng = Ncfd(alpha=0.8, draw="fixed", normalise=True, frequencies=16), 1e-6, seeded(0)
    v = velocity_of(loss, x, target, rng, a).v
    for i, d in ((0, 0), (3, 1)):
        there = torch.zeros_like(x)
        there[i, d] = step
        slope = (loss(x + there, target, rng, a) - loss(x - there, target, rng, a)) / (2 * step)
        assert -(a[i] * v[i, d]).item() == pytest.approx(slope.item(), abs=1e-8)


def test_the_gradient_by_frequencies_is_autograd() -> None:
    x, a, _ = clouds(7, 5, 3)
    t = torch.randn(4, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    re, im = (t @ x.T).cos() @ a, (t @ x.T).sin() @ a
    by = Waves(torch.arange(4.0).double(), tensor([1.0, -1.0, 2.0, 0.5]))
    (auto,) = torch.autograd.grad((re * by.re + im * by.im).sum(), t)
    assert (by_frequency(x, a, t.detach(), by) - auto).abs().max() < 1e-12


def test_learned_frequencies_climb() -> None:
    x, a, target = clouds(60, 50, 2)
    few, many = (Ncfd(draw="learned", frequencies=1024, steps_up=k) for k in (1, 50))
    rise = [many(x, target, seeded(s), a).item() - few(x, target, seeded(s), a).item() for s in range(8)]
    assert sum(rise) / len(rise) > 0.003


def test_the_network_is_carried_and_never_changed_in_place() -> None:
    x, a, target = clouds(20, 15, 2)
    loss = Ncfd(draw="learned", frequencies=16, steps_up=2)
    field = aim(loss, target, a)
    one = field(x, seeded(1))
    kept = [p.clone() for p in one.carry.layers]
    two = field(x + 0.1, seeded(2), one.carry)
    assert (one.carry.steps, two.carry.steps) == (2, 4)
    assert all(torch.equal(p, q) for p, q in zip(one.carry.layers, kept, strict=True))
    again = field(x + 0.1, seeded(2), one.carry)
    assert torch.equal(two.v, again.v)


def test_learned_frequencies_stay_below_one_over_the_bandwidth() -> None:
    spoken = ncfd._spoken(torch.randn(500, 4, generator=seeded(0), dtype=torch.float64), ncfd._network(4, 0).layers)
    assert spoken.abs().max() < 1


@pytest.mark.parametrize(("asked", "spoken"), [(1, 2), (512, 32)])
def test_the_network_speaks_one_frequency_for_every_sixteen(asked: int, spoken: int) -> None:
    x, a, target = clouds(7, 6, 2)
    loss = Ncfd(draw="learned", frequencies=asked)
    there = loss._there(target)
    assert loss._heard(x - there.centre, a, there, seeded(0), None)[0].shape == (spoken, 2)


def test_the_root_is_smooth_down_to_zero() -> None:
    at = tensor([0.0, 0.5e-12, 1e-12 * (1 - 1e-9), 1e-12 * (1 + 1e-9), 4.0]).requires_grad_(True)
    value = smooth_root(at)
    (slope,) = torch.autograd.grad(value.sum(), at)
    assert value[0] == 0
    assert value[-1] == 2
    assert slope[0].item() == pytest.approx(1.5e6)
    assert slope[2].item() == pytest.approx(slope[3].item(), rel=1e-6)
    assert value[2].item() == pytest.approx(value[3].item(), rel=1e-6)


def test_on_the_sphere_only_directions_count() -> None:
    x, a, target = clouds(9, 8, 3)
    loss = Ncfd(normalise=True)
    there = loss(x, target, seeded(0), a)
    longer = loss(x * torch.linspace(0.1, 9, 9, dtype=x.dtype)[:, None], target, seeded(0), a)
    assert longer.item() == pytest.approx(there.item(), rel=1e-9)
    v = velocity_of(loss, x, target, seeded(0), a).v
    assert (v * x).sum(1).abs().max() < 1e-12


def test_half_is_the_mean_gap() -> None:
    x, a, target = clouds(9, 8, 2)
    loss = Ncfd(draw="fixed")
    there = loss._there(target)
    p, q = waves(x - there.centre, a, there.t), there.waves
    want = ((p.re - q.re).square() + (p.im - q.im).square()).sqrt().mean() / math.sqrt(2)
    assert loss(x, target, seeded(0), a).item() == pytest.approx(want.item(), rel=1e-9)
