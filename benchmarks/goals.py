"""What dmviz wants of its speed and memory (P1 to P8), and whether the last results reach it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._measure import RESULTS, digits
from dmviz.catalog import entry_class, menu

Record = Mapping[str, Any]
COLD, FLOW, EAGER = "dmviz", "dmviz, in a flow", "dmviz, not compiled"
COARSE = "dmviz, coarse"  # Sinkhorn alone: with an error no worse than that of the peers it is compared with
BEST = "best peer"


class Goal(NamedTuple):
    """At least `times` fewer processor milliseconds than a peer, on one loss, size and dimension."""

    id: str
    loss: str
    n: int
    d: int
    way: str
    peer: str
    times: float


def _both(id: str, losses: tuple[str, ...], n: int, d: int, way: str, peer: str, times: float) -> list[Goal]:
    return [Goal(id, loss, n, d, way, peer, times) for loss in losses]


_PAIRS = ("energy_distance", "mmd")
GOALS = [
    Goal("P1", "sliced_wasserstein", 10_000, 2, COLD, "POT", 3.0),
    Goal("P1", "sliced_wasserstein", 10_000, 2, FLOW, "POT", 8.0),
    Goal("P1", "sliced_wasserstein", 500, 2, COLD, "POT", 2.5),
    Goal("P1", "sliced_wasserstein", 500, 2, FLOW, "POT", 4.0),
    Goal("P1", "sliced_wasserstein", 10_000, 64, COLD, "POT", 3.0),
    Goal("P1", "sliced_wasserstein", 10_000, 64, FLOW, "POT", 8.0),
    *_both("P2", _PAIRS, 2_000, 2, EAGER, BEST, 2.5),
    *_both("P2", _PAIRS, 2_000, 2, COLD, BEST, 8.0),
    *_both("P2", _PAIRS, 10_000, 2, EAGER, BEST, 2.5),
    *_both("P2", _PAIRS, 10_000, 2, COLD, BEST, 8.0),
    *_both("P3", _PAIRS, 2_000, 64, COLD, BEST, 2.0),
    *_both("P3", _PAIRS, 10_000, 64, COLD, "GeomLoss", 5.0),
    *_both("P3", _PAIRS, 10_000, 64, COLD, "by hand", 2.5),
    Goal("P4", "sinkhorn", 2_000, 2, COARSE, "GeomLoss", 3.0),
    Goal("P4", "sinkhorn", 10_000, 2, COARSE, "GeomLoss", 10.0),
    Goal("P4", "sinkhorn", 10_000, 64, COARSE, "GeomLoss", 3.5),
    *(Goal("P4", "sinkhorn", n, d, FLOW, COLD, 5.0) for n in (2_000, 10_000) for d in (2, 64)),
    Goal("P6", "sliced_wasserstein", 100_000, 2, COLD, "POT", 8.0),
    Goal("P5", "db_tsw", 10_000, 2, COLD, "authors' formulation", 2.5),
    Goal("P5", "db_tsw", 10_000, 64, COLD, "authors' formulation", 8.0),
    Goal("P5", "svgd", 10_000, 2, COLD, "by hand", 3.0),
    Goal("P5", "svgd", 10_000, 64, COLD, "by hand", 3.0),
    Goal("P5", "bures_wasserstein", 10_000, 2, COLD, "POT", 2.0),
    Goal("P5", "bures_wasserstein", 10_000, 64, COLD, "POT", 2.0),
]


def _milliseconds(case: Record, name: str) -> float | None:
    """Least processor time of one way, or of the fastest peer."""
    methods = case["methods"]
    if name == BEST:
        took = [m["cpu_ms"]["min"] for m in methods.values() if not m["ours"] and "cpu_ms" in m]
        return min(took, default=None)
    found = methods.get(name, {}).get("cpu_ms")
    return None if found is None else float(found["min"])


def verdicts(cases: list[Record]) -> list[dict[str, Any]]:
    """Each goal with what was reached; `met` is None where it was not measured.

    Beside them, for every case: never slower than the fastest peer.
    """
    table = {(case["loss"], case["n"], case["d"]): case for case in cases}
    goals = list(GOALS)
    goals += [
        Goal("never slower", loss, n, d, COARSE if loss == "sinkhorn" else COLD, BEST, 1.0) for loss, n, d in table
    ]
    return [_verdict(goal, table.get((goal.loss, goal.n, goal.d))) for goal in goals]


def _verdict(goal: Goal, case: Record | None) -> dict[str, Any]:
    mine = peer = None
    if case is not None:
        mine, peer = _milliseconds(case, goal.way), _milliseconds(case, goal.peer)
    reached = None if mine is None or peer is None else float(f"{peer / mine:.3g}")
    return goal._asdict() | {"reached": reached, "met": None if reached is None else reached >= goal.times}


# ------------------------------------------------------------------------------------------------------ all together


class Row(NamedTuple):
    """A goal in words. `met` is None where it was not measured."""

    id: str
    what: str
    wanted: str
    reached: str
    met: bool | None


def board(folder: Path = RESULTS) -> list[Row]:
    """Every goal beside what the results in a folder reach, in the order of their names."""
    names = ("losses", "every", "memory", "directions", "live")
    found = {name: json.loads(path.read_text()) if (path := folder / f"{name}.json").exists() else {} for name in names}
    rows = [_speed_row(v) for v in verdicts(found["losses"].get("cases", []))]
    rows += _large(found["memory"], found["every"]) + _directions(found["directions"]) + _live(found["live"])
    return sorted(rows, key=lambda row: row.id)


def _title(name: str) -> str:
    return str(entry_class("losses" if name in menu("losses") else "flows", name).title)


def _speed_row(v: Record) -> Row:
    what = f"{_title(v['loss'])}, n = {v['n']:,}, d = {v['d']}: {v['way']} against {v['peer']}"
    reached = "" if v["reached"] is None else f"{v['reached']:g} times as fast"
    return Row(v["id"], what, f"{v['times']:g} times as fast", reached, v["met"])


def _large(memory: Record, every: Record) -> list[Row]:
    """100,000 against 100,000 points in 2-D: memory, and the time of an exact energy distance."""
    rows = []
    for case in memory.get("cases", []):
        chosen = ", ".join(f"{key} {value}" for key, value in case["settings"].items())
        what = f"{_title(case['loss'])}{f' ({chosen})' if chosen else ''}, n = {case['n']:,}: memory of a step"
        goal, mb = memory["goal_mb"], case["growth_mb"]
        rows.append(Row("P6", what, f"{goal:g} MB at most", f"{mb:g} MB", mb <= goal))
    case = next(
        (c for c in every.get("cases", []) if (c["loss"], c["n"], c["d"]) == ("energy_distance", 100_000, 2)), {}
    )
    took = [way["cpu_ms"]["min"] / 1e3 for way in (case.get("from nothing"), case.get("in a flow")) if way]
    reached, met = (f"{digits(min(took)):g} CPU s", min(took) <= 10.0) if took else ("", None)
    return [*rows, Row("P6", "Energy distance, n = 100,000, d = 2: exact velocity", "10 CPU s at most", reached, met)]


def _directions(record: Record) -> list[Row]:
    return [
        Row("P7", f"Gradient error of {c['lines']} lines in {c['d']} dimensions, as a share of random lines'",
            f"{c['goal']:g} at most", f"{digits(c['share']):g}", c["met"])
        for c in record.get("cases", [])
    ]  # fmt: skip


def _live(record: Record) -> list[Row]:
    rows = []
    for c in record.get("cases", []):
        what = f"One step at {record['n']:,} points: {_title(c['loss'])}, {entry_class('flows', c['flow']).title}"
        ms = min(c["wall_ms"]["median"], c["cpu_ms"]["median"])
        if not c["exempt"]:
            rows.append(Row("P8", what, f"{record['goal_ms']:g} ms at most", f"{digits(ms):g} ms", c["met"]))
    if "overhead" in record:
        added, goal = record["overhead"]["median_ms"], record["overhead"]["goal_ms"]
        rows.append(Row("P8", "What `simulate` adds to a step", f"{goal:g} ms at most", f"{added:g} ms", added <= goal))
    return rows
