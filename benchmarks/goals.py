"""What dmviz wants of its speed and memory (P1 to P8), and whether the last results reach it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
