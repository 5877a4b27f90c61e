"""Kernel Stein discrepancy: particles against a density, without samples of it."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from dmviz.cloud import Cloud, Score, mass_of
from dmviz.losses._compiled import chosen
from dmviz.losses._kernels import Kernel
from dmviz.losses._stein import stein_mean, stein_sums, through_score
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity


@entry
class Ksd:
    r"""Weigh how hard a density pulls its particles against how hard they push each other apart.

    $$ F = E\,u(X,X'), \quad u(x,y) = k\,s(x)\cdot s(y) + s(x)\cdot\nabla_y k + s(y)\cdot\nabla_x k
       + \mathrm{tr}\,\nabla_x\nabla_y k $$

    with the score s = grad log p of the target and k the gaussian e^{-r^2/2l^2} or the inverse multiquadric
    (1 + r^2/l^2)^{-1/2}. It needs no samples of the target and no normaliser, only its score. Unit: 1/length^2. The
    biased estimator keeps the diagonal: never negative, above 0 for any finite number of particles; the unbiased one
    leaves it out and can be negative. A particle moves with

    $$ v_i = -2 \sum_j a_j \nabla_{x_i} u(x_i, x_j), $$

    in closed form but for one product with the Jacobian of the score. It fails on targets with several modes or an axis
    of symmetry, where particles come to rest on symmetric sets that are not the target; it is blind to the weights of
    modes far apart, and the gaussian kernel misses particles that run away in three dimensions and more.

    Liu, Lee and Jordan 2016; Gorham and Mackey 2017; as a flow, Korba et al. 2021 (who step with minus the gradient of
    F, without dividing by the particle's weight).

    ```python
    >>> from dmviz.cloud import seeded
    >>> here = torch.tensor([[3.0, 4.0]])
    >>> normal = Cloud(torch.zeros(1, 2), score=lambda x: -x)
    >>> Ksd(bandwidth=1.0)(here, normal, seeded(0)).item()  # |(3, 4)|^2 + 2 / l^2
    27.0

    ```
    """

    title = "Kernel Stein discrepancy"
    family = "kernels"
    source = ("liu2016kernelized", "gorham2017measuring", "korba2021kernel")
    needs = "score"
    cost = "N^2 D time and one Jacobian product of the score, N memory"
    degree = float("nan")
    root = 2.0

    kernel: Annotated[
        Literal["gaussian", "imq"], Help("Who pushes whom apart: close neighbours, or everyone with a long tail")
    ] = "gaussian"
    bandwidth: Annotated[
        float,
        Range(
            1e-3,
            1e3,
            unit="length",
            log=True,
            help="How far particles push each other. Small: each goes to a peak alone; large: only the mean matters",
        ),
    ] = 1.0
    estimator: Annotated[
        Literal["biased", "unbiased"],
        Help("Biased keeps each particle's pair with itself: never negative. Unbiased is 0 on average at the target"),
    ] = "biased"

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({"nonnegative", "deterministic"} if self.estimator == "biased" else {"deterministic"})

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return self.velocity(x, target, rng, weight).value
        s, a = _score(target)(x), mass_of(x, weight)
        mean = stein_mean(x, s, a, self._kernel)
        if self.estimator == "unbiased":
            mean = (mean - a.double().square() @ self._own(s)) * self._pairs(a)
        return mean.to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: None = None
    ) -> Velocity:
        """-2 sum_j a_j grad u(x_i, x_j); the score's own change with x_i enters by one Jacobian product."""
        a = mass_of(x, weight)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(True)
            scores = _score(target)(leaf)
        s = scores.detach()
        sums = stein_sums(x.detach(), s, x.detach(), s, a, self._kernel, chosen(target.memo, x))
        wide = a.double()
        value, pull, by_score = wide @ sums.u, sums.grad, sums.by_score
        if self.estimator == "unbiased":
            value = (value - wide.square() @ self._own(s)) * self._pairs(a)
            by_score = (by_score - wide[:, None] * self._kernel.at_zero * s) * self._pairs(a)
            pull = pull * self._pairs(a)
        v = (-2.0 * (pull + through_score(scores, leaf, by_score))).to(x.dtype)
        if weight is not None:
            v = torch.where(weight[:, None] > 0, v, 0.0)  # a particle without weight has no velocity
        return Velocity(v, value.to(x.dtype))

    def probe(self, at: Tensor, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        """The pull at any points (K, D) among particles x."""
        with torch.enable_grad():
            leaf = at.detach().requires_grad_(True)
            scores = _score(target)(leaf)
        with torch.no_grad():
            s_x = _score(target)(x)
        a = mass_of(x, weight)
        sums = stein_sums(at.detach(), scores.detach(), x.detach(), s_x, a, self._kernel, chosen(target.memo, x))
        pull = sums.grad + through_score(scores, leaf, sums.by_score)
        return (-2.0 * (pull * self._pairs(a) if self.estimator == "unbiased" else pull)).to(at.dtype)

    def prepare(self, target: Cloud) -> Cloud:
        """Nothing of the target to work out; only which kernels the run will use."""
        return replace(target, memo={"compiled": chosen(None, target.x)})

    @property
    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, (self.bandwidth,))

    def _own(self, s: Tensor) -> Tensor:
        """u(x, x) (N,): |s|^2 k(0) + d / l^2."""
        return s.double().square().sum(1) + s.shape[1] / self.bandwidth**2

    def _pairs(self, a: Tensor) -> Tensor:
        """1 / (1 - sum a_i^2), and 0 for a single particle, which has no pair."""
        rest = 1.0 - a.double().square().sum()
        return torch.where(rest > 1e-12, 1.0 / rest, 0.0)


def _score(target: Cloud) -> Score:
    if target.score is None:
        raise ValueError(
            "KSD needs the score of its target, and this one has only samples. Pick a shape with a known density."
        )
    return target.score
