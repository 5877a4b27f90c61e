"""What leaves dmviz: coordinates, curves, figures, films, a script that runs, a session that opens again.

Each is a function of a run that returns text or bytes; `EXPORTS` lists them all for a page.
"""

import io
import pprint
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import dmviz
from dmviz.catalog import place_of
from dmviz.params import params_of
from dmviz.plot.film import gif, webp
from dmviz.plot.page import html
from dmviz.plot.still import png, svg
from dmviz.run import Frame, Run, digest, setup_params
from dmviz.store import SUFFIX, save

MOST_NUMBERS = {"csv": 20_000_000, "parquet": 100_000_000, "npz": 100_000_000}  # in one file


# ---------------------------------------------------------------------------------------------------- numbers


def frame_table(run: Run, k: int = -1) -> pa.Table:
    """One row a particle: number, label, weight, coordinates, what the picture shows of them, and speed."""
    return _table(run, (run.frames[k],))


def trajectory_table(run: Run) -> pa.Table:
    """One row a particle and frame, with step and time in front."""
    return _table(run, run.frames)


def curve_table(run: Run) -> pa.Table:
    """One row a frame: step, time, loss and referees; a cell is empty where a referee was not asked."""
    names = list(run.metrics)
    columns: dict[str, Any] = {
        "step": pa.array([frame.step for frame in run.frames], pa.int64()),
        "time": pa.array([frame.time for frame in run.frames], pa.float64()),
    }
    return pa.table(columns | {n: pa.array([f.metrics.get(n) for f in run.frames], pa.float64()) for n in names})


def _table(run: Run, frames: tuple[Frame, ...]) -> pa.Table:
    count, (n, dim) = len(frames), frames[0].x.shape
    scene = run.scene
    columns: dict[str, Any] = {
        "step": np.repeat(np.array([frame.step for frame in frames], np.int64), n),
        "time": np.repeat(np.array([frame.time for frame in frames], np.float64), n),
        "particle": np.tile(np.arange(n, dtype=np.int64), count),
    }
    if scene.label is not None:
        columns["label"] = pa.array(_labels(run) * count)
    if scene.weight is not None:
        columns["weight"] = np.tile(scene.weight, count)
    x = np.concatenate([frame.x for frame in frames])
    columns |= {name: x[:, i] for i, name in enumerate(_names(dim))}
    if dim > 3:
        view = np.concatenate([frame.clouds["particles"] for frame in frames])
        columns |= {f"view{i}": view[:, i] for i in range(view.shape[1])}
    columns["speed"] = np.concatenate([frame.speed for frame in frames])
    return pa.table(columns)


def _names(dim: int) -> tuple[str, ...]:
    return tuple("xyz"[:dim]) if dim <= 3 else tuple(f"x{i}" for i in range(dim))


def _labels(run: Run) -> list[str | None]:
    codes, names = run.scene.label, run.scene.label_names
    assert codes is not None
    return [names[c] if 0 <= c < len(names) else str(c) if c >= 0 else None for c in codes.tolist()]


def frame_csv(run: Run, k: int = -1) -> bytes:
    _bounded(run, 1, "csv")
    return _csv(frame_table(run, k))


def frame_parquet(run: Run, k: int = -1) -> bytes:
    _bounded(run, 1, "parquet")
    return _parquet(frame_table(run, k), run)


def frame_npz(run: Run, k: int = -1) -> bytes:
    """Arrays x (N, D), view (N, 2 or 3), speed, target and what else belongs to one frame."""
    _bounded(run, 1, "npz")
    return _npz(run, (run.frames[k],), one=True)


def trajectory_csv(run: Run) -> bytes:
    _bounded(run, len(run.frames), "csv")
    return _csv(trajectory_table(run))


def trajectory_parquet(run: Run) -> bytes:
    _bounded(run, len(run.frames), "parquet")
    return _parquet(trajectory_table(run), run)


def trajectory_npz(run: Run) -> bytes:
    """Arrays x (T, N, D), view (T, N, 2 or 3), speed (T, N), step and time (T,), target (M, D) ..."""
    _bounded(run, len(run.frames), "npz")
    return _npz(run, run.frames, one=False)


def curve_csv(run: Run) -> bytes:
    return _csv(curve_table(run))


def _bounded(run: Run, frames: int, kind: str) -> None:
    n, dim = run.frames[0].x.shape
    numbers, most = frames * n * (dim + 4), MOST_NUMBERS[kind]
    if numbers > most:
        raise ValueError(
            f"Export: {frames:,} frames of {n:,} particles are {numbers:,} numbers, and {kind} takes {most:,}; "
            "keep fewer frames or take one frame"
        )


def _csv(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.csv.write_csv(table, out)
    return out.getvalue()


def _parquet(table: pa.Table, run: Run) -> bytes:
    out = io.BytesIO()
    about = {"dmviz": dmviz.__version__, "link": run.link}
    pyarrow.parquet.write_table(table.replace_schema_metadata(about), out, compression="zstd")
    return out.getvalue()


def _npz(run: Run, frames: tuple[Frame, ...], one: bool) -> bytes:
    scene = run.scene
    moving = {
        "x": np.stack([frame.x for frame in frames]),
        "view": np.stack([frame.clouds["particles"] for frame in frames]),
        "speed": np.stack([frame.speed for frame in frames]),
        "step": np.array([frame.step for frame in frames], np.int64),
        "time": np.array([frame.time for frame in frames], np.float64),
    }
    still = {
        "target": scene.target_x, "target_view": scene.target, "target_weight": scene.target_weight,
        "target_label": scene.target_label, "weight": scene.weight, "label": scene.label,
        "label_names": np.array(scene.label_names, dtype=np.str_), "link": np.array(run.link),
    }  # fmt: skip
    out = io.BytesIO()
    kept = {name: array for name, array in still.items() if array is not None}
    np.savez_compressed(out, **{n: a[0] if one else a for n, a in moving.items()}, **kept)  # type: ignore[arg-type]
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------- script

_SCRIPT = '''"""{title}.

Made by dmviz {version} on torch {torch}. The same run as a link: {link}{note}
"""

import math
import os

{imports}
from dmviz.run import Setup, record

setup = {setup}

# What the page showed at step {step}, and where its first particle was.
shown = {shown}
place = {place}


def far(here, there):
    """How far two numbers are apart, as a share of them."""
    if here == there or (math.isnan(here) and math.isnan(there)):
        return 0.0
    return abs(here - there) / max(abs(here), abs(there), 1e-9)


for compiled in ("1", "0"):  # kernels compiled or not: the last digits differ, and the page may have used either
    os.environ["DMVIZ_COMPILE"] = compiled
    last = record(setup, steps={step}, every={every}).frames[-1]
    size = max(1.0, *map(abs, place))
    off = [far(last.metrics.get(name, math.nan), value) for name, value in shown.items()]
    off += [abs(here - there) / size for here, there in zip(last.x[0].tolist(), place) if far(here, there) > 0]
    if max(off) == 0.0:
        break

print(f"step {{last.step}}, time {{last.time:g}}")
for name, value in shown.items():
    print(f"{{name}}: {{last.metrics.get(name)!r}} here, {{value!r}} on the page")
print(f"first particle: {{last.x[0].tolist()}} here, {{place}} on the page")
if last.step != {step} or not max(off) < 1e-3:
    raise SystemExit("The numbers differ. Machines round differently, and a flow may amplify it: compare versions.")
print("The numbers are those of the page" + (", to the last digit." if max(off) == 0.0 else " to three digits."))
'''


_UPLOADED = """

The path of an upload holds on the machine of the page only: put the path of your file in its place."""


def script(run: Run, k: int = -1) -> str:
    """A Python script of dmviz's own API that makes frame k again and compares its numbers with those shown.

    It ends with status 1 where they differ by more than a thousandth.
    """
    frame = run.frames[k]
    setup = run.setup
    parts = [getattr(setup, f.name) for f in fields(setup) if f.metadata.get("part")]
    imports = sorted({f"from {type(part).__module__} import {type(part).__name__}" for part in parts})
    title = f"{setup.source.title} to {setup.target.title}: {setup.loss.title}, {setup.flow.title}, {frame.step} steps"
    own = {"loss", *setup.referee_names()}  # a race may have asked more judges than the setup alone does
    metrics = {name: Number(value) for name, value in frame.metrics.items() if name in own}
    place = [Number(v) for v in frame.x[0].tolist()]
    return _SCRIPT.format(
        note=_UPLOADED if any(getattr(part, "path", "").startswith("upload:") for part in parts) else "",
        title=title, version=dmviz.__version__, torch=run.machine.get("torch", "?"), link=run.link,
        imports="\n".join(imports), setup=setup_code(setup), step=frame.step, every=max(1, frame.step),
        shown=pprint.pformat(metrics, sort_dicts=False), place=pprint.pformat(place, compact=True),
    )  # fmt: skip


class Number(float):
    """A float that writes itself as Python reads it, nan and inf too."""

    def __repr__(self) -> str:
        text = float.__repr__(self)
        return text if np.isfinite(self) else f'float("{text}")'


def setup_code(setup: Any) -> str:
    """A setup as Python source: every entry by name, every parameter that differs from its default."""
    lines = [f"    {f.name}={entry_code(getattr(setup, f.name))}," for f in fields(setup) if f.metadata.get("part")]
    lines += [
        f"    {param.name}={getattr(setup, param.name)!r},"
        for param in setup_params()
        if getattr(setup, param.name) != param.default
    ]
    return "Setup(\n" + "\n".join(lines) + "\n)"


def entry_code(entry: Any) -> str:
    """An entry as Python source: its class and what differs from the defaults."""
    chosen = {p.name: getattr(entry, p.name) for p in params_of(type(entry))}
    defaults = {p.name: p.default for p in params_of(type(entry))}
    inside = ", ".join(f"{name}={value!r}" for name, value in chosen.items() if value != defaults[name])
    return f"{type(entry).__name__}({inside})"


# ---------------------------------------------------------------------------------------------------- the list


@dataclass(frozen=True)
class Export:
    """One thing to take away: words for the button, how its file is called, and how it is made."""

    title: str
    suffix: str
    mime: str
    make: Callable[..., bytes | str]
    one_frame: bool = False  # make(run, k) rather than make(run)
    themed: bool = False  # takes dark=
    slow: bool = False  # takes progress=

    def name(self, run: Run, k: int = -1) -> str:
        """A file name that tells runs apart: what, which link, which step."""
        step = f"-step{run.frames[k].step}" if self.one_frame else ""
        return f"dmviz-{place_of(run.setup.loss)[1]}-{digest(run.setup)[:8]}{step}{self.suffix}"


EXPORTS: dict[str, Export] = {
    "frame_csv": Export("Coordinates of this frame, csv", ".csv", "text/csv", frame_csv, True),
    "frame_parquet": Export(
        "Coordinates of this frame, parquet", ".parquet", "application/vnd.apache.parquet", frame_parquet, True
    ),
    "frame_npz": Export("Coordinates of this frame, npz", ".npz", "application/octet-stream", frame_npz, True),
    "trajectory_csv": Export("Whole trajectory, csv", "-trajectory.csv", "text/csv", trajectory_csv),
    "trajectory_parquet": Export(
        "Whole trajectory, parquet", "-trajectory.parquet", "application/vnd.apache.parquet", trajectory_parquet
    ),
    "trajectory_npz": Export("Whole trajectory, npz", "-trajectory.npz", "application/octet-stream", trajectory_npz),
    "curve_csv": Export("Curves, csv", "-curves.csv", "text/csv", curve_csv),
    "html": Export("Figure that plays offline, html", ".html", "text/html", html, themed=True),
    "svg": Export("Figure of this frame, svg", ".svg", "image/svg+xml", svg, True, True),
    "png": Export("Figure of this frame, png", ".png", "image/png", png, True, True),
    "gif": Export("Film, gif", ".gif", "image/gif", gif, themed=True, slow=True),
    "webp": Export("Film, webp", ".webp", "image/webp", webp, themed=True, slow=True),
    "script": Export("Python script that makes these numbers again", ".py", "text/x-python", script, True),
    "session": Export("Session that opens again", SUFFIX, "application/octet-stream", save),
}


def export(
    name: str, run: Run, k: int = -1, dark: bool = False, progress: Callable[[float], object] | None = None
) -> bytes:
    """One of `EXPORTS` as bytes, for a page.

    Raises ValueError, in one sentence, for a name that is not there or a run that is too large for it.
    """
    if name not in EXPORTS:
        raise ValueError(f"no export named {name!r}; there are {', '.join(EXPORTS)}")
    item = EXPORTS[name]
    more: dict[str, Any] = {"dark": dark} if item.themed else {}
    if item.one_frame:
        more["k"] = k
    if item.slow:
        more["progress"] = progress
    made = item.make(run, **more)
    return made.encode() if isinstance(made, str) else made
