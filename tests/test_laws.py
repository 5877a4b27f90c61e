"""Every law that a loss declares, tried over random clouds; no loss is named here."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dmviz.catalog import entry_class, menu
from dmviz.cloud import Cloud, seeded
from dmviz.field import aim, autograd_velocity, dims_of, drives, velocity_of
from dmviz.params import Range, params_of

LOSSES = menu("losses")
WITH_SAMPLES = [name for name in LOSSES if entry_class("losses", name).needs == "samples"]


def variants(name: str) -> list[Any]:
    """The loss as it comes, and with each choice and switch changed once."""
    cls = entry_class("losses", name)
    found = [cls()]
    for param in params_of(cls):
        options = param.choices if param.kind == "choice" else (not param.default,) if param.kind == "bool" else ()
        for option in options:
            if option != param.default:
                try:
                    found.append(cls(**{param.name: option}))
                except ValueError:
                    continue  # a combination that the loss itself refuses
    return found


VARIANTS = [v for name in LOSSES for v in variants(name)]
SAMPLED = [v for v in VARIANTS if v.needs == "samples"]
SCORELESS = [v for v in VARIANTS if v.needs != "score"]  # clouds can be moved and scaled without a law to move along
DRIVING = [v for v in VARIANTS if drives(v)]  # the others only judge: there is no gradient to try


def tag(loss: Any) -> str:
    return repr(loss).replace(" ", "")[:90]


def claims(law: str, among: list[Any]) -> list[Any]:
    return [loss for loss in among if law in loss.laws]


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> tuple[Tensor, Tensor, Cloud]:
    """Particles with weights and a target: repeated points, n != m, one to five dimensions, scales 1e-3 to 1e3."""
    d, n, m = draw(st.integers(1, 5)), draw(st.integers(1, most)), draw(st.integers(1, most))
    scale = 10.0 ** draw(st.integers(-3, 3))
    seed = draw(st.integers(0, 10_000))
    r = np.random.default_rng(seed)
    x, y = r.normal(size=(n, d)), r.normal(size=(m, d)) + r.normal(size=d)
    if draw(st.booleans()):
        x[r.integers(n)] = x[0]  # a repeated point
        y[r.integers(m)] = x[0]  # and one that meets a particle
    a, b = r.dirichlet(np.ones(n)), r.dirichlet(np.ones(m))
    as_tensor = lambda z: torch.tensor(z, dtype=torch.float64)  # noqa: E731
    return as_tensor(x * scale), as_tensor(a), with_law(Cloud(as_tensor(y * scale), as_tensor(b)), scale)


def with_law(cloud: Cloud, scale: float = 1.0) -> Cloud:
    """The same points with the law of a Gaussian of that scale and three labels, for losses that ask for them."""
    label = torch.arange(len(cloud), device=cloud.x.device) % 3 if cloud.label is None else cloud.label
    log_norm = 0.5 * cloud.dim * math.log(2 * math.pi * scale**2)
    log_prob = lambda z: -z.square().sum(1) / (2 * scale**2) - log_norm  # noqa: E731
    return replace(cloud, label=label, score=lambda z: -z / scale**2, log_prob=log_prob)


def suited(loss: Any, *clouds: Tensor) -> tuple[Tensor, ...]:
    """The same clouds in dimensions that the loss can be asked in: cut, or with further columns made of their own."""
    least, most = dims_of(loss)
    wider = [torch.cat([z, *(z.roll(k, 0) * 0.7**k for k in range(1, least))], 1) for z in clouds]
    d = clouds[0].shape[1]
    return tuple(w[:, : max(d, least) if most is None else min(max(d, least), most)] for w in wider)


def given_to(loss: Any, problem: Any) -> tuple[Tensor, Tensor, Cloud]:
    x, a, target = problem
    x, y = suited(loss, x, target.x)
    return x, a, replace(target, x=y)


def scaled(loss: Any, s: float) -> Any:
    """The loss with its lengths multiplied by s and its inverse lengths divided; None where the range forbids it."""
    change = {}
    for p in params_of(type(loss)):
        unit = p.hint.unit if isinstance(p.hint, Range) else ""
        if unit in ("length", "1/length"):
            change[p.name] = getattr(loss, p.name) * (s if unit == "length" else 1 / s)
    try:
        return replace(loss, **change)
    except ValueError:
        return None


def fit(loss: Any, scale: float) -> Any:
    """The loss with lengths that suit the cloud, as a person would set them; the default where that is out of range."""
    return scaled(loss, scale) or loss


def spread(x: Tensor, y: Tensor) -> float:
    return float(torch.cat([x, y]).abs().max().clamp_min(1e-12))


def close(a: Tensor, b: Tensor, size: float, tol: float) -> bool:
    return bool(abs(float(a) - float(b)) <= tol * (abs(float(a)) + abs(float(b)) + size))


FEW = settings(max_examples=12, deadline=None)


def size_of(loss: Any, x: Tensor, y: Tensor) -> float:
    """Size of the numbers that a value is the difference of, for tolerances."""
    degree = loss.degree if not math.isnan(loss.degree) else 0.0
    return float(spread(x, y) ** degree)


@pytest.mark.parametrize("loss", claims("zero_at_target", SAMPLED), ids=tag)
@given(problem=problems())
@FEW
def test_zero_at_the_target(loss: Any, problem: Any) -> None:
    x, a, _ = given_to(loss, problem)
    loss = fit(loss, spread(x, x))
    value = loss(x, with_law(Cloud(x, a)), seeded(1), a)
    assert abs(float(value)) <= 1e-6 * size_of(loss, x, x) + 1e-12


@pytest.mark.parametrize("loss", claims("nonnegative", VARIANTS), ids=tag)
@given(problem=problems())
@FEW
def test_never_negative(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    assert float(loss(x, target, seeded(1), a)) >= -1e-7 * size_of(loss, x, target.x)


@pytest.mark.parametrize("loss", claims("symmetric", SAMPLED), ids=tag)
@given(problem=problems())
@FEW
def test_symmetric(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    there = loss(x, target, seeded(1), a)
    back = loss(target.x, Cloud(x, a), seeded(1), target.weight)
    assert close(there, back, size_of(loss, x, target.x), 1e-5)


@pytest.mark.parametrize("loss", claims("shift_free", SCORELESS), ids=tag)
@given(problem=problems())
@FEW
def test_moving_both_clouds_changes_nothing(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    shift = 3.0 * spread(x, target.x)
    moved = loss(x + shift, replace(target, x=target.x + shift), seeded(1), a)
    assert close(loss(x, target, seeded(1), a), moved, size_of(loss, x, target.x), 1e-5)


@pytest.mark.parametrize("loss", claims("rotation_free", SCORELESS), ids=tag)
@given(problem=problems())
@FEW
def test_turning_both_clouds_changes_nothing(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    turn, _ = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], dtype=x.dtype, generator=seeded(7)))
    turned = loss(x @ turn, replace(target, x=target.x @ turn), seeded(1), a)
    assert close(loss(x, target, seeded(1), a), turned, size_of(loss, x, target.x), 1e-5)


@pytest.mark.parametrize("loss", claims("triangle", SAMPLED), ids=tag)
@given(problem=problems())
@FEW
def test_triangle_inequality_of_the_root(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    size = spread(x, target.x)
    loss = fit(loss, size)
    third = replace(target, x=target.x.flip(0) * 0.7 + 0.4 * size)
    root = lambda p, w, q: max(float(loss(p, q, seeded(1), w)), 0.0) ** (1 / loss.root)  # noqa: E731
    direct = root(x, a, third)
    detour = root(x, a, target) + root(target.x, target.weight, third)
    assert direct <= detour * (1 + 1e-5) + 1e-4 * size_of(loss, x, target.x) ** (1 / loss.root)


@pytest.mark.parametrize("loss", claims("deterministic", VARIANTS), ids=tag)
def test_deterministic_means_the_seed_does_not_matter(loss: Any) -> None:
    x, y = suited(loss, *(torch.randn(n, 2, generator=seeded(n), dtype=torch.float64) for n in (12, 9)))
    target = with_law(Cloud(y))
    assert torch.equal(loss(x, target, seeded(1)), loss(x, target, seeded(2)))


@pytest.mark.parametrize("loss", [v for v in SCORELESS if not math.isnan(v.degree)], ids=tag)
@given(problem=problems(), power=st.integers(-3, 3))
@FEW
def test_scaling_the_data_and_the_lengths_scales_the_value(loss: Any, problem: Any, power: int) -> None:
    x, a, target = given_to(loss, problem)
    unit, s = 1 / spread(x, target.x), 2.0**power
    x, target = x * unit, replace(target, x=target.x * unit)
    bigger = scaled(loss, s)
    if bigger is None:
        return
    small = loss(x, target, seeded(1), a)
    big = bigger(x * s, replace(target, x=target.x * s), seeded(1), a)
    assert close(small * s**loss.degree, big, s**loss.degree, 1e-5)


@pytest.mark.parametrize("loss", DRIVING, ids=tag)
@given(problem=problems())
@FEW
def test_velocity_is_minus_gradient_over_weight_and_finite_where_points_meet(loss: Any, problem: Any) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    if not hasattr(loss, "velocity"):
        assert torch.isfinite(velocity_of(loss, x, target, seeded(1), a).v).all()
        return
    closed = velocity_of(loss, x, target, seeded(1), a)
    auto = autograd_velocity(loss, x, target, seeded(1), a)
    assert torch.isfinite(closed.v).all()
    assert torch.isfinite(auto.v).all()
    size = float(auto.v.abs().max()) + 1e-3 * size_of(loss, x, target.x) / spread(x, target.x)
    assert float((closed.v - auto.v).abs().max()) <= 1e-5 * size
    assert close(closed.value, auto.value, size_of(loss, x, target.x), 1e-6)


@pytest.mark.parametrize("loss", DRIVING, ids=tag)
@given(problem=problems(), seed=st.integers(0, 99))
@FEW
def test_same_seed_same_bits_order_does_not_matter_and_inputs_stay(loss: Any, problem: Any, seed: int) -> None:
    x, a, target = given_to(loss, problem)
    loss = fit(loss, spread(x, target.x))
    before = [t.clone() for t in (x, a, target.x, target.weight)]
    one, two = (velocity_of(loss, x, target, seeded(seed), a) for _ in range(2))
    assert torch.equal(one.v, two.v)
    assert torch.equal(one.value, two.value)
    for old, new in zip(before, (x, a, target.x, target.weight), strict=True):
        assert torch.equal(old, new)
    if getattr(loss, "ordered", False):
        return  # its particles belong with target rows one by one
    p, q = torch.randperm(len(x), generator=seeded(seed)), torch.randperm(len(target), generator=seeded(seed + 1))
    again = replace(target, x=target.x[q], weight=target.weight[q], label=target.label[q])
    mixed = velocity_of(loss, x[p], again, seeded(seed), a[p])
    assert close(one.value, mixed.value, size_of(loss, x, target.x), 1e-5)


@pytest.mark.parametrize("loss", DRIVING, ids=tag)
def test_prepared_target_and_carry_change_nothing_but_the_work(loss: Any, device: str) -> None:
    x = torch.randn(40, 2, generator=seeded(1), dtype=torch.float64).to(device)
    x, y = suited(loss, x, (torch.randn(30, 2, generator=seeded(2), dtype=torch.float64) + 1).to(device))
    target = with_law(Cloud(y))
    field = aim(loss, target)
    cold = velocity_of(loss, x, target, seeded(3))
    prepared = field(x, seeded(3))
    warm = field(x, seeded(3), prepared.carry)
    size = float(cold.v.abs().max())
    assert float((cold.v - prepared.v).abs().max()) <= 1e-6 * size
    assert float((cold.v - warm.v).abs().max()) <= 1e-3 * size
    assert float(cold.value - warm.value) == pytest.approx(0, abs=1e-3 * abs(float(cold.value)))


@pytest.mark.parametrize("loss", [v for v in SCORELESS if "shift_free" in v.laws and drives(v)], ids=tag)
def test_far_from_the_origin_float32_keeps_four_digits(loss: Any, device: str) -> None:
    x = torch.randn(60, 2, generator=seeded(1)).mul(256).round().div(256).to(device)
    y = torch.randn(50, 2, generator=seeded(2)).mul(256).round().div(256).add(1).to(device)
    x, y = suited(loss, x, y)
    near = velocity_of(loss, x, with_law(Cloud(y)), seeded(3))
    far = velocity_of(loss, x + 8192.0, with_law(Cloud(y + 8192.0)), seeded(3))  # exact in float32: 1/256 steps
    assert float((near.v - far.v).abs().max()) <= 1e-4 * float(near.v.abs().max())
    assert float(far.value) == pytest.approx(float(near.value), rel=1e-4)


@pytest.mark.parametrize("loss", [v for v in VARIANTS if hasattr(v, "probe")], ids=tag)
def test_probe_feels_what_a_particle_without_weight_would(loss: Any) -> None:
    # Wide lengths: under a narrow blur even a particle of weight 1e-10 is a place that mass can stay at.
    loss = scaled(loss, 10.0) or loss
    x = torch.randn(20, 2, generator=seeded(1), dtype=torch.float64)
    at = torch.randn(5, 2, generator=seeded(4), dtype=torch.float64)
    x, at, y = suited(loss, x, at, torch.randn(15, 2, generator=seeded(2), dtype=torch.float64) + 1)
    target = with_law(Cloud(y))
    pull = loss.probe(at, x, target, seeded(3))
    tiny = 1e-10
    both, weight = (
        torch.cat([x, at]),
        torch.cat([torch.full((20,), (1 - 5 * tiny) / 20), torch.full((5,), tiny)]).double(),
    )
    felt = autograd_velocity(loss, both, target, seeded(3), weight).v[20:]
    assert float((pull - felt).abs().max()) <= 1e-3 * float(felt.abs().max())


@pytest.mark.parametrize("loss", DRIVING, ids=tag)
def test_float32_stays_float32_and_agrees_with_float64(loss: Any, device: str) -> None:
    x = torch.randn(50, 3, generator=seeded(1), dtype=torch.float64).to(device)
    y = torch.randn(40, 3, generator=seeded(2), dtype=torch.float64).to(device)
    x, y = suited(loss, x, y)
    # Directions are drawn in the precision of the data, so both see float32 numbers.
    exact = velocity_of(loss, x.float().double(), with_law(Cloud(y.float().double())), seeded(3))
    quick = velocity_of(loss, x.float(), with_law(Cloud(y.float())), seeded(3))
    assert quick.v.dtype == torch.float32
    assert exact.v.dtype == torch.float64
    if "deterministic" in loss.laws:
        assert float((quick.v.double() - exact.v).abs().max()) <= 1e-3 * float(exact.v.abs().max())
