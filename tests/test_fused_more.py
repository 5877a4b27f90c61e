"""The compiled sums of `_fused_more.py` say what eager torch says."""

import math
from typing import Any

import pytest
import torch

from dmviz.cloud import Cloud, seeded
from dmviz.losses import _compiled
from dmviz.losses.collision import Collision
from dmviz.losses.cramer_wold import CramerWold
from dmviz.losses.ecf import Ecf
from dmviz.losses.equiangular import Equiangular
from dmviz.losses.infonce import InfoNce

pytest.importorskip("numba")

LOSSES = [
    CramerWold(),
    CramerWold(bandwidth=0.05),
    Collision(cell=0.7),
    Collision(estimator="plug_in"),
    Ecf(draw="fixed"),
    Equiangular(),
    InfoNce(),
    InfoNce(variant="symmetric", tau=0.05),
    InfoNce(variant="nt_xent"),
]


@pytest.fixture(scope="module", autouse=True)
def _compiled_once() -> None:
    _compiled.warm()


def clouds(dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, Cloud]:
    """Weighted clouds with points that meet and one without weight, and a target of another size."""
    rng = torch.Generator().manual_seed(dim)
    x, y = (torch.randn(count, dim, generator=rng, dtype=dtype) for count in (150, 210))
    x[3], y[5] = x[2], x[2]
    weight, b = (torch.rand(len(z), generator=rng, dtype=dtype) for z in (x, y))
    weight[7] = 0.0
    return x, weight / weight.sum(), Cloud(y, b / b.sum())


def answer(loss: Any, compiled: bool, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> Any:
    x, weight, target = clouds(dim, dtype)
    monkeypatch.setattr(_compiled, "choice", lambda: compiled)
    return loss.velocity(x, loss.prepare(target), seeded(0), weight)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dim", [2, 3, 8, 20])
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_compiled_and_eager_velocities_agree(
    loss: Any, dim: int, dtype: torch.dtype, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, compiled = (answer(loss, choice, dim, dtype, monkeypatch) for choice in (False, True))
    size = float(eager.v.abs().max()) + 1e-30
    assert float((compiled.v - eager.v).abs().max()) <= share * size + 1e-30
    assert float(compiled.value) == pytest.approx(float(eager.value), rel=100 * share, abs=share)


def test_waves_keep_their_phase_where_angles_are_large() -> None:
    from dmviz.losses._waves import waves

    x, t = torch.tensor([[100.0], [-3.0]]), torch.tensor([[1.0], [0.25], [-7.0]])
    found = waves(x, None, t, compiled=True)
    exact = torch.exp(1j * (t.double() @ x.double().T)).mean(1)
    assert torch.allclose(found.re, exact.real, atol=4e-5)
    assert torch.allclose(found.im, exact.imag, atol=4e-5)


def test_a_point_gone_to_infinity_is_seen_and_nothing_crashes() -> None:
    x = torch.tensor([[0.0, 0.0], [math.inf, 0.0], [math.nan, 1.0]])
    loss = CramerWold()
    assert not loss.velocity(x, loss.prepare(Cloud(torch.zeros(4, 2))), seeded(0)).v.isfinite().all()
