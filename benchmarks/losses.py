"""`python -m benchmarks.losses`: one gradient of each loss in the particles, dmviz and its peers, in one process.

Everyone gets the same float32 points, and the same directions, trees, bandwidth and blur. Calls take turns. What counts
is processor time over all threads (the minimum and the median of the repeats), beside it the time on the wall, the
error of the gradient against one in float64, and the peak of memory during a call. torch has one thread.
"""

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks import _peers as peers
from benchmarks._exact import sinkhorn_gradient
from benchmarks._measure import (
    RESULTS,
    digits,
    free_mb,
    interleaved,
    machine,
    one_thread,
    peak_growth,
    relative_error,
    save,
    warm_kernels,
)
from benchmarks._peers import Gradient
from dmviz.catalog import entry_class
from dmviz.cloud import Cloud, normal, seeded
from dmviz.field import velocity_of
from dmviz.protocols import Loss

SIZES = (500, 2_000, 10_000)
DIMS = (2, 64)
LARGE = (100_000, "sliced_wasserstein", 2)
LINES = 100
TREES, BRANCHES, DELTA = 25, 4, 2.0
BANDWIDTH, BLUR = 0.5, 0.05
DENSE = 2_000  # points up to which the reference for Sinkhorn holds all pairs in float64
STEP = 0.1  # time between two steps of a flow, for what a step starts from


class Method(NamedTuple):
    """One way to the gradient. `make` does what is not to be timed: compiling, or work that is done once a run."""

    name: str
    make: Callable[[], Gradient]
    ours: bool = False
    needs: str = ""  # module without which there is no such method
    order: int = 1  # time and memory grow as N^order
    stored: int = 0  # N x M arrays of float32 that it holds at once, about


class Contest(NamedTuple):
    """All ways to one gradient, and the one that all are compared with."""

    methods: list[Method]
    exact: Gradient
    exact_words: str


def points(n: int, d: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """float32 (N, D) standard normal particles, and as many target points in two heaps.

    Scaled so that the mean squared norm of the particles is 2 in every dimension: one bandwidth then suits all.
    """
    rng = seeded(seed, n, d)
    like = torch.zeros((), dtype=torch.float64)
    x, y = normal((n, d), like, rng), 0.5 * normal((n, d), like, rng)
    y[::2, 0] += 2.0
    y[1::2, 0] -= 1.0
    scale = math.sqrt(2.0 / d)
    return (x * scale).float(), (y * scale).float()


# ------------------------------------------------------------------------------------------------------- ways of dmviz


def ours(
    name: str, loss: Loss, x: Tensor, y: Tensor, kept: bool = False, carried: bool = False, order: int = 1
) -> Method:
    """dmviz' velocity, which is minus the gradient times N.

    `kept`: with the target prepared. `carried`: from what the step before left behind, as in a flow.
    """

    def make() -> Gradient:
        velocity_of(loss, x[:64], Cloud(y[:64]), seeded(0))
        target = loss.prepare(Cloud(y)) if kept else Cloud(y)  # type: ignore[attr-defined]
        carry = _carry(loss, x, target) if carried else None
        return lambda: velocity_of(loss, x, target, seeded(0), None, carry).v * (-1.0 / len(x))

    return Method(name, make, ours=True, order=order)


def _carry(loss: Loss, x: Tensor, target: Cloud) -> Any:
    """What a flow would bring along to x: the end of three steps that led straight there."""
    v, carry = velocity_of(loss, x, target, seeded(0)).v, None
    for left in (3, 2, 1):
        carry = velocity_of(loss, x - left * STEP * v, target, seeded(0), None, carry).carry
    return carry


def eager(loss: Loss, x: Tensor, y: Tensor) -> Method:
    """The same cold gradient without compiled kernels: what runs while they are being made."""

    def make() -> Gradient:
        def gradient() -> Tensor:
            with mock.patch.dict(os.environ, {"DMVIZ_COMPILE": "0"}):
                return velocity_of(loss, x, Cloud(y), seeded(0)).v * (-1.0 / len(x))

        return gradient

    return Method("dmviz, not compiled", make, ours=True, order=2)


def exactly(loss: Loss, x: Tensor, y: Tensor) -> Gradient:
    """The gradient of dmviz in float64, at the very same points."""
    return lambda: velocity_of(loss, x.double(), Cloud(y.double()), seeded(0)).v * (-1.0 / len(x))


def _loss(name: str, **settings: Any) -> Loss:
    return entry_class("losses", name)(**settings)  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ contests


def sliced(x: Tensor, y: Tensor) -> Contest:
    from dmviz.losses._slicing import fixed_unit_vectors

    loss = _loss("sliced_wasserstein", slices=LINES, directions="random", draw="fixed")
    theta = fixed_unit_vectors("random", LINES, x.shape[1], 0).float()
    methods = [
        ours("dmviz", loss, x, y),
        ours("dmviz, in a flow", loss, x, y, kept=True, carried=True),
        Method("POT", lambda: peers.pot_sliced(x, y, theta)),
        Method("by hand", lambda: peers.hand_sliced(x, y, theta)),
        Method("OTT-JAX", lambda: peers.ott_sliced(x, y, theta), needs="ott"),
    ]
    return Contest(methods, exactly(loss, x, y), "dmviz in float64 on the same 100 directions")


def energy(x: Tensor, y: Tensor) -> Contest:
    loss = _loss("energy_distance")
    methods = [*_pair_ways(loss, x, y), *_pair_peers("energy", x, y)]
    methods.append(Method("by hand", lambda: peers.hand_energy(x, y), order=2, stored=5))
    return Contest(methods, exactly(loss, x, y), "dmviz in float64")


def gaussian(x: Tensor, y: Tensor) -> Contest:
    loss = _loss("mmd", bandwidth=BANDWIDTH)
    methods = [*_pair_ways(loss, x, y), *_pair_peers("gaussian", x, y)]
    methods.append(Method("by hand", lambda: peers.hand_gaussian(x, y, BANDWIDTH), order=2, stored=8))
    return Contest(methods, exactly(loss, x, y), "dmviz in float64")


def _pair_ways(loss: Loss, x: Tensor, y: Tensor) -> list[Method]:
    return [
        ours("dmviz", loss, x, y, order=2),
        ours("dmviz, in a flow", loss, x, y, kept=True, order=2),
        eager(loss, x, y),
    ]


def _pair_peers(kernel: str, x: Tensor, y: Tensor) -> list[Method]:
    return [
        Method("GeomLoss", lambda: peers.geomloss_pairs(kernel, x, y, BANDWIDTH), needs="geomloss", order=2, stored=8),
        Method("KeOps", lambda: peers.keops_pairs(kernel, x, y, BANDWIDTH), needs="pykeops.torch", order=2),
    ]


def sinkhorn(x: Tensor, y: Tensor) -> Contest:
    loss = _loss("sinkhorn", blur=BLUR)
    # Annealed and swept once: still more exact than the peers' defaults, which it is compared with.
    coarse = _loss("sinkhorn", blur=BLUR, tolerance=0.5, iterations=1)

    def geomloss(backend: str, scaling: float = 0.5) -> Callable[[], Gradient]:
        return lambda: peers.geomloss_sinkhorn(backend, x, y, BLUR, scaling)

    methods = [
        ours("dmviz", loss, x, y, order=2),
        ours("dmviz, in a flow", loss, x, y, kept=True, carried=True, order=2),
        eager(loss, x, y),
        ours("dmviz, coarse", coarse, x, y, order=2),
        Method("GeomLoss", geomloss("tensorized"), needs="geomloss", order=2, stored=8),
        Method("GeomLoss, scaling .9", geomloss("tensorized", 0.9), needs="geomloss", order=2, stored=8),
        Method("KeOps", geomloss("online"), needs="pykeops.torch", order=2),
    ]
    if x.shape[1] <= 3:
        methods.append(Method("GeomLoss multiscale", geomloss("multiscale"), needs="pykeops.torch", order=2))
    if len(x) <= 500:  # 25 seconds at 2,000
        methods.append(Method("OTT-JAX", lambda: peers.ott_sinkhorn(x, y, BLUR), needs="ott", order=2, stored=8))
    if len(x) <= DENSE:
        return Contest(methods, lambda: sinkhorn_gradient(x, y, BLUR), "Newton's method in float64, to rounding error")
    sharp = _loss("sinkhorn", blur=BLUR, tolerance=1e-3, iterations=200)
    words = "dmviz in float32, 200 sweeps or until 0.1 % of the mass is misplaced: good to about that"
    return Contest(methods, lambda: velocity_of(sharp, x, Cloud(y), seeded(0)).v * (-1.0 / len(x)), words)


def bures(x: Tensor, y: Tensor) -> Contest:
    loss = _loss("bures_wasserstein")
    methods = [
        ours("dmviz", loss, x, y),
        ours("dmviz, in a flow", loss, x, y, kept=True),
        Method("POT", lambda: peers.pot_bures(x, y)),
    ]
    return Contest(methods, exactly(loss, x, y), "dmviz in float64")


def svgd(x: Tensor, y: Tensor) -> Contest:
    from dmviz.flows.svgd import stein_direction

    def score(z: Tensor) -> Tensor:
        return -z

    methods = [
        Method("dmviz", lambda: lambda: stein_direction(x, score(x), BANDWIDTH), ours=True, order=2),
        Method("by hand", lambda: peers.hand_svgd(x, score, BANDWIDTH), order=2, stored=3),
    ]
    exact = x.double()
    return Contest(methods, lambda: stein_direction(exact, score(exact), BANDWIDTH), "dmviz in float64")


def trees(x: Tensor, y: Tensor) -> Contest:
    from dmviz.losses._trees import mean_of

    loss = _loss("db_tsw", trees=TREES, lines=BRANCHES, delta=DELTA, draw="fixed")
    drawn = loss._fixed(Cloud(y))  # type: ignore[attr-defined]  # the same trees for everyone
    root, theta = (drawn.root + mean_of(Cloud(y))).to(x), drawn.theta.to(x)
    methods = [
        ours("dmviz", loss, x, y),
        ours("dmviz, in a flow", loss, x, y, kept=True),
        Method("authors' formulation", lambda: peers.authors_tree(x, y, root, theta, DELTA)),
    ]
    return Contest(methods, exactly(loss, x, y), "dmviz in float64 on the same 25 trees of 4 lines")


CONTESTS: dict[str, Callable[[Tensor, Tensor], Contest]] = {
    "sliced_wasserstein": sliced,
    "db_tsw": trees,
    "bures_wasserstein": bures,
    "energy_distance": energy,
    "mmd": gaussian,
    "svgd": svgd,
    "sinkhorn": sinkhorn,
}


# ----------------------------------------------------------------------------------------------------------- one case


class Bounds(NamedTuple):
    """What a method may cost before it is left out, and how long a case is measured."""

    call_s: float
    method_s: float
    deadline: float  # on the monotonic clock


def measured(name: str, n: int, d: int, bounds: Bounds, smaller: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All methods on one loss, size and dimension. `smaller`: their records at the size before."""
    x, y = points(n, d)
    contest = CONTESTS[name](x, y)
    record: dict[str, dict[str, Any]] = {}
    calls: dict[str, Gradient] = {}
    for method in contest.methods:
        record[method.name] = {"ours": method.ours, "skipped": _refusal(method, n, bounds, smaller.get(method.name))}
        if not record[method.name]["skipped"]:
            try:
                calls[method.name] = method.make()
            except Exception as error:  # a peer that fails says so and leaves the rest alone
                if method.ours:
                    raise
                record[method.name]["skipped"] = f"failed: {type(error).__name__}"
    if not calls:
        return {"loss": name, "n": n, "d": d, "methods": record, "ratios": {}}
    exact = contest.exact()
    firsts: dict[str, tuple[float, float]] = {}
    for key, call in list(calls.items()):
        try:
            found, firsts[key], record[key]["peak_mb"], record[key]["peak_by"] = _first(call)
        except Exception as error:
            if record[key]["ours"]:
                raise
            record[key]["skipped"] = f"failed: {type(error).__name__}"
            del calls[key]
            continue
        record[key]["gradient_error"] = digits(relative_error(found, exact))
    for key, times in interleaved(calls, firsts, bounds.method_s).items():
        record[key] |= times.record()
    return {
        "loss": name, "n": n, "d": d, "reference": contest.exact_words, "methods": record, "ratios": ratios(record),
    }  # fmt: skip


def _first(call: Gradient) -> tuple[Tensor, tuple[float, float], float, str]:
    """Gradient, CPU and wall milliseconds, and peak memory of the first call."""
    kept: list[Tensor] = []
    wall, cpu = time.perf_counter(), time.process_time()
    peak, words = peak_growth(lambda: kept.append(call()))
    took = 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)
    return kept[0], took, digits(peak), words


def _refusal(method: Method, n: int, bounds: Bounds, smaller: dict[str, Any] | None) -> str:
    """Why a method is left out, or "". Time and memory are foreseen from the size before."""
    if method.needs and not peers.installed(method.needs):
        return f"{method.needs.split('.')[0]} does not import here"
    if smaller and smaller.get("skipped", "").startswith(("failed", "too")):
        return str(smaller["skipped"])
    if method.stored * 4e-6 * n * n > 0.7 * free_mb():
        return f"too much memory: about {method.stored * 4e-9 * n * n:.0f} GB"
    if smaller and "cpu_ms" in smaller:
        foreseen = smaller["cpu_ms"]["min"] / 1e3 * (n / smaller["n"]) ** method.order
        if foreseen > bounds.call_s:
            return f"too slow: about {foreseen:.0f} s a call, the bound is {bounds.call_s:.0f} s"
        if time.monotonic() + foreseen > bounds.deadline:
            return f"no time left: about {foreseen:.0f} s a call"
    return "no time left" if time.monotonic() > bounds.deadline else ""


def ratios(record: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times the processor time of each way of dmviz every peer takes."""
    took = {key: value["cpu_ms"]["min"] for key, value in record.items() if "cpu_ms" in value}
    own = [key for key in took if record[key]["ours"]]
    return {key: {p: digits(took[p] / took[key]) for p in took if not record[p]["ours"]} for key in own}


# ---------------------------------------------------------------------------------------------------------------- main


def main(words: list[str] | None = None) -> None:
    choice = _arguments(words)
    one_thread()
    warm_kernels()
    sizes = choice.sizes or (SIZES[:2] if choice.quick else SIZES)
    names = [choice.only] if choice.only else list(CONTESTS)
    print("Compiling: KeOps takes minutes the first time, and keeps what it compiled.", flush=True)
    for name in names:
        for d in choice.dims:
            compile_peers(name, d)
    bounds = Bounds(10.0 if choice.quick else 70.0, 0.3 if choice.quick else 2.5, time.monotonic() + choice.budget)
    cases: list[dict[str, Any]] = []
    start = time.monotonic()
    record = {"machine": machine(), "settings": _settings(), "cases": cases}
    smaller: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    wanted = [(n, name, d) for n in sizes for name in names for d in choice.dims]
    if not (choice.quick or choice.sizes or choice.only):
        wanted.insert(len(wanted) - len(choice.dims), LARGE)
    for n, name, d in wanted:
        case = measured(name, n, d, bounds, smaller.get((name, d), {}))
        smaller[name, d] = {key: {**value, "n": n} for key, value in case["methods"].items()}
        cases.append(case)
        print(f"[{time.monotonic() - start:5.0f} s] {name} n={n:,} d={d}: {_line(case)}", flush=True)
        record["seconds"] = round(time.monotonic() - start)
        save(record, choice.out)  # after every case: a run that is cut short leaves what it found
    print(f"wrote {choice.out.name}", flush=True)


def compile_peers(name: str, d: int) -> None:
    """Let peers that compile do so before the time budget starts."""
    for method in CONTESTS[name](*points(64, d)).methods:
        if method.needs.startswith("pykeops") and peers.installed(method.needs):
            with contextlib.suppress(Exception):  # what fails here fails again, and is reported, when it is measured
                method.make()


def _line(case: dict[str, Any]) -> str:
    parts = []
    for key, value in case["methods"].items():
        took = (
            f"{value['cpu_ms']['min']:.4g} ms (error {value['gradient_error']:.1e})"
            if "cpu_ms" in value
            else value["skipped"]
        )
        parts.append(f"{key} {took}")
    return "; ".join(parts)


def _settings() -> dict[str, Any]:
    return {
        "lines": LINES, "trees": TREES, "lines_a_tree": BRANCHES, "delta": DELTA, "bandwidth": BANDWIDTH, "blur": BLUR,
        "step": STEP, "points": "standard normal against two heaps, both scaled by sqrt(2 / d); n = m, uniform weights",
    }  # fmt: skip


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.losses", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--quick", action="store_true", help="n = 500 and 2,000 only, fewer repeats")
    parser.add_argument("--only", choices=list(CONTESTS), help="one loss")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS))
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds after which nothing new is started")
    parser.add_argument("--out", type=Path, default=RESULTS / "losses.json")
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
