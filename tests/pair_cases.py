"""What the tests of the pair losses share: known values, clouds, exact Gaussian clouds, and both paths."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dmviz.cloud import Cloud, seeded
from dmviz.losses._kernels import Kernel, kernel_of


def known(name: str) -> dict:
    return json.loads((Path(__file__).parent / "known" / f"kernels_{name}.json").read_text())


def tensor(numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def agrees(got: float, case: dict) -> bool:
    """The reference's own rule: absolute below 1, relative above."""
    return abs(got - case["value"]) <= case["tolerance"] * max(1.0, abs(case["value"]))


def small(inputs: dict) -> tuple[Tensor, Tensor | None, Cloud]:
    """Points and weights of a known problem, uniform where it names none."""
    a, b = (tensor(inputs[w]) if w in inputs else None for w in ("a", "b"))
    return tensor(inputs["X"]), a, Cloud(tensor(inputs.get("Y", inputs["X"])), b if "Y" in inputs else a)


def clouds(n: int, m: int, d: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Cloud]:
    """Weighted clouds with repeated points, some shared between the two."""
    rng = seeded(n + m + d)
    x, y = torch.randn(n, d, generator=rng, dtype=dtype), torch.randn(m, d, generator=rng, dtype=dtype) * 0.7 + 0.5
    a, b = torch.rand(n, generator=rng, dtype=dtype), torch.rand(m, generator=rng, dtype=dtype)
    x[1], y[0] = x[0], x[0]
    return x, a / a.sum(), Cloud(y, b / b.sum())


def lattice(mean: float, deviation: float, step: float) -> Cloud:
    """A 1-D Gaussian as weights on a lattice through 0: sums over it are integrals to many digits."""
    reach = 8.5 * deviation
    points = torch.arange(math.ceil((mean - reach) / step), math.floor((mean + reach) / step) + 1).double() * step
    weight = torch.exp(-0.5 * ((points - mean) / deviation) ** 2)
    return Cloud(points[:, None], weight / weight.sum())


def hermite(mean: list[float], covariance: list[list[float]], nodes: int) -> Cloud:
    """A Gaussian as the nodes and weights of a Gauss-Hermite rule in every direction."""
    at, w = np.polynomial.hermite_e.hermegauss(nodes)
    d = len(mean)
    grid = np.stack(np.meshgrid(*[at] * d, indexing="ij"), -1).reshape(-1, d)
    weight = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * d, indexing="ij"), -1).reshape(-1, d), axis=1)
    keep = weight > 1e-18
    points = grid[keep] @ np.linalg.cholesky(np.array(covariance)).T + np.array(mean)
    return Cloud(tensor(points.tolist()), tensor((weight[keep] / weight[keep].sum()).tolist()))


def gaussian_mean(kernel: Kernel, d: int, between: float, nodes: int = 400) -> float:
    """E k(|X - Y|) for X ~ N(0, I), Y ~ N(m, I) with |m| = between: a non-central chi integral, by quadrature."""
    from scipy import integrate, stats

    def density(r2: float) -> float:
        k = kernel_of(kernel, torch.tensor(r2, dtype=torch.float64)).item()
        law = stats.chi2(d, scale=2.0) if between == 0 else stats.ncx2(d, between**2 / 2, scale=2.0)
        return k * law.pdf(r2)

    mean, _ = integrate.quad(density, 0, 400, limit=nodes, epsabs=1e-12, points=[0.5, 2, 8, 20, 60])
    return mean


def gaussian_samples(n: int, mean: list[float], covariance: list[list[float]], seed: int) -> Tensor:
    z = torch.randn(n, len(mean), generator=seeded(seed), dtype=torch.float64)
    return z @ torch.linalg.cholesky(tensor(covariance)).T + tensor(mean)


@pytest.fixture(params=["eager", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to the same numbers: every test that asks for this runs twice."""
    monkeypatch.setenv("DMVIZ_COMPILE", "0" if request.param == "eager" else "1")
    return request.param
