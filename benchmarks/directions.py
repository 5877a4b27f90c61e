"""`python -m benchmarks.directions`: how far the gradient of sliced Wasserstein over few lines is from that over all.

The root mean square over draws of |gradient - exact| / |exact|, for dmviz' default directions and for independent
random ones (plain Monte Carlo), at the same number of lines. "Exact" takes so many lines that its own error is below a
hundredth of what is measured.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._measure import RESULTS, digits, machine, one_thread, save
from benchmarks.losses import points
from dmviz.cloud import Cloud, seeded
from dmviz.losses._slicing import Kind, Slices, sliced_velocity, unit_vectors

CASES = ((2, 32, 0.2), (3, 128, 0.5), (16, 64, 0.75), (64, 64, 0.75), (64, 128, 0.75))
"""Dimension, lines, and the goal for the error as a share of Monte Carlo's."""


def gradient(x: Tensor, y: Tensor, kind: Kind, lines: int, seed: int) -> Tensor:
    theta = unit_vectors(kind, lines, x.shape[1], seeded(seed, lines))
    return sliced_velocity(x, Cloud(y), Slices.even(theta), None, 2)[0]


def exact(x: Tensor, y: Tensor, most: int) -> Tensor:
    """In 2-D `most` equally spaced angles; above, the mean of draws of dmviz' directions, `most` lines in all."""
    if x.shape[1] <= 3:
        return gradient(x, y, "quasi_random", most, 999)
    draws = max(1, most // 2048)
    return torch.stack([gradient(x, y, "auto", 2048, 1000 + seed) for seed in range(draws)]).mean(0)


def error(x: Tensor, y: Tensor, whole: Tensor, kind: Kind, lines: int, draws: int) -> float:
    squares = [
        float((gradient(x, y, kind, lines, s) - whole).square().sum() / whole.square().sum()) for s in range(draws)
    ]
    return math.sqrt(sum(squares) / draws)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.directions")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--most", type=int, default=2**17, help="lines of the exact gradient")
    parser.add_argument("--out", type=Path, default=RESULTS / "directions.json")
    choice = parser.parse_args(words)
    one_thread()
    rows: list[dict[str, Any]] = []
    for d, lines, goal in CASES:
        x, y = (z.double() for z in points(choice.n, d))
        whole = exact(x, y, choice.most)
        mine, chance = (error(x, y, whole, kind, lines, choice.draws) for kind in ("auto", "random"))  # type: ignore[arg-type]
        rows.append(
            {"d": d, "lines": lines, "n": choice.n, "draws": choice.draws, "dmviz": digits(mine),
             "monte_carlo": digits(chance), "share": digits(mine / chance), "goal": goal, "met": mine <= goal * chance}
        )  # fmt: skip
        print(
            f"d={d} lines={lines}: dmviz {mine:.4g}, Monte Carlo {chance:.4g}, share {mine / chance:.3g} (goal {goal})",
            flush=True,
        )
    save({"machine": machine(), "cases": rows}, choice.out)


if __name__ == "__main__":
    main(sys.argv[1:])
