"""Time, memory and error of one call, and words about the machine: what every benchmark here shares."""

import ctypes
import datetime
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results"
Call = Callable[[], Any]


class Times(NamedTuple):
    """Milliseconds of repeated calls: processor time over all threads of the process, and time on the wall."""

    cpu: list[float]
    wall: list[float]

    def record(self) -> dict[str, Any]:
        return {
            "cpu_ms": {"min": digits(min(self.cpu)), "median": digits(median(self.cpu))},
            "wall_ms": {"min": digits(min(self.wall)), "median": digits(median(self.wall))},
            "repeats": len(self.cpu),
        }


def timed(call: Call) -> tuple[float, float]:
    """CPU and wall milliseconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)


def interleaved(
    calls: Mapping[str, Call], firsts: Mapping[str, tuple[float, float]], seconds: float, most: int = 40
) -> dict[str, Times]:
    """Times of calls that take turns, A B C A B C, so that a busy spell of the machine falls on all alike.

    `firsts`: CPU and wall milliseconds of one call of each made before, which warmed it up. A first call of more than
    4 seconds counts as a measurement. A call drops out once it has used up `seconds`, or has run `most` times.
    """
    times = {name: Times([], []) for name in calls}
    spent = {name: wall / 1e3 for name, (_, wall) in firsts.items()}
    for name, (cpu, wall) in firsts.items():
        if wall > 4e3:
            _keep(times[name], cpu, wall)
    while playing := [n for n in calls if not times[n].cpu or (spent[n] < seconds and len(times[n].cpu) < most)]:
        for name in playing:
            cpu, wall = timed(calls[name])
            _keep(times[name], cpu, wall)
            spent[name] += wall / 1e3
    return times


def _keep(times: Times, cpu: float, wall: float) -> None:
    times.cpu.append(cpu)
    times.wall.append(wall)


# ------------------------------------------------------------------------------------------------------------- memory


def _status(key: str) -> float:
    """A line of /proc/self/status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"no {key} in /proc/self/status")


def peak_growth(call: Call) -> tuple[float, str]:
    """MB by which the resident memory of this process rose above where it stood, at most, during one call; and how
    that was measured.

    On Linux the kernel's own high-water mark, set back first and freed memory handed back first: every allocation of
    every library counts, however short. Elsewhere `ru_maxrss`, or samples where that cannot be set back.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return max(0.0, _status("VmHWM") - before), "high-water mark of resident memory"
    except (OSError, AttributeError):
        return _sampled_growth(call)


def _sampled_growth(call: Call) -> tuple[float, str]:
    """The same from `ru_maxrss`, which only ever rises: exact in a fresh process, too low elsewhere."""
    import resource

    scale = 2**20 if sys.platform == "darwin" else 2**10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / scale, "growth of ru_maxrss"


def free_mb() -> float:
    """Memory that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4096.0


# ----------------------------------------------------------------------------------------------------- error and words


def relative_error(found: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact| over all particles, in float64; nan where the shapes differ."""
    found, exact = found.detach().double().cpu(), exact.double()
    return (
        float((found - exact).norm() / exact.norm().clamp_min(1e-300)) if found.shape == exact.shape else float("nan")
    )


def digits(number: float) -> float:
    """Three to four digits: what a measurement is worth."""
    return float(f"{number:.4g}")


def machine() -> dict[str, Any]:
    """Kind of machine, versions and date. No names of hosts or paths."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "load_at_start": digits(load),
        "versions": {name: found for name in ("torch", "numpy", "numba", "POT", "geomloss", "pykeops", "ott-jax", "jax")
                     if (found := _version(name))},
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def one_thread() -> None:
    """One thread for torch, and for libraries that are loaded after this."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def warm_kernels() -> None:
    """Compile dmviz' kernels, or read them from their cache, before any clock runs."""
    try:
        from dmviz.losses import _compiled
    except ImportError:
        return
    _compiled.warm()


def save(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
