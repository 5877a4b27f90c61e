"""Large clouds fit in little memory: measured in a process of its own, where all pairs at once would be gigabytes."""

import sys
from typing import Any

import pytest

from benchmarks.memory import GOAL_MB, in_own_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark of memory is read from /proc"),
]


def too_large(*jobs: dict[str, Any], compiled: bool = True) -> list[tuple[dict[str, Any], float]]:
    """Jobs that take more than the goal, with how much."""
    grown = [found["growth_mb"] for found in in_own_process(*jobs, compiled=compiled)]
    return [(job, mb) for job, mb in zip(jobs, grown, strict=True) if mb > GOAL_MB]


def test_hundred_thousand_points_on_lines_fit_in_64_mb() -> None:
    line_losses = [
        {"loss": "sliced_wasserstein"},
        {"loss": "sliced_wasserstein", "draw": "fixed", "slices": 100},
        {"loss": "db_tsw"},
        {"loss": "db_tsw", "draw": "fixed"},
        {"loss": "tsw_sl"},
    ]
    assert not too_large(*({"n": 100_000, "prepared": True, **loss} for loss in line_losses))


def test_all_pairs_are_never_stored() -> None:
    jobs = [
        {"loss": "sinkhorn", "iterations": 1, "blur": 0.5, "n": 8_000},
        *({"loss": loss, "n": 20_000} for loss in ("energy_distance", "mmd", "ksd")),
    ]
    assert all(4e-6 * job["n"] ** 2 >= 4 * GOAL_MB - 1 for job in jobs)  # MB of one float32 number a pair
    assert not too_large(*jobs)


def test_all_pairs_are_never_stored_without_compiled_kernels_either() -> None:
    jobs = [{"loss": loss, "n": 6_000} for loss in ("energy_distance", "mmd", "ksd")]  # all pairs: 144 MB an array
    assert not too_large(*jobs, compiled=False)


def test_the_measure_sees_what_a_loss_stores() -> None:
    (found,) = in_own_process({"loss": "wasserstein", "n": 1_500})  # exact transport does hold all pairs
    assert found["growth_mb"] > 1_500**2 * 8e-6
