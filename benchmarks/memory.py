"""`python -m benchmarks.memory`: how far memory grows during one gradient of two large clouds, in a process of its own.

The goal: 64 MB at most for 100,000 against 100,000 points in 2-D, for sliced and pair losses; all pairs at once would
be 40 GB in float32. Points exist before the measurement starts; the gradient, 0.8 MB, counts. Libraries
are loaded first, by a call on 256 points; so are the compiled kernels, whose compiler takes about 150 MB, once.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._measure import RESULTS, digits, machine, one_thread, peak_growth, save, timed, warm_kernels

GOAL_MB = 64.0


class Case(NamedTuple):
    """A loss at a size. `n` is smaller where 10^10 pairs would take minutes, and the record says so."""

    loss: str
    settings: dict[str, Any]
    n: int = 100_000
    prepared: bool = True
    why: str = ""


CASES = (
    Case("sliced_wasserstein", {"slices": 100}),
    Case("sliced_wasserstein", {"slices": 100, "draw": "fixed"}),
    Case("db_tsw", {"trees": 25, "lines": 4}),
    Case("db_tsw", {"trees": 25, "lines": 4, "draw": "fixed"}),
    Case("tsw_sl", {}),
    Case("bures_wasserstein", {}),
    Case("energy_distance", {}, prepared=False),
    Case("mmd", {"kernel": "gaussian"}, prepared=False),
    Case("mmd", {"kernel": "laplacian"}, prepared=False),
    Case("mmd", {"kernel": "imq"}, prepared=False),
    Case("mmd", {"kernel": "multi_scale"}, 30_000, False, "five exponentials a pair"),
    Case("ksd", {"kernel": "gaussian"}, prepared=False),
    Case("sinkhorn", {}, 20_000, True, "a solve takes tens of passes over all pairs"),
)


def growth(loss: str, n: int, prepared: bool = False, **settings: Any) -> dict[str, Any]:
    """Peak growth in MB, in this process, of preparing the target (where asked for) and of one velocity."""
    import torch

    from dmviz.catalog import entry_class
    from dmviz.cloud import Cloud, normal, seeded
    from dmviz.field import aim, velocity_of

    one_thread()
    if os.environ.get("DMVIZ_COMPILE") != "0":
        warm_kernels()
    entry = entry_class("losses", loss)(**settings)
    rng, like = seeded(1), torch.zeros(())
    x, y = normal((n, 2), like, rng), 0.5 * normal((n, 2), like, rng) + 1.0

    def step(rows: int) -> None:
        target = Cloud(y[:rows], score=lambda z: 1.0 - z)
        if prepared:
            aim(entry, target)(x[:rows], seeded(0))
        else:
            velocity_of(entry, x[:rows], target, seeded(0))

    step(256)
    took: list[tuple[float, float]] = []
    peak, words = peak_growth(lambda: took.append(timed(lambda: step(n))))
    (cpu, wall) = took[0]
    return {"growth_mb": digits(peak), "measured_by": words, "cpu_ms": digits(cpu), "wall_ms": digits(wall)}


def in_own_process(*jobs: dict[str, Any], compiled: bool = True) -> list[dict[str, Any]]:
    """`growth` of each job, in a fresh process: nothing that other work freed can be used again unseen."""
    command = [sys.executable, "-m", "benchmarks.memory", "--jobs", json.dumps(jobs)]
    place = Path(__file__).parent.parent
    env = {**os.environ, "DMVIZ_COMPILE": "1" if compiled else "0"}
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{jobs}: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.strip().splitlines()[-len(jobs) :]]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--jobs", help=argparse.SUPPRESS)
    parser.add_argument("--only", help="one loss")
    parser.add_argument("--n", type=int, help="another number of points for all")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json")
    choice = parser.parse_args(words)
    if choice.jobs:
        for job in json.loads(choice.jobs):
            print(json.dumps(growth(**job)), flush=True)
        return
    one_thread()
    cases: list[dict[str, Any]] = []
    record = {"machine": machine(), "goal_mb": GOAL_MB, "cases": cases}
    for case in CASES:
        if choice.only in (None, case.loss):
            n = choice.n or case.n
            (found,) = in_own_process({"loss": case.loss, "n": n, "prepared": case.prepared, **case.settings})
            row = {"loss": case.loss, "settings": case.settings, "n": n, "d": 2, "prepared": case.prepared, **found}
            cases.append(row | ({"smaller_because": case.why} if case.why else {}))
            print(
                f"{case.loss} {case.settings or ''} n={n:,}: {found['growth_mb']} MB, {found['cpu_ms']} CPU ms",
                flush=True,
            )
            save(record, choice.out)


if __name__ == "__main__":
    main(sys.argv[1:])
