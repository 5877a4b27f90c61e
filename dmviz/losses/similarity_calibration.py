"""Similarity distribution calibration: pairs keep the order of their similarities, which are spread as a Beta law."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from scipy.special import betaincinv
from torch import Generator, Tensor

from dmviz.cloud import Cloud, mass_of
from dmviz.losses._lines import accurate
from dmviz.losses._ranks import middle_levels
from dmviz.params import Help, Range, entry
from dmviz.protocols import Law, Velocity

_LAWS: frozenset[Law] = frozenset({"nonnegative", "deterministic"})


@entry
class SimilarityCalibration:
    r"""Pair up the points, rank the pairs by how alike their originals are, and give each rank its own similarity.

    $$ F = \frac1P \sum_{i} \bigl|\, h_{(i)} - r_i \,\bigr|, \qquad
       r_i = 2\, B^{-1}\Bigl(\frac{2 i - 1}{2 P}\Bigr) - 1 $$

    Particle i is the code of target row i, the original. Row i and row i + P, of n = 2 P rows, are a pair (of an odd
    number the last row is left out, and rows beyond the shorter cloud): c is the cosine between the two originals, h
    the one between the two codes. Pairs in order of c are given the quantiles r of a Beta(alpha, beta) law on [-1, 1],
    so that similar originals get similar codes and all similarities occur. Unit: none ("l2" squares the gaps). With
    weights a pair counts as much as its two particles, and sits halfway up its mass. A code turns about the origin; its
    length stays. `quantization` adds that times the mean of 1 - cos(x, sign x), which turns codes to corners of a cube.
    alpha = beta: large gathers all pairs about right angles, small asks for parallel and opposite ones. `orthogonal`
    puts 0 for every negative r.

    Fails: each row is in one pair only, and pairs that are equally alike are ranked by their place. It is not 0 where
    codes equal originals. Ng et al. 2023, whose settings are alpha = beta = 5 and quantization 1 (here 0).

    ```python
    >>> from dmviz.cloud import seeded
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # one pair: its goal is the median, a right angle
    >>> SimilarityCalibration()(x, Cloud(x), seeded(0)).item()
    0.0

    ```
    """

    title = "Similarity calibration"
    family = "moments and order"
    source = ("ng2023unsupervised",)
    needs = "samples"
    cost = "N D + N log time, N D memory"
    degree = 0.0
    root = 1.0
    dims = (2, None)
    ordered = True

    compare: Annotated[Literal["l1", "l2"], Help("l1: a steady pull to the goal; l2: weaker when near")] = "l1"
    alpha: Annotated[float, Range(0.1, 50.0, log=True, help="above beta: pairs are more alike; below: less")] = 5.0
    beta: Annotated[
        float, Range(0.1, 50.0, log=True, help="with alpha, large: all near right angles; small: parallel or opposite")
    ] = 5.0
    orthogonal: Annotated[bool, Help("no pair is asked to be further apart than a right angle")] = False
    quantization: Annotated[float, Range(0.0, 10.0, help="0: none; larger turns codes to the corners of a cube")] = 0.0

    @property
    def laws(self) -> frozenset[Law]:
        return _LAWS | {"rotation_free"} if self.quantization == 0 else _LAWS

    def __call__(self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None) -> Tensor:
        pairs = self._pairs(x.detach(), target, weight)
        unit, _ = directions(x.to(accurate(x)))
        half = len(pairs.goal)
        gap = (unit[:half] * unit[half : 2 * half]).sum(1) - pairs.goal
        value: Tensor = pairs.mass @ (gap.abs() if self.compare == "l1" else gap.square())
        return (value + self._corners(unit, mass_of(x, weight))).to(x.dtype)

    def velocity(
        self, x: Tensor, target: Cloud, rng: Generator, weight: Tensor | None = None, carry: Any = None
    ) -> Velocity:
        """Both codes of a pair turn towards each other or away."""
        pairs, a = self._pairs(x, target, weight), mass_of(x, weight).to(accurate(x))
        unit, inverse = directions(x.to(accurate(x)))
        half = len(pairs.goal)
        one, other = unit[:half], unit[half : 2 * half]
        gap = (one * other).sum(1) - pairs.goal
        force = (pairs.mass * (gap.sign() if self.compare == "l1" else 2.0 * gap))[:, None]
        push = torch.zeros_like(unit)  # minus the derivative in the unit vectors
        push[:half], push[half : 2 * half] = -force * other, -force * one
        push += self.quantization / unit.shape[1] ** 0.5 * a[:, None] * unit.sign()
        # Only the part across a code turns it.
        turn = (push - (push * unit).sum(1, keepdim=True) * unit) * inverse[:, None]
        v = torch.where(a[:, None] > 0, turn / a[:, None].clamp_min(torch.finfo(a.dtype).tiny), 0.0)
        value: Tensor = pairs.mass @ (gap.abs() if self.compare == "l1" else gap.square())
        return Velocity(v.to(x.dtype), (value + self._corners(unit, a)).to(x.dtype))

    def prepare(self, target: Cloud) -> Cloud:
        """The goals for as many particles of equal weight as there are target rows."""
        kept = self._pairs(target.x, target, None)
        return replace(target, memo={"of": target.x, "loss": self, "pairs": kept})

    def _pairs(self, x: Tensor, target: Cloud, weight: Tensor | None) -> "Pairs":
        memo = target.memo
        if (
            memo
            and memo.get("of") is target.x
            and memo.get("loss") == self
            and weight is None
            and len(x) == len(target)
        ):
            return memo["pairs"]  # type: ignore[no-any-return]
        half, wide = min(len(x), len(target)) // 2, accurate(x)
        a = mass_of(x, weight).to(wide)
        mass = a[:half] + a[half : 2 * half]
        mass = mass / mass.sum().clamp_min(torch.finfo(wide).tiny)
        original, _ = directions(target.x[: 2 * half].detach().to(wide))
        alike = (original[:half] * original[half:]).sum(1)
        return Pairs(mass, similarity_goals(alike, mass, self.alpha, self.beta, self.orthogonal))

    def _corners(self, unit: Tensor, a: Tensor) -> Tensor:
        """`quantization` times the weighted mean of 1 - cos(x, sign x)."""
        cosine = unit.abs().sum(1) / unit.shape[1] ** 0.5
        missing: Tensor = a.to(unit.dtype) @ (1.0 - cosine)
        return self.quantization * missing


class Pairs(NamedTuple):
    """What each of P pairs weighs, and the similarity that it should have."""

    mass: Tensor  # (P,) float64, sums to 1
    goal: Tensor  # (P,)


def directions(x: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) rows over their length, and (N,) one over it; 0 for both where a row is 0, which has no direction."""
    square = x.square().sum(1)
    here = square > 0
    inverse = torch.where(here, torch.where(here, square, 1.0).rsqrt(), 0.0)
    return x * inverse[:, None], inverse


def similarity_goals(alike: Tensor, mass: Tensor, alpha: float, beta: float, orthogonal: bool = False) -> Tensor:
    """(P,) the Beta quantile on [-1, 1] of each pair's rank by `alike` (P,), in the order of the pairs.

    >>> similarity_goals(torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5]), 1.0, 1.0)
    tensor([ 0.5000, -0.5000], dtype=torch.float64)
    """
    if not len(alike):
        return mass
    level, _ = middle_levels(alike[None], mass)
    goal = 2.0 * torch.from_numpy(betaincinv(alpha, beta, level[0].clamp(0.0, 1.0).cpu().double().numpy())) - 1.0
    return (goal.clamp_min(0.0) if orthogonal else goal).to(level.device, level.dtype)
