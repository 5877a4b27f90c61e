"""Soft minima and plans that look at near pairs alone are those that look at all of them."""

import math

import pytest
import torch
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses import _compiled
from dmviz.losses._annealing import _heaps, _levels, annealed
from dmviz.losses._compiled import rows_of
from dmviz.losses._entropic import Problem, log_weight, soft, temperatures
from dmviz.losses._newton import plan_of
from dmviz.losses.sinkhorn import Sinkhorn

pytestmark = pytest.mark.skipif(not _compiled.choice(), reason="no numba here: there are no compiled kernels")


def clouds(n: int, m: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = torch.randn(n, d, generator=seeded(1), dtype=dtype)
    y = 0.5 * torch.randn(m, d, generator=seeded(2), dtype=dtype) + 1.0
    x[3], y[5] = x[0], x[0]  # points that meet
    a, b = (torch.rand(k, generator=seeded(k), dtype=torch.float64) for k in (n, m))
    a[4] = b[7] = 0.0  # points without weight
    return x, y, log_weight(a / a.sum()), log_weight(b / b.sum())


def problem(n: int, m: int, d: int, p: int, blur: float, dtype: torch.dtype = torch.float32) -> tuple[Problem, Problem]:
    """The same problem twice: every pair looked at, and near pairs alone."""
    x, y, log_a, log_b = clouds(n, m, d, dtype)
    whole = Problem(x, y, log_a, log_b, p, blur, True)
    return whole, whole._replace(rows=rows_of(x), rows_y=rows_of(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("blur", [0.03, 0.3, 3.0])
def test_soft_minima_are_those_over_all_pairs(d: int, p: int, blur: float, dtype: torch.dtype) -> None:
    whole, near = problem(603, 451, d, p, blur, dtype)
    g = 0.3 * torch.randn(451, generator=seeded(3), dtype=torch.float64)
    every, few = soft(whole, g, want_grad=True), soft(near, g, want_grad=True)
    tol = 2e-6 if dtype == torch.float32 else 1e-13  # rounding; what is left out is below it
    assert float((every.f - few.f).abs().max()) <= tol * float(every.f.abs().max())
    assert every.grad is not None and few.grad is not None
    assert float((every.grad - few.grad).abs().max()) <= 20 * tol * float(every.grad.abs().max())


@pytest.mark.parametrize("p", [1, 2])
def test_plans_are_those_over_all_pairs(p: int) -> None:
    whole, near = problem(603, 451, 2, p, 0.1)
    g = 0.1 * torch.randn(451, generator=seeded(3), dtype=torch.float64)
    every, few = plan_of(whole, g), plan_of(near, g)
    assert every is not None and few is not None and few.order is not None
    assert torch.allclose(every.f, few.f, atol=1e-6)
    assert torch.allclose(every.m, few.m, atol=1e-7)
    dense = [torch.zeros(603, 451) for _ in range(2)]
    for out, plan in zip(dense, (every, few), strict=True):
        start, column, share = plan.rows
        for row in range(603):
            here = slice(int(start[row]), int(start[row + 1]))
            out[row if plan.order is None else plan.order[row], column[here].long()] = share[here]
    assert torch.allclose(*dense, atol=1e-6)


def test_few_pairs_are_looked_at_where_the_blur_is_small() -> None:
    """The search is of use: at this blur the far columns, most of them, never reach a sum."""
    from dmviz.losses import _fused_transport

    _, near = problem(2000, 2000, 2, 2, 0.05)
    g = annealed(near)
    rows, h = near.rows, near.log_b + g / near.eps
    assert rows is not None
    count, room = len(near.y), [torch.empty(len(near.y)).numpy() for _ in range(4)]
    looked = 0
    for r in range(len(rows.radius)):
        looked += _fused_transport._gather(
            rows.middle.numpy(), r, rows.radius.numpy(), near.y.T.contiguous().numpy(), (h - h.max()).float().numpy(),
            torch.tensor(0.5 / near.eps).numpy()[()], 2, torch.tensor(20.0).numpy()[()], *room[:3],
            torch.empty(2, count).numpy(), room[3], torch.empty(count + 1, dtype=torch.int32).numpy(),
        )  # fmt: skip
    assert looked / len(rows.radius) < 0.25 * count


def test_heaps_keep_all_mass_and_wide_blurs_alone_see_them() -> None:
    _, near = problem(1600, 1200, 2, 2, 0.05)
    levels = _levels(near)
    assert [eps for _, blurs in levels for eps in blurs] == temperatures(near)
    sizes = [len(now.x) for now, _ in levels]
    assert sizes == sorted(sizes) and sizes[0] >= 200 and levels[-1][0] is near
    mean = near.log_a.exp() @ near.x.double()
    for now, blurs in levels[:-1]:
        assert float(now.log_a.exp().sum()) == pytest.approx(1.0, abs=1e-12)
        assert torch.allclose(now.log_a.exp() @ now.x.double(), mean, atol=1e-6)
        _, extent = _heaps(near, round(1600 / len(now.x)))
        assert math.sqrt(blurs[-1]) >= 2 * extent > 0


def test_a_solve_on_near_pairs_is_the_solve_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, log_a, log_b = clouds(700, 650, 2, torch.float32)
    loss, target = Sinkhorn(blur=0.1, tolerance=1e-4), Cloud(y, log_b.exp().float())
    near = velocity_of(loss, x, target, seeded(0), log_a.exp().float())
    monkeypatch.setattr("dmviz.losses.sinkhorn.NEAR_PAIRS", 10**9)
    whole = velocity_of(loss, x, target, seeded(0), log_a.exp().float())
    assert float(near.value) == pytest.approx(float(whole.value), rel=1e-5)
    assert float((near.v - whole.v).norm()) <= 2e-3 * float(whole.v.norm())


def test_plans_in_high_dimension_come_from_products_and_are_the_same() -> None:
    x, y, log_a, log_b = clouds(300, 270, 20, torch.float32)
    h, a = torch.randn(270, generator=seeded(3)), log_a.exp()
    found = [_compiled.plan(x, y, h, a, 0.5, 2, 10**6, direct) for direct in (True, False)]
    assert found[0] is not None and found[1] is not None
    for one, other in zip(found[0][:3], found[1][:3], strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(found[0][3][0][-1]) == pytest.approx(int(found[1][3][0][-1]), rel=1e-3)
