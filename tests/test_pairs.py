"""Sums over pairs: both paths against the plain formula, far from the origin, on many threads, in little memory."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pair_cases import clouds, path

from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses import _compiled
from dmviz.losses._entropic import softmin
from dmviz.losses._kernels import SCALES, TAILS, Kernel, kernel_of
from dmviz.losses._pairs import discrepancy_value, discrepancy_velocity, kernel_sums, own_sums
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.ksd import Ksd
from dmviz.losses.mmd import Mmd
from dmviz.losses.sinkhorn import Sinkhorn

__all__ = ["path"]
KERNELS = [
    Kernel("distance"),
    Kernel("gaussian", (0.7,)),
    Kernel("gaussian", SCALES),
    Kernel("laplacian", (0.9,)),
    Kernel("imq", (1.1,)),
    Kernel("rational_quadratic", (0.8,), (0.5,)),
    Kernel("rational_quadratic", (1.2,), TAILS),
]
LOSSES = [EnergyDistance(), Mmd(), Mmd("multi_scale"), Sinkhorn(0.2), Ksd()]
RNG = seeded(0)


def plainly(x, y, b, kernel):
    """The same by one N x M array, with its gradient by autograd."""
    leaf = x.clone().requires_grad_(True)
    s = kernel_of(kernel, (leaf[:, None] - y[None]).square().sum(-1)) @ b
    (grad,) = torch.autograd.grad(s.sum(), leaf)
    return s.detach(), grad


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_sums_and_gradients_are_those_of_the_formula(kernel: Kernel, d: int, path: str) -> None:
    x, _, target = clouds(70, 600, d)
    s, grad = plainly(x, target.x, target.weight, kernel)
    got = kernel_sums(x, target.x, target.weight, kernel, path == "compiled")
    assert torch.allclose(got.s, s, rtol=1e-12, atol=1e-13)
    assert torch.allclose(got.grad, grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("d", [2, 20])
def test_float32_keeps_five_digits_also_far_from_the_origin_and_in_tight_clusters(
    kernel: Kernel, d: int, path: str
) -> None:
    x, _, target = clouds(200, 600, d, torch.float32)
    x, y = (x * 64).round() / 64, (target.x * 64).round() / 64  # exact at 8192
    x[:50] = x[0] + (torch.arange(50)[:, None] % 7) / 64  # a cluster much tighter than the cloud
    s, grad = plainly(x.double(), y.double(), target.weight.double(), kernel)
    got = kernel_sums(x + 8192, y + 8192, target.weight, kernel, path == "compiled")
    assert torch.allclose(got.s, s, rtol=1e-5, atol=1e-6)
    assert (got.grad - grad).abs().max() <= 2e-5 * grad.abs().max()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_value_alone_equals_value_with_gradient(kernel: Kernel, path: str) -> None:
    for d in (2, 20):
        x, a, target = clouds(60, 50, d)
        for unbiased in (False, True):
            alone = discrepancy_value(x, target, kernel, a, unbiased)
            assert alone.item() == pytest.approx(
                discrepancy_velocity(x, target, kernel, a, unbiased).value.item(), abs=1e-12
            )


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("n", "d"), [(1, 2), (60, 2), (600, 3), (40, 20), (1500, 9)])
def test_each_pair_once_gives_the_sums_over_all_pairs(kernel: Kernel, n: int, d: int, path: str) -> None:
    x, a, _ = clouds(max(n, 2), 2, d)
    x, a = x[:n], a[:n] / a[:n].sum()
    every = kernel_sums(x, x, a, kernel, path == "compiled")
    for want_grad in (False, True):
        mean, grad = own_sums(x, a, kernel, path == "compiled", want_grad)
        assert mean.item() == pytest.approx((a @ every.s).item(), abs=1e-13)
    assert torch.allclose(grad, every.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_soft_minimum_is_that_of_the_formula(p: int, d: int, path: str) -> None:
    x, _, target = clouds(80, 600, d)
    for eps in (0.01, 1.0):
        h = target.weight.log() + torch.randn(600, generator=seeded(2), dtype=torch.float64) / eps
        leaf = x.clone().requires_grad_(True)
        r2 = (leaf[:, None] - target.x[None]).square().sum(-1)
        cost = 0.5 * r2 if p == 2 else -kernel_of(Kernel("distance"), r2)
        f = -eps * (h - cost / eps).logsumexp(1)
        (grad,) = torch.autograd.grad(f.sum(), leaf)
        got = softmin(x, target.x, h, eps, p, path == "compiled", want_grad=True)
        assert torch.allclose(got.f, f, atol=1e-10)
        assert torch.allclose(got.grad, grad, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_threads_change_no_bit(loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMVIZ_COMPILE", "1")
    x, a, target = clouds(260, 240, 2, torch.float32)
    target = Cloud(target.x, target.weight, score=lambda z: -z)
    monkeypatch.setattr(_compiled, "PARALLEL", 1)
    monkeypatch.setattr(_compiled, "threads", lambda: 1)
    alone = velocity_of(loss, x, target, RNG, a)
    monkeypatch.setattr(_compiled, "threads", lambda: 2)
    with ThreadPoolExecutor(4) as sessions:
        for answer in sessions.map(lambda _: velocity_of(loss, x, target, RNG, a), range(8)):
            assert torch.equal(answer.v, alone.v)
            assert torch.equal(answer.value, alone.value)


def test_the_first_call_never_waits_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMVIZ_COMPILE", raising=False)
    monkeypatch.setattr(_compiled, "_ready", type(_compiled._ready)())
    monkeypatch.setattr(_compiled, "_on_disk", lambda: False)
    asked = []
    monkeypatch.setattr(_compiled, "_warm_in_background", lambda: asked.append(True))
    prepared = EnergyDistance().prepare(Cloud(torch.zeros(3, 2)))
    assert asked
    assert prepared.memo["compiled"] is False
    _compiled._ready.set()
    assert EnergyDistance().prepare(Cloud(torch.zeros(3, 2))).memo["compiled"] is True
    assert not _compiled.chosen(prepared.memo, prepared.x)


def test_kernels_that_lie_on_disk_run_from_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _compiled.warm()
    monkeypatch.delenv("DMVIZ_COMPILE", raising=False)
    assert _compiled._on_disk()
    monkeypatch.setattr(_compiled, "_ready", type(_compiled._ready)())
    assert EnergyDistance().prepare(Cloud(torch.zeros(3, 2))).memo["compiled"] is True


GROWTH = """
import resource, sys, torch
from dmviz.cloud import Cloud, seeded
from dmviz.field import velocity_of
from dmviz.losses._pairs import kernel_sums
from dmviz.losses._kernels import Kernel
from dmviz.losses import _compiled
torch.set_num_threads(1)
n, rows = 100_000, int(sys.argv[1])
x, y = torch.randn(n, 2, generator=seeded(0)), torch.randn(n, 2, generator=seeded(1))
b = torch.full((n,), 1 / n)
compiled = _compiled.choice()
kernel_sums(x[:100], y[:100], b[:100], Kernel("distance"), compiled)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kernel_sums(x[:rows], y, b, Kernel("distance"), compiled)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_hundred_thousand_points_take_little_memory(path: str) -> None:
    """All 100,000 columns; of the rows as many as fit a test's time, each the same work as the next."""
    pytest.importorskip("resource", reason="peak memory is read with a Unix call")
    run = [sys.executable, "-c", GROWTH, "1500" if path == "eager" else "15000"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert float(done.stdout) < 64
