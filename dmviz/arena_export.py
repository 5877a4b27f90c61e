"""What leaves an arena: coordinates and curves of all lanes, their table, a script, a session that opens again.

The same files as for one run (`export.py`), with a column or a prefix that numbers the lanes.
"""

import io
import json
import pprint
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import dmviz
from dmviz import export, store
from dmviz.arena import MOST_LANES, Arena, Lap, digest, from_link, lane_titles, query, setups, table
from dmviz.run import Run

SUFFIX = ".arena"
FORMAT = 1
_OWNER = "Arena session"


# ---------------------------------------------------------------------------------------------------- numbers


def at_frame(laps: Sequence[Lap], k: int) -> tuple[Lap, ...]:
    """The lanes as they stand at frame k: one that has ended stays on its last frame."""
    return tuple(replace(lap, frames=(lap.frames[min(k, len(lap.frames) - 1)],)) for lap in laps)


def coordinates_table(laps: Sequence[Lap]) -> pa.Table:
    """One row a lane, frame and particle."""
    return _stacked([export.trajectory_table(lap) for lap in laps])


def curves_table(laps: Sequence[Lap]) -> pa.Table:
    """One row a lane and frame: step, time, the lane's own loss and every referee."""
    return _stacked([export.curve_table(lap) for lap in laps])


def _stacked(tables: Sequence[pa.Table]) -> pa.Table:
    numbered = [
        part.add_column(0, "lane", pa.array(np.full(len(part), i, np.int64))) for i, part in enumerate(tables, 1)
    ]
    return pa.concat_tables(numbered, promote_options="default")


def coordinates_csv(arena: Arena, laps: Sequence[Lap]) -> bytes:
    _bounded(laps, "csv")
    return _csv(coordinates_table(laps))


def coordinates_parquet(arena: Arena, laps: Sequence[Lap]) -> bytes:
    _bounded(laps, "parquet")
    return _parquet(coordinates_table(laps), arena)


def coordinates_npz(arena: Arena, laps: Sequence[Lap]) -> bytes:
    """The arrays of `export.trajectory_npz` of every lane, named lane1.x, lane1.step and so on."""
    _bounded(laps, "npz")
    kept = {"link": np.array(query(arena))}
    for i, lap in enumerate(laps, 1):
        with np.load(io.BytesIO(export.trajectory_npz(lap))) as mine:
            kept |= {f"lane{i}.{name}": mine[name] for name in mine.files}
    out = io.BytesIO()
    np.savez_compressed(out, **kept)  # type: ignore[arg-type]
    return out.getvalue()


def curves_csv(arena: Arena, laps: Sequence[Lap]) -> bytes:
    return _csv(curves_table(laps))


def curves_parquet(arena: Arena, laps: Sequence[Lap]) -> bytes:
    return _parquet(curves_table(laps), arena)


def table_csv(arena: Arena, laps: Sequence[Lap]) -> bytes:
    return str(table(laps).to_csv(index=False)).encode()


def _bounded(laps: Sequence[Lap], kind: str) -> None:
    numbers = sum(len(lap.frames) * len(lap.frames[0].x) * (lap.frames[0].x.shape[1] + 4) for lap in laps)
    if numbers > export.MOST_NUMBERS[kind]:
        raise ValueError(
            f"Export: the frames of {len(laps)} lanes are {numbers:,} numbers, and {kind} takes "
            f"{export.MOST_NUMBERS[kind]:,}; stop earlier or take one step"
        )


def _csv(part: pa.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.csv.write_csv(part, out)
    return out.getvalue()


def _parquet(part: pa.Table, arena: Arena) -> bytes:
    out = io.BytesIO()
    about = {"dmviz": dmviz.__version__, "link": query(arena)}
    pyarrow.parquet.write_table(part.replace_schema_metadata(about), out, compression="zstd")
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------- script

_SCRIPT = '''"""Arena: {title}.

Made by dmviz {version} on torch {torch}. The same arena as a link: {link}
"""

import math
import os

{imports}
from dmviz.arena import Arena, Lane, race, table
from dmviz.run import Setup

arena = Arena(
    shared={shared},
    lanes=(
{lanes}
    ),
)

# What the page showed: the step at which each lane stood, and its measures there.
shown = {shown}


def far(here, there):
    """How far two numbers are apart, as a share of them."""
    if here == there or (math.isnan(here) and math.isnan(there)):
        return 0.0
    return abs(here - there) / max(abs(here), abs(there), 1e-9)


for compiled in ("1", "0"):  # kernels compiled or not: the last digits differ, and the page may have used either
    os.environ["DMVIZ_COMPILE"] = compiled
    laps = race(arena, steps={steps})
    found = [(lap.frames[-1].step, lap.frames[-1].metrics) for lap in laps]
    off = max(
        far(metrics.get(name, math.nan), value) if step == steps else math.inf
        for (step, metrics), (steps, measures) in zip(found, shown)
        for name, value in measures.items()
    )
    if off == 0.0:
        break

print(table(laps).to_string(index=False))
if not off < 1e-3:
    raise SystemExit("The numbers differ. Machines round differently, and a flow may amplify it: compare versions.")
print("The numbers are those of the page" + (", to the last digit." if off == 0.0 else " to three digits."))
'''


def script(arena: Arena, laps: Sequence[Lap]) -> bytes:
    """A Python script that races the same lanes as far and compares its numbers with those shown.

    It ends with status 1 where they differ by more than a thousandth.
    """
    shared = arena.shared
    entries = [shared.source, shared.target, shared.projection, shared.loss, shared.flow]
    entries += [part for lane in arena.lanes for part in (lane.loss, lane.flow)]
    imports = sorted({f"from {type(part).__module__} import {type(part).__name__}" for part in entries})
    code = export.entry_code
    lanes = [f"        Lane(loss={code(lane.loss)}, flow={code(lane.flow)})," for lane in arena.lanes]
    lasts = [lap.frames[-1] for lap in laps]
    shown = [(f.step, {name: export.Number(value) for name, value in f.metrics.items()}) for f in lasts]
    return _SCRIPT.format(
        title=" / ".join(lane_titles(arena)), version=dmviz.__version__, torch=laps[0].machine.get("torch", "?"),
        link=query(arena), imports="\n".join(imports), shared=_indented(export.setup_code(shared)),
        lanes="\n".join(lanes), shown=pprint.pformat(shown, sort_dicts=False), steps=max(f.step for f in lasts),
    ).encode()  # fmt: skip


def _indented(code: str) -> str:
    return code.replace("\n", "\n    ")


# ---------------------------------------------------------------------------------------------------- session


def save(arena: Arena, laps: Sequence[Lap]) -> bytes:
    """All lanes as one file: a zip of the session files of their runs, none of them packed.

    Raises ValueError where a lane is larger than a session file may be.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as box:
        words = {"format": FORMAT, "dmviz": dmviz.__version__, "link": query(arena)}
        box.writestr(zipfile.ZipInfo("arena.json"), json.dumps(words))
        for i, lap in enumerate(laps, 1):
            box.writestr(zipfile.ZipInfo(f"lane{i}{store.SUFFIX}"), store.save(lap))
    return out.getvalue()


def load(content: bytes) -> tuple[Arena, tuple[Run, ...]]:
    """The arena and the runs that `save` wrote.

    Raises ValueError, in one sentence, for anything else. Sizes are checked before memory is taken, and nothing in the
    file is executed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as box:
            _check(box.infolist())
            words = json.loads(box.read("arena.json"))
            lanes = [box.read(name) for name in sorted(box.namelist()) if name != "arena.json"]
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, UnicodeDecodeError, EOFError, OSError, RecursionError,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        raise ValueError(f"{_OWNER}: it is broken or no arena of dmviz ({type(error).__name__})") from None
    if not isinstance(words, dict) or words.get("format") != FORMAT or not isinstance(words.get("link"), str):
        raise ValueError(f"{_OWNER}: it has no link that this version of dmviz reads; save the arena again")
    try:
        arena = from_link(words["link"])
    except ValueError as error:
        raise ValueError(f"{_OWNER}: its lanes are not those of this version of dmviz ({str(error)[:120]})") from None
    runs = tuple(store.load(lane) for lane in lanes)
    if tuple(run.setup for run in runs) != setups(arena):
        raise ValueError(f"{_OWNER}: its runs are not those of its link; save the arena again")
    return arena, runs


def _check(members: Sequence[zipfile.ZipInfo]) -> None:
    names = {f"lane{i}{store.SUFFIX}" for i in range(1, MOST_LANES + 1)} | {"arena.json"}
    if len({member.filename for member in members}) < len(members) or any(m.filename not in names for m in members):
        raise ValueError(f"{_OWNER}: it must hold arena.json and one file a lane, and nothing else")
    for member in members:
        most = store.MOST_WORDS if member.filename == "arena.json" else store.MOST_BYTES + store.MOST_WORDS
        stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        if not stored or member.file_size > most:
            raise ValueError(f"{_OWNER}: {member.filename!r} is packed or too large; dmviz saves its parts plain")


# ---------------------------------------------------------------------------------------------------- the list


@dataclass(frozen=True)
class Export:
    """One thing to take away: words for the button, how its file is called, and how it is made."""

    title: str
    suffix: str
    mime: str
    make: Callable[[Arena, Sequence[Lap]], bytes]
    one_step: bool = False  # of the step on screen only

    def name(self, arena: Arena) -> str:
        """A file name that tells arenas apart."""
        return f"dmviz-arena-{digest(arena)}{self.suffix}"


_BINARY, _PARQUET = "application/octet-stream", "application/vnd.apache.parquet"
EXPORTS: dict[str, Export] = {
    "frame_csv": Export("Coordinates at this step, csv", "-step.csv", "text/csv", coordinates_csv, True),
    "frame_parquet": Export("Coordinates at this step, parquet", "-step.parquet", _PARQUET, coordinates_parquet, True),
    "frame_npz": Export("Coordinates at this step, npz", "-step.npz", _BINARY, coordinates_npz, True),
    "trajectory_csv": Export("Coordinates of all steps, csv", "-trajectory.csv", "text/csv", coordinates_csv),
    "trajectory_parquet": Export("Coordinates of all steps, parquet", "-trajectory.parquet", _PARQUET,
                                 coordinates_parquet),
    "trajectory_npz": Export("Coordinates of all steps, npz", "-trajectory.npz", _BINARY, coordinates_npz),
    "curve_csv": Export("Curves of all lanes, csv", "-curves.csv", "text/csv", curves_csv),
    "curve_parquet": Export("Curves of all lanes, parquet", "-curves.parquet", _PARQUET, curves_parquet),
    "table_csv": Export("The table, csv", "-table.csv", "text/csv", table_csv),
    "script": Export("Python script that makes these numbers again", ".py", "text/x-python", script, True),
    "session": Export("Session that opens again", SUFFIX, _BINARY, save),
}  # fmt: skip


def made(name: str, arena: Arena, laps: Sequence[Lap], k: int = -1) -> bytes:
    """One of `EXPORTS` as bytes, for a page; k is the frame on screen.

    Raises ValueError, in one sentence, for a name that is not there or lanes that are too large for it.
    """
    if name not in EXPORTS:
        raise ValueError(f"no export named {name!r}; there are {', '.join(EXPORTS)}")
    item: Any = EXPORTS[name]
    result: bytes = item.make(arena, at_frame(laps, k) if item.one_step else laps)
    return result
