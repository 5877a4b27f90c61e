"""`python -m benchmarks.every`: every loss of the menu at every size: time of a velocity, peak memory, slope in n.

No loss is named here: the menu is walked, each with its defaults, in a process of its own with one torch thread. *From
nothing* is one velocity of a target never seen before; *in a flow*, where it differs, is one with the target prepared
and with what the step before left behind. Losses that only judge are timed by their value. Whatever is left out says
why. Peers are not measured again: those of losses.json are laid beside the sizes they share.
"""

import argparse
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks._measure import (
    RESULTS,
    Times,
    digits,
    free_mb,
    machine,
    one_thread,
    peak_growth,
    save,
    timed,
    warm_kernels,
)
from benchmarks.losses import STEP, points
from dmviz.catalog import entry_class, menu
from dmviz.cloud import Cloud, seeded
from dmviz.field import dims_of, drives, velocity_of

Case = dict[str, Any]
SIZES = (500, 2_000, 10_000, 100_000)
DIMS = (2, 64)
MOST_REPEATS = 20
COLD, FLOW = "from nothing", "in a flow"
STARTING_S = 300.0  # until a process answers at all: kernels may have to be compiled
FINAL = ("too", "stopped")  # how reasons begin that hold for larger sizes as well


class Bounds(NamedTuple):
    """What a call may take, for how long a way is repeated, and what a process may take in all, in seconds."""

    call_s: float = 20.0
    method_s: float = 0.7
    process_s: float = 60.0

    @property
    def case_s(self) -> float:
        """When a case that was foreseen to fit is stopped."""
        return 3 * self.call_s + 2 * self.method_s + 10


# ------------------------------------------------------------------------------------------------------------ one case


def problem(n: int, d: int) -> tuple[Tensor, Cloud]:
    """Particles, and a target of two heaps with its labels and its exact law."""
    x, y = points(n, d)
    scale = math.sqrt(2.0 / d)
    middle, width = torch.zeros(2, d), 0.5 * scale
    middle[0, 0], middle[1, 0] = 2.0 * scale, -1.0 * scale

    def parts(z: Tensor) -> Tensor:  # (K, 2) log density of each heap, without its norm
        return -(z[:, None] - middle.to(z)).square().sum(-1) / (2 * width**2)

    def log_prob(z: Tensor) -> Tensor:
        return parts(z).logsumexp(1) - math.log(2) - d / 2 * math.log(2 * math.pi * width**2)

    def score(z: Tensor) -> Tensor:
        return (parts(z).softmax(1) @ middle.to(z) - z) / width**2

    return x, Cloud(y, label=torch.arange(n) % 2, score=score, log_prob=log_prob)


def dims_for(loss: Any, wanted: Sequence[int]) -> list[int]:
    """The wanted dimensions, or the nearest that the loss allows, each once."""
    least, most = dims_of(loss)
    return sorted({min(max(d, least), most or max(d, least)) for d in wanted})


def measured(name: str, n: int, d: int, bounds: Bounds) -> Case:
    """Times and memory of one loss at one size; a size that the loss refuses leaves its sentence."""
    loss = entry_class("losses", name)()
    x, target = problem(n, d)
    found: Case = {"loss": name, "n": n, "d": d, "of": "velocity" if drives(loss) else "value", "skipped": ""}
    try:
        took, carry = _timed(lambda: _ask(loss, x, target), bounds)
        found[COLD] = took
        if drives(loss) and (hasattr(loss, "prepare") or carry[-1] is not None):
            if took["wall_ms"]["min"] > 1e3 * bounds.call_s / 3:
                seconds = took["wall_ms"]["min"] / 1e3
                found[f"{FLOW}, skipped"] = f"the step before it takes about {seconds:.0f} s"
            else:
                found[FLOW] = _in_a_flow(loss, x, target, carry[0], bounds)
    except ValueError as refusal:
        found["skipped"] = f"refused: {refusal}"
    except (MemoryError, RuntimeError) as error:
        found["skipped"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return found


def _ask(loss: Any, x: Tensor, target: Cloud, carry: Any = None) -> Any:
    """What is timed: the velocity, or the value of a loss that has none."""
    if drives(loss):
        return velocity_of(loss, x, target, seeded(0), None, carry)
    with torch.no_grad():
        return loss(x, target, seeded(0))


def _in_a_flow(loss: Any, x: Tensor, target: Cloud, v: Tensor, bounds: Bounds) -> Case:
    ready = loss.prepare(target) if hasattr(loss, "prepare") else target
    carry = _ask(loss, x - STEP * v, ready).carry  # a step before that led straight here
    return _timed(lambda: _ask(loss, x, ready, carry), bounds)[0]


def _timed(call: Callable[[], Any], bounds: Bounds) -> tuple[Case, Any]:
    """Peak memory of the first call, times of those after it, and what the first gave.

    The first may compile or load something at this size, so that its time does not count.
    """
    kept: list[Any] = []
    began = time.perf_counter()
    peak, _ = peak_growth(lambda: kept.append(call()))
    first = time.perf_counter() - began
    times, began = Times([], []), time.perf_counter()
    while not times.cpu or (time.perf_counter() - began < bounds.method_s and len(times.cpu) < MOST_REPEATS):
        cpu, wall = timed(call)
        times.cpu.append(cpu)
        times.wall.append(wall)
    return {**times.record(), "first_s": digits(first), "peak_mb": digits(peak)}, kept[0]


# ----------------------------------------------------------------------------------------------------- what is left out


def foreseen(before: Sequence[tuple[int, float]], n: int, most: float = 3.0) -> float:
    """A number at n, by its last slope at smaller sizes; as n^2 where there is one size alone.

    >>> foreseen([(500, 1.0)], 1_000), foreseen([(500, 1.0), (1_000, 8.0)], 2_000)
    (4.0, 64.0)
    """
    slope = 2.0
    if len(before) > 1:
        (first_n, first), (last_n, last) = before[-2:]
        slope = min(max(math.log(max(last, 1e-9) / max(first, 1e-9)) / math.log(last_n / first_n), 1.0), most)
    return before[-1][1] * (n / before[-1][0]) ** slope


def refusal(n: int, smaller: Sequence[Case], bounds: Bounds, left_s: float) -> str:
    """Why a size is not tried, or "". Foreseen from the smaller sizes of the same loss and dimension."""
    if smaller and smaller[-1]["skipped"].startswith(FINAL):
        return str(smaller[-1]["skipped"])
    known = [case for case in smaller if COLD in case]
    if known:
        took = foreseen([(case["n"], case[COLD]["wall_ms"]["min"] / 1e3) for case in known], n)
        room = foreseen([(case["n"], max(case[COLD]["peak_mb"], 0.1)) for case in known], n, 2.0)
        if took > bounds.call_s:
            return f"too slow: about {took:.0f} s a call, the bound is {bounds.call_s:g} s"
        if room > 0.7 * free_mb():
            return f"too much memory: about {room / 1e3:.0f} GB"
        if took > left_s:
            return f"no time left: about {took:.0f} s a call"
    return "no time left" if left_s <= 0 else ""


# ---------------------------------------------------------------------------------------------------------- processes


def work(name: str, jobs: Sequence[tuple[int, int]], known: list[Case], bounds: Bounds) -> Iterator[Case]:
    """In a process of its own: all sizes of one loss, each announced before it begins."""
    one_thread()
    warm_kernels()
    deadline = time.monotonic() + bounds.process_s
    warm: set[int] = set()
    for n, d in jobs:
        smaller = [case for case in known if case["d"] == d and case["n"] < n]
        if reason := refusal(n, smaller, bounds, deadline - time.monotonic()):
            case = left_out(name, n, d, reason)
        else:
            if d not in warm:
                measured(name, 64, d, bounds._replace(method_s=0.0))
                warm.add(d)
            yield {"begins": [n, d]}
            case = measured(name, n, d, bounds)
        known.append(case)
        yield case


def left_out(name: str, n: int, d: int, reason: str) -> Case:
    of = "velocity" if drives(entry_class("losses", name)) else "value"
    return {"loss": name, "n": n, "d": d, "of": of, "skipped": reason}


def in_own_process(
    name: str,
    jobs: Sequence[tuple[int, int]],
    bounds: Bounds,
    known: Sequence[Case] = (),
    tick: Callable[[], object] = lambda: None,
) -> Iterator[Case]:
    """The cases of one loss as they come. A process that hangs is stopped, and another goes on with other dimensions.

    `tick` is called five times a second; what it raises ends all.
    """
    todo, known = list(jobs), list(known)
    while todo:
        for case in _one_process(name, todo, bounds, known, tick):
            todo.remove((case["n"], case["d"]))
            known.append(case)
            yield case


def here(name: str, jobs: Sequence[tuple[int, int]], tick: Callable[[], object]) -> Iterator[Case]:
    """One loss, for someone who waits: calls of 5 seconds at most, within about a minute."""
    return in_own_process(name, jobs, Bounds(5.0, 0.5, 45.0), tick=tick)


def _one_process(
    name: str, jobs: Sequence[tuple[int, int]], bounds: Bounds, known: Sequence[Case], tick: Callable[[], object]
) -> Iterator[Case]:
    job = {"name": name, "jobs": list(jobs), "known": list(known), "bounds": list(bounds)}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.every", "--job", "-"], cwd=Path(__file__).parent.parent, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        left, limit = list(jobs), [STARTING_S]
        now = left[0]
        for line in _lines(process, limit, tick):
            if "begins" in line:
                now, limit[0] = tuple(line["begins"]), bounds.case_s
            else:
                left.remove((line["n"], line["d"]))
                yield line
                now, limit[0] = left[0] if left else now, STARTING_S
        if left:
            yield left_out(name, *now, _ending(process, limit[0]))
    finally:
        process.kill()
        process.wait()


def _lines(process: Any, limit: Sequence[float], tick: Callable[[], object]) -> Iterator[Case]:
    """What the process says, until it ends or says nothing for longer than the limit of the moment, `limit[0]`."""
    said: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        for line in process.stdout:
            said.put(line)
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    since = time.monotonic()
    while time.monotonic() - since < limit[0]:
        tick()
        try:
            line = said.get(timeout=0.2)
        except queue.Empty:
            continue
        if line is None:
            return
        since = time.monotonic()
        if line.startswith("{"):
            yield json.loads(line)


def _ending(process: Any, limit: float) -> str:
    try:
        return f"stopped: its process ended with code {process.wait(2)}"
    except subprocess.TimeoutExpired:
        return f"stopped: no answer after {limit:.0f} s"


# ---------------------------------------------------------------------------------------------------------------- all


def slopes(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each loss and dimension: the exponent of n in its time, by least squares of logarithms.

    From 2,000 points on, where two sizes are; smaller ones measure what every call costs.
    """
    found = []
    key = lambda case: (case["loss"], case["d"])  # noqa: E731
    for (name, d), group in groupby(sorted(cases, key=key), key):
        known = sorted((c["n"], c[COLD]["cpu_ms"]["min"]) for c in group if COLD in c)
        large = [pair for pair in known if pair[0] >= 2_000]
        chosen = large if len(large) > 1 else known
        if len(chosen) > 1:
            logs = [(math.log(n), math.log(max(ms, 1e-6))) for n, ms in chosen]
            found.append({"loss": name, "d": d, "slope": digits(_slope(logs)), "sizes": [n for n, _ in chosen]})
    return found


def _slope(pairs: Sequence[tuple[float, float]]) -> float:
    across, up = (sum(p[i] for p in pairs) / len(pairs) for i in (0, 1))
    return sum((a - across) * (u - up) for a, u in pairs) / sum((a - across) ** 2 for a, _ in pairs)


def with_peers(cases: Sequence[Case], contests: dict[str, Any]) -> list[Case]:
    """The cases, each with the peers that losses.json measured on the same loss, size and dimension."""
    table = {(case["loss"], case["n"], case["d"]): case for case in contests.get("cases", ())}
    found = []
    for case in cases:
        contest = table.get((case["loss"], case["n"], case["d"]))
        found.append(case | ({"contest": _contest(contest)} if contest else {}))
    return found


def _contest(contest: Case) -> dict[str, Any]:
    ways = {}
    for name, way in contest["methods"].items():
        kept = {key: way[key] for key in ("ours", "skipped", "gradient_error", "peak_mb", "cpu_ms") if key in way}
        ways[name] = kept
    return {"methods": ways, "ratios": contest.get("ratios", {})}


def main(words: list[str] | None = None) -> None:
    choice = _arguments(words)
    if choice.job:
        for line in work(**_job(json.load(sys.stdin))):
            print(json.dumps(line), flush=True)
        return
    names = choice.only or list(menu("losses"))
    jobs = {name: _jobs(name, choice) for name in names}
    cases = [c for c in _before(choice) if (c["n"], c["d"]) not in jobs.get(c["loss"], ())]
    record = {"machine": machine() | {"torch_threads": 1}, "settings": _settings(choice), "cases": cases}
    record["settings"]["contests"] = {key: _contests(choice.contests).get("machine", {}).get(key, "")
                                      for key in ("date", "cpu")}  # fmt: skip
    start = time.monotonic()
    while jobs and time.monotonic() - start < choice.budget:
        jobs = _round(jobs, cases, choice, start, lambda: _saved(record, cases, choice, start))
    for name, rest in jobs.items():
        known = {(c["n"], c["d"]) for c in cases if c["loss"] == name}
        cases += [left_out(name, n, d, "no time left") for n, d in rest if (n, d) not in known]
    _saved(record, cases, choice, start)
    print(f"wrote {choice.out.name}", flush=True)


def _round(
    jobs: dict[str, list[tuple[int, int]]], cases: list[Case], choice: Any, start: float, keep: Callable[[], None]
) -> dict[str, list[tuple[int, int]]]:
    """Every loss once, each with its share of the time that is left; what found no time, for another round.

    Nothing is left for another round once a whole round found time for nothing more.
    """
    again: dict[str, list[tuple[int, int]]] = {}
    progress = False
    for i, (name, todo) in enumerate(jobs.items()):
        left = choice.budget - (time.monotonic() - start)
        if left <= 0:
            again[name] = todo
            continue
        bounds = Bounds(choice.call, choice.repeat, max(left / (len(jobs) - i), 1.0))
        known = [c for c in cases if c["loss"] == name and (c["n"], c["d"]) not in todo]
        cases[:] = [c for c in cases if c["loss"] != name or (c["n"], c["d"]) not in todo]
        for case in in_own_process(name, todo, bounds, known):
            cases.append(case)
            progress |= not case["skipped"].startswith("no time")
            if case["skipped"].startswith("no time"):
                again.setdefault(name, []).append((case["n"], case["d"]))
            print(f"[{time.monotonic() - start:5.0f} s] {_line(case)}", flush=True)
        keep()  # a run that is cut short leaves what it found
    return again if progress else {}


def _saved(record: dict[str, Any], cases: list[Case], choice: Any, start: float) -> None:
    known = set(menu("losses"))
    kept = sorted((c for c in cases if c["loss"] in known), key=lambda c: (c["loss"], c["d"], c["n"]))
    record["cases"] = with_peers(kept, _contests(choice.contests))
    record["slopes"], record["seconds"] = slopes(kept), round(time.monotonic() - start)
    save(record, choice.out)


def _line(case: Case) -> str:
    what = f"{case['loss']} n={case['n']:,} d={case['d']}: "
    if case["skipped"]:
        return what + case["skipped"]
    flow = f", in a flow {case[FLOW]['cpu_ms']['min']:.4g}" if FLOW in case else ""
    return what + f"{case[COLD]['cpu_ms']['min']:.4g} CPU ms{flow}, {case[COLD]['peak_mb']:.3g} MB"


def _jobs(name: str, choice: Any) -> list[tuple[int, int]]:
    return [(n, d) for n in choice.sizes for d in dims_for(entry_class("losses", name), choice.dims)]


def _job(words: dict[str, Any]) -> dict[str, Any]:
    return words | {"jobs": [(n, d) for n, d in words["jobs"]], "bounds": Bounds(*words["bounds"])}


def _before(choice: Any) -> list[Case]:
    """What a run of some losses, sizes or dimensions leaves as it was: the rest, where this machine measured it."""
    some = choice.only or (choice.sizes, choice.dims) != (list(SIZES), list(DIMS))
    found = json.loads(choice.out.read_text()) if some and choice.out.exists() else {}
    if found.get("machine", {}).get("cpu") != machine()["cpu"]:
        return []
    return [{key: value for key, value in case.items() if key != "contest"} for case in found["cases"]]


def _contests(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _settings(choice: Any) -> dict[str, Any]:
    return {
        "call_s": choice.call, "budget_s": choice.budget, "step": STEP, "sizes": choice.sizes, "dims": choice.dims,
        "points": "standard normal against two heaps, both scaled by sqrt(2 / d); n = m, uniform weights, float32",
    }  # fmt: skip


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.every", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which nothing new is started")
    parser.add_argument("--call", type=float, default=20.0, help="seconds that one call may take")
    parser.add_argument("--repeat", type=float, default=0.7, help="seconds for which each way is repeated")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS))
    parser.add_argument("--only", nargs="+", choices=menu("losses"), metavar="LOSS", help="these alone; the rest stays")
    parser.add_argument("--contests", type=Path, default=RESULTS / "losses.json", help="where the peers are")
    parser.add_argument("--out", type=Path, default=RESULTS / "every.json")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
