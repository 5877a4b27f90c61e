"""Arena: up to four lanes, each a loss and a flow, that start from the same particles; links, sweeps, races, a table.

```python
from dmviz.arena import from_link, race, sweep, sweep_values, table

arena = from_link("lane1.loss=mmd&lane1.loss.median=0&lane1.flow.dt=0.5")
arena = sweep(arena, 0, "loss", "bandwidth", sweep_values(arena.lanes[0].loss, "bandwidth"))
print(table(race(arena, steps=200), "sliced_wasserstein", threshold=0.01))
```
"""

import ctypes
import gc
import hashlib
import math
import re
import statistics
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dmviz.catalog import entry_class
from dmviz.field import drives
from dmviz.params import Param, Range, params_of, settings, to_text
from dmviz.protocols import Flow, Loss
from dmviz.run import (
    PARTS,
    SCHEMA,
    Frame,
    Run,
    Scene,
    Setup,
    device_of,
    machine,
    meaningless,
    part_words,
    read_parts,
    read_values,
    simulate,
    start,
    words_of,
)

MOST_LANES = 4
OWN = ("loss", "flow")  # the parts of a setup that each lane has for itself
SHARED = tuple(part for part in PARTS if part not in OWN)
FIRST = ("sliced_wasserstein", "energy_distance", "mmd", "sinkhorn")  # the losses of an arena nobody has touched
_LANE = re.compile(r"lane(\d+)\.(.+)")


@dataclass(frozen=True)
class Lane:
    """What one lane has for itself."""

    loss: Loss = field(default_factory=lambda: Setup().loss)
    flow: Flow = field(default_factory=lambda: Setup().flow)

    @property
    def words(self) -> str:
        """Loss and flow with the settings that were changed: "MMD, bandwidth 0.2 · Euler"."""
        return " · ".join(", ".join([part.title, *_changed(part)]) for part in (self.loss, self.flow))


def _changed(part: Any, also: Iterable[str] = ()) -> list[str]:
    """The settings that matter and differ from their defaults, or are among `also`, in words."""
    shown = {p.name: getattr(part, p.name) for p in params_of(type(part)) if p.shown_in(part)}
    names = {*settings(part), *also}
    return [f"{name.replace('_', ' ')} {to_text(value)[:24]}" for name, value in shown.items() if name in names]


def _first_lanes() -> tuple[Lane, ...]:
    return tuple(Lane(entry_class("losses", name)()) for name in FIRST)


@dataclass(frozen=True)
class Arena:
    """One source, one target, one seed, and the lanes that race there.

    `shared` is a setup whose loss and flow do not count. Raises ValueError, in one sentence, for no lane or more than
    four, and for a lane whose parts do not fit each other.
    """

    shared: Setup = field(default_factory=Setup)
    lanes: tuple[Lane, ...] = field(default_factory=_first_lanes)

    def __post_init__(self) -> None:
        plain = Setup()
        object.__setattr__(self, "shared", replace(self.shared, loss=plain.loss, flow=plain.flow))
        object.__setattr__(self, "lanes", tuple(self.lanes))
        if not 1 <= len(self.lanes) <= MOST_LANES:
            raise ValueError(f"Arena: there must be 1 to {MOST_LANES} lanes, got {len(self.lanes)}")
        setups(self)


def setups(arena: Arena) -> tuple[Setup, ...]:
    """The setup of each lane, which is an experiment of its own."""
    return tuple(_setup(arena.shared, i, lane) for i, lane in enumerate(arena.lanes))


def _setup(shared: Setup, i: int, lane: Lane) -> Setup:
    try:
        return replace(shared, loss=lane.loss, flow=lane.flow)
    except ValueError as error:
        raise ValueError(f"Lane {i + 1}: {error}") from None


def lane_titles(arena: Arena) -> tuple[str, ...]:
    """A short title a lane: loss and flow, each left out where all lanes share it, and the settings that differ."""
    parts = [part for part in OWN if len({getattr(lane, part) for lane in arena.lanes}) > 1] or [OWN[0]]
    return tuple(" · ".join(_title(arena, getattr(lane, part), part) for part in parts) for lane in arena.lanes)


def _title(arena: Arena, mine: Any, part: str) -> str:
    kin = [other for lane in arena.lanes if type(other := getattr(lane, part)) is type(mine)]
    differ = [p.name for p in params_of(type(mine)) if len({getattr(other, p.name) for other in kin}) > 1]
    words = ", ".join(_changed(mine, differ))
    if words and len(kin) > 1:  # what differs comes first, where a narrow lane still shows it
        return f"{words} ({mine.title})"
    return f"{mine.title}, {words}" if words else str(mine.title)


# ---------------------------------------------------------------------------------------------------- links


def to_link(arena: Arena) -> dict[str, str]:
    """The text form of an arena: what differs from the defaults, lane by lane, and the version of the schema.

    `lanes`, their number, is there only where the last lane would otherwise not be seen.
    """
    words = {"v": SCHEMA} | part_words(arena.shared, SHARED) | settings(arena.shared)
    if arena.lanes == _first_lanes():
        return words
    for i, setup in enumerate(setups(arena), 1):
        mine = part_words(setup, OWN)
        words |= {f"lane{i}.{key}": text for key, text in mine.items()}
        if i == len(arena.lanes) and not mine:
            words["lanes"] = str(i)
    return words


def query(arena: Arena) -> str:
    """The link as it stands in an address bar."""
    return urllib.parse.urlencode(to_link(arena), quote_via=urllib.parse.quote)


def from_link(link: Mapping[str, str] | str) -> Arena:
    """The arena of a link. Raises ValueError with the first thing that is wrong."""
    arena, notes = read_link(link)
    if notes:
        raise ValueError(notes[0])
    return arena


def read_link(link: Mapping[str, str] | str) -> tuple[Arena, tuple[str, ...]]:
    """The arena of a link that may be old or mistyped: what is not understood falls back, with a sentence each.

    The link of a single flow opens too: as an arena with one lane.
    """
    notes: list[str] = []
    words = words_of(link, notes)
    if not any(_LANE.fullmatch(key) for key in words) and "lanes" not in words:
        words = {f"lane1.{key}" if key.split(".")[0] in OWN else key: text for key, text in words.items()}
    lanes = _read_lanes(words, notes)
    chosen = {**read_parts(SHARED, words, notes), **read_values(words, notes)}
    notes += meaningless(words)
    try:
        shared = Setup(**chosen)
    except ValueError as error:  # the only word that can be wrong by itself here
        notes.append(str(error))
        shared = Setup(**{**chosen, "referees": Setup().referees})
    return Arena(shared, tuple(_fit_lane(shared, i, lane, notes) for i, lane in enumerate(lanes))), tuple(notes)


def _read_lanes(words: dict[str, str], notes: list[str]) -> tuple[Lane, ...]:
    """The lanes that `words` names, taken out of it."""
    mine: dict[int, dict[str, str]] = {}
    for key in list(words):
        if found := _LANE.fullmatch(key):
            mine.setdefault(int(found[1]), {})[found[2]] = words.pop(key)
    count = words.pop("lanes", None)
    for number in sorted(set(mine) - set(range(1, MOST_LANES + 1))):
        notes.append(f"an arena has lanes 1 to {MOST_LANES}; lane {number} is left out.")
        del mine[number]
    if count is not None and count not in {str(n) for n in range(1, MOST_LANES + 1)}:
        notes.append(f"lanes must be a whole number from 1 to {MOST_LANES}, got {count!r}")
        count = None
    if count is None and not mine:
        return _first_lanes()
    return tuple(_read_lane(i, mine.get(i, {}), notes) for i in range(1, max([*mine, int(count or 1)]) + 1))


def _read_lane(i: int, words: dict[str, str], notes: list[str]) -> Lane:
    mine: list[str] = []
    lane = Lane(**read_parts(OWN, words, mine))
    mine += meaningless(words)
    notes += [f"Lane {i}: {note}" for note in mine]
    return lane


def _fit_lane(shared: Setup, i: int, lane: Lane, notes: list[str]) -> Lane:
    """The lane, or what of it can run: its loss, if particles can follow that, under the first flow."""
    try:
        _setup(shared, i, lane)
    except ValueError as error:
        notes.append(str(error))
        return Lane(lane.loss) if drives(lane.loss) else Lane()
    return lane


# ---------------------------------------------------------------------------------------------------- sweeps


def sweep(arena: Arena, lane: int, part: str, parameter: str, values: Iterable[Any]) -> Arena:
    """The arena whose lanes are one of its lanes under several values of one parameter.

    `lane` counts from 0, `part` is "loss" or "flow". Where another setting keeps the parameter from mattering, that
    setting is changed too. Raises ValueError, in one sentence, for an unknown name, a value out of range, or no value
    or more than four.
    """
    if not 0 <= lane < len(arena.lanes):
        raise ValueError(f"Sweep: there are lanes 0 to {len(arena.lanes) - 1}, got {lane}")
    if part not in OWN:
        raise ValueError(f"Sweep: part must be one of {', '.join(OWN)}, got {part!r}")
    chosen = arena.lanes[lane]
    entry = getattr(chosen, part)
    param = _param(entry, parameter)
    wake = {n: v[0] for n, v in (param.hint.when or {}).items() if getattr(entry, n) not in v}
    lanes = [replace(chosen, **{part: replace(entry, **wake, **{parameter: value})}) for value in values]
    return Arena(arena.shared, tuple(lanes))


def _param(entry: Any, name: str) -> Param:
    params = {p.name: p for p in params_of(type(entry))}
    if name not in params:
        raise ValueError(f"{type(entry).__name__} has no {name!r}; it has {', '.join(params) or 'no settings'}")
    return params[name]


def sweep_values(entry: Any, parameter: str, count: int = MOST_LANES) -> tuple[Any, ...]:
    """Values worth comparing: all of a choice, and of a number some around the present one, evenly spaced.

    On a logarithmic scale from a quarter to four times it, on another over half of the range.

    >>> from dmviz.losses.mmd import Mmd
    >>> sweep_values(Mmd(bandwidth=0.5), "bandwidth")
    (0.12, 0.31, 0.79, 2.0)
    """
    param, now = _param(entry, parameter), getattr(entry, parameter)
    hint = param.hint
    if param.kind == "bool":
        return (False, True)
    if param.kind == "choice":
        return tuple(dict.fromkeys([now, *param.choices]))[:count]
    if not isinstance(hint, Range):
        raise ValueError(f"{type(entry).__name__}: {parameter} is text, and a sweep needs a number or a choice")
    if hint.log:
        spaced = np.geomspace(max(hint.low, now / 4), min(hint.high, now * 4), count)
    else:
        room = (hint.high - hint.low) / 4
        spaced = np.linspace(max(hint.low, now - room), min(hint.high, now + room), count)
    rounded = [min(max(float(f"{value:.2g}"), hint.low), hint.high) for value in spaced]
    if param.kind == "int":
        return tuple(dict.fromkeys(round(value) for value in rounded))
    return tuple(dict.fromkeys(rounded))


def sweepable(entry: Any) -> tuple[str, ...]:
    """The parameters of an entry that a sweep can take."""
    return tuple(p.name for p in params_of(type(entry)) if p.kind != "text")


# ---------------------------------------------------------------------------------------------------- races


@dataclass(frozen=True, eq=False)
class Lap(Run):
    """The run of one lane, and what it cost."""

    ms: float = math.nan  # median milliseconds a step, on a warm machine
    peak: float | None = None  # MB by which memory rose at most meanwhile; None where that cannot be measured

    @property
    def frame_bytes(self) -> int:
        """Bytes of the last frame's arrays; one that two fields share counts once."""
        frame = self.frames[-1]
        arrays = {id(a): a.nbytes for a in (frame.x, frame.arrows, frame.speed, *frame.clouds.values())}
        return sum(arrays.values())


def begin(arena: Arena, lane: int, after: Frame | None = None) -> tuple[Scene, Iterator[Frame]]:
    """One lane at the start, or going on `after` a frame kept earlier.

    Every lane is judged by all referees of the arena, also by the one that it minimises. A lane that cannot run stands
    at the start with the reason. Raises ValueError only where no lane could run.
    """
    setup = setups(arena)[lane]
    try:
        begun = start(setup, setup.judges())
    except ValueError as error:
        begun = start(arena.shared, ())
        first, nothing = next(simulate(begun)), {"loss": math.nan}
        still = replace(first, arrows=first.arrows * 0, speed=first.speed * 0, metrics=nothing, ended=str(error))
        return begun.scene, iter([still])
    if after is None:
        return begun.scene, simulate(begun)
    return begun.scene, islice(simulate(begun, after.x, after.step, after.time), 1, None)


def digest(arena: Arena) -> str:
    """Eight letters that stand for the link, for file names."""
    return hashlib.blake2b(query(arena).encode(), digest_size=4).hexdigest()


def race(arena: Arena, steps: int, every: int = 1) -> tuple[Lap, ...]:
    """Run each lane for `steps` steps, one after the other so that times are fair; keep every `every`-th frame.

    A lane that fails stops alone: its last frame says why.
    """
    return tuple(_measured(arena, i, steps, every) for i in range(len(arena.lanes)))


def _measured(arena: Arena, lane: int, steps: int, every: int) -> Lap:
    setup = setups(arena)[lane]
    _lap(arena, lane, setup.steps_per_frame, 1)  # compiles and loads what a first step does
    peak, lap = _peak(device_of(setup.device), lambda: _lap(arena, lane, steps, every))
    return replace(lap, peak=peak)


def _lap(arena: Arena, lane: int, steps: int, every: int) -> Lap:
    setup = setups(arena)[lane]
    scene, frames = begin(arena, lane)
    stride, kept, seconds = setup.steps_per_frame, [next(frames)], []
    while kept[-1].step < steps and not kept[-1].ended:
        before = time.perf_counter()
        frame = _next(frames, kept[-1])
        seconds.append((time.perf_counter() - before) / stride)
        if len(kept) > 1 and kept[-1].step % (every * stride):
            kept.pop()  # it was the last so far, and is not any more
        if frame.ended and frame.step == kept[-1].step:
            kept.pop()  # the same picture again, with the reason
        kept.append(frame)
    ms = 1000 * statistics.median(seconds) if seconds else math.nan
    return Lap(setup, scene, tuple(kept), machine(), ms)


def _next(frames: Iterator[Frame], last: Frame) -> Frame:
    """The next frame; the last one again, with the reason, where there is none."""
    try:
        return next(frames, replace(last, ended=f"The run ended at step {last.step}."))
    except (ValueError, RuntimeError, ArithmeticError) as error:
        return replace(last, ended=f"Stopped after step {last.step}: {' '.join(str(error).split())[:200]}")


def _peak(device: str, call: Callable[[], Lap]) -> tuple[float | None, Lap]:
    """MB by which memory rose at most during `call`: the accelerator's, or the kernel's high-water mark on Linux."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        lap = call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20, lap
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the mark back to what is resident now
        base = _status("VmRSS")
    except (OSError, AttributeError):
        return None, call()
    lap = call()
    return max(0.0, _status("VmHWM") - base), lap


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


# ---------------------------------------------------------------------------------------------------- the table


def reached(run: Run, measure: str, threshold: float) -> int | None:
    """The first step at which a measure was at or below a threshold; None where it never was."""
    steps, values = run.metrics.get(measure, (np.array([]), np.array([])))
    below = steps[values <= threshold]
    return int(below[0]) if len(below) else None


def first_threshold(run: Run, measure: str) -> float:
    """A tenth of what the measure was at the start, to two digits; nan where it was not measured."""
    values = run.metrics.get(measure, (None, np.array([])))[1]
    return float(f"{0.1 * values[0]:.2g}") if len(values) and np.isfinite(values[0]) else math.nan


def table(laps: Iterable[Lap], referee: str = "", threshold: float | None = None) -> pd.DataFrame:
    """One row a lane: what a step and a frame cost, when the referee fell to the threshold, and where it ended.

    Without `referee` the first one that was computed; without `threshold` a tenth of its value at the start.
    """
    laps = tuple(laps)
    names = list(dict.fromkeys(name for lap in laps for name in lap.metrics if name != "loss"))
    judge = referee or next(iter(names), "loss")
    if judge not in (*names, "loss"):
        raise ValueError(f"no referee named {judge!r} was computed; there are {', '.join((*names, 'loss'))}")
    level = threshold if threshold is not None else first_threshold(laps[0], judge)
    return pd.DataFrame([_row(i, lap, names, judge, level) for i, lap in enumerate(laps, 1)])


def _row(i: int, lap: Lap, names: list[str], judge: str, level: float) -> dict[str, Any]:
    first = reached(lap, judge, level)
    return {
        "lane": i,
        "loss": ", ".join([lap.setup.loss.title, *_changed(lap.setup.loss)]),
        "flow": ", ".join([lap.setup.flow.title, *_changed(lap.setup.flow)]),
        "ms_per_step": lap.ms,
        "bytes_per_frame": lap.frame_bytes,
        "peak_mb": math.nan if lap.peak is None else lap.peak,
        "steps": lap.frames[-1].step,
        f"steps_to_{judge}_{level:g}": pd.NA if first is None else first,
        "final_loss": _final(lap, "loss"),
        **{f"final_{name}": _final(lap, name) for name in names},
        "ended": lap.ended,
    }


def _final(lap: Lap, name: str) -> float:
    values = lap.metrics.get(name, (None, np.array([])))[1]
    return float(values[-1]) if len(values) else math.nan
