"""Saved runs: a session file that opens again, bit for bit, and can do no harm to those who open it.

The file is a zip of plain `.npy` arrays and one `run.json`, stored without compression, so nothing in it is larger
than the file itself; `numpy.load` opens it too. There is no pickle in it.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy

import dmviz
from dmviz.run import Frame, Run, Scene, Setup, from_link

FORMAT = 1
SUFFIX = ".dmviz"
MOST_BYTES = 512 * 2**20
MOST_MEMBERS = 64
MOST_WORDS = 16 * 2**20  # of run.json
_KINDS = {"f4", "f8", "i8", "b1"}
_SCENE = ("target", "target_x", "target_weight", "target_label", "weight", "label")
_OWNER = "Session file"


# ---------------------------------------------------------------------------------------------------- save


def save(run: Run) -> bytes:
    """A run as a session file.

    Raises ValueError when it would be larger than 512 MB.
    """
    arrays = {**_scene_arrays(run.scene), **_frame_arrays(run.frames)}
    size = sum(array.nbytes for array in arrays.values())
    if size > MOST_BYTES:
        raise ValueError(
            f"{_OWNER}: the run holds {size / 2**20:,.0f} MB, and {MOST_BYTES // 2**20} is the most; keep fewer frames"
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as box:
        _put(box, "run.json", json.dumps(_words(run), ensure_ascii=False).encode())
        for name, array in arrays.items():
            member = io.BytesIO()
            npy.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            _put(box, f"{name}.npy", member.getvalue())
    return out.getvalue()


def _put(box: zipfile.ZipFile, name: str, content: bytes) -> None:
    box.writestr(zipfile.ZipInfo(name), content)  # ZipInfo's fixed date: equal runs give equal files


def _words(run: Run) -> dict[str, Any]:
    scene = run.scene
    return {
        "format": FORMAT,
        "dmviz": dmviz.__version__,
        "link": run.link,
        "machine": dict(run.machine),
        "scene": {
            "label_names": list(scene.label_names), "dims": scene.dims, "axes": list(scene.axes),
            "device": scene.device, "notes": list(scene.notes), "referees": dict(scene.referees),
        },
        "notes": [frame.note for frame in run.frames],
        "ended": run.ended,
        "metrics": list(dict.fromkeys(name for frame in run.frames for name in frame.metrics)),
        "clouds": [name for name in run.frames[0].clouds if name != "particles" or not _same(run.frames[0])],
    }  # fmt: skip


def _same(frame: Frame) -> bool:
    """Whether the picture shows the particles themselves, so that they are stored once."""
    return frame.clouds["particles"] is frame.x


def _scene_arrays(scene: Scene) -> dict[str, np.ndarray]:
    found = {name: getattr(scene, name) for name in _SCENE}
    return {f"scene.{name}": array for name, array in found.items() if array is not None}


def _frame_arrays(frames: Sequence[Frame]) -> dict[str, np.ndarray]:
    names = list(dict.fromkeys(name for frame in frames for name in frame.metrics))
    clouds = [name for name in frames[0].clouds if name != "particles" or not _same(frames[0])]
    return {
        "step": np.array([frame.step for frame in frames], dtype=np.int64),
        "time": np.array([frame.time for frame in frames], dtype=np.float64),
        "x": np.stack([frame.x for frame in frames]),
        "arrows": np.stack([frame.arrows for frame in frames]),
        "speed": np.stack([frame.speed for frame in frames]),
        **{f"cloud.{name}": np.stack([frame.clouds[name] for frame in frames]) for name in clouds},
        "metrics": np.array([[f.metrics.get(n, np.nan) for n in names] for f in frames], dtype=np.float64),
        "measured": np.array([[n in f.metrics for n in names] for f in frames], dtype=bool),
    }


# ---------------------------------------------------------------------------------------------------- load


def load(content: bytes) -> Run:
    """The run that `save` wrote.

    Raises ValueError, in one sentence, for anything else. Sizes are checked before memory is taken, and nothing in the
    file is executed.
    """
    if len(content) > MOST_BYTES + MOST_WORDS:
        raise ValueError(f"{_OWNER}: it must be at most {MOST_BYTES // 2**20} MB, got {len(content) / 2**20:,.0f} MB")
    words, arrays = _opened(content)
    try:
        return _run(words, arrays)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"{_OWNER}: it is not complete ({_said(error)}); save the run again") from None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(error)}"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def _opened(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as box:
            members = box.infolist()
            _check_members(members)
            words = json.loads(box.read("run.json")) if "run.json" in box.namelist() else None
            arrays = {m.filename.removesuffix(".npy"): _array(box, m) for m in members if m.filename != "run.json"}
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, EOFError, OSError, RecursionError,
            NotImplementedError, RuntimeError) as error:  # fmt: skip
        raise ValueError(f"{_OWNER}: it is broken or no session of dmviz ({_said(error)})") from None
    if not isinstance(words, dict) or "link" not in words:
        raise ValueError(f"{_OWNER}: it has no run.json with a link; only files that dmviz saved open here")
    if words.get("format") != FORMAT:
        raise ValueError(
            f"{_OWNER}: it has format {words.get('format')!r:.20}, and this version of dmviz reads {FORMAT}"
        )
    return words, arrays


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"{_OWNER}: it must hold at most {MOST_MEMBERS} parts, got {len(members)}")
    if len({member.filename for member in members}) < len(members):
        raise ValueError(f"{_OWNER}: two of its parts have one name")
    for member in members:
        most = MOST_WORDS if member.filename == "run.json" else MOST_BYTES
        stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        if not stored or member.file_size > most:
            raise ValueError(f"{_OWNER}: {member.filename[:40]!r} is packed or too large; dmviz saves its parts plain")
        if member.filename != "run.json" and not member.filename.endswith(".npy"):
            raise ValueError(f"{_OWNER}: {member.filename[:40]!r} is not a part that dmviz saves")


def _array(box: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array, once its header agrees with the number of bytes that are there."""
    part = f"{_OWNER}: {member.filename[:40]!r}"
    raw = box.read(member)
    stream = io.BytesIO(raw)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise ValueError(f"{part} is not an array ({_short(error)})") from None
    count = int(np.prod([int(n) for n in shape], dtype=object)) if shape else 1
    left = len(raw) - stream.tell()
    if dtype.str[1:] not in _KINDS or fortran or len(shape) > 3 or count * dtype.itemsize != left:
        raise ValueError(f"{part} must be plain numbers that fill its {left} bytes, got {dtype} in shape {shape}")
    array = np.frombuffer(raw, dtype, count, stream.tell()).reshape(shape)  # shares the bytes: read-only
    return array.astype(dtype.newbyteorder("="), copy=False)


def _run(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Run:
    setup = _setup(_text(words["link"]))
    frames = _frames(words, arrays)
    scene = _scene(words["scene"], arrays, frames[0])
    machine = {_text(k): _text(v) for k, v in words["machine"].items()}
    return Run(setup, scene, frames, machine)


def _setup(link: str) -> Setup:
    try:
        return from_link(link)
    except ValueError as error:
        raise ValueError(f"{_OWNER}: its setup is not one of this version of dmviz ({_short(error)})") from None


def _frames(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[Frame, ...]:
    step, time, x, speed = arrays["step"], arrays["time"], arrays["x"], arrays["speed"]
    clouds = {_text(name): arrays[f"cloud.{name}"] for name in words["clouds"]}
    _check_frames(step, time, x, arrays["arrows"], speed, clouds)
    names, notes = [_text(name) for name in words["metrics"]], [_text(note) for note in words["notes"]]
    table, measured = arrays["metrics"], arrays["measured"]
    _must(
        table.shape == measured.shape == (len(x), len(names)) and measured.dtype == bool, "metrics must fit the frames"
    )
    _must("loss" in names and bool(measured[:, names.index("loss")].all()), "every frame must have a loss")
    _must(len(notes) == len(x), "every frame must have a note")
    frames = []
    for k in range(len(x)):
        here = x[k]
        shown = {"particles": here} | {name: cloud[k] for name, cloud in clouds.items()}
        metrics = {name: float(table[k, i]) for i, name in enumerate(names) if measured[k, i]}
        ended = _text(words["ended"]) if k == len(x) - 1 else ""
        frames.append(
            Frame(int(step[k]), float(time[k]), shown, here, arrays["arrows"][k], speed[k], metrics, notes[k], ended)
        )
    return tuple(frames)


def _check_frames(
    step: np.ndarray, time: np.ndarray, x: np.ndarray, arrows: np.ndarray, speed: np.ndarray,
    clouds: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    shown = clouds.get("particles", x)
    _must(all(a.dtype == np.float32 for a in (x, arrows, speed, *clouds.values())), "positions must be float32")
    _must(x.ndim == 3 and min(x.shape) > 0, "x must be (frames, particles, dimensions)")
    _must(step.shape == time.shape == (len(x),), "step and time must have one entry a frame")
    _must(step.dtype == np.int64 and bool((np.diff(step) >= 0).all()), "steps must grow")
    _must(all(cloud.ndim == 3 and cloud.shape[:1] == x.shape[:1] for cloud in clouds.values()), "clouds must fit x")
    _must(shown.shape[:2] == x.shape[:2] and shown.shape[2] in (2, 3), "pictures must have two or three dimensions")
    _must(arrows.shape == shown.shape and speed.shape == x.shape[:2], "arrows and speed must have one row a particle")


def _scene(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray], first: Frame) -> Scene:
    parts = {name: arrays.get(f"scene.{name}") for name in _SCENE}
    target, target_x = arrays["scene.target"], arrays["scene.target_x"]
    n, dims = first.clouds["particles"].shape
    _must(target.ndim == 2 and target.shape[1] == dims == words["dims"], "the target must lie in the picture")
    _must(target_x.shape == (len(target), first.x.shape[1]), "target_x must have one row a target point")
    lengths = {"target_weight": len(target), "target_label": len(target), "weight": n, "label": n}
    for name, length in lengths.items():
        part, whole = parts[name], name.endswith("label")
        _must(
            part is None or (part.shape == (length,) and (part.dtype == np.int64) == whole),
            f"{name} must fit its cloud",
        )
    axes = tuple(_text(axis) for axis in words["axes"])
    _must(len(axes) == dims, "every axis must have a title")
    return Scene(
        target=target,
        target_x=target_x,
        target_weight=parts["target_weight"],
        target_label=parts["target_label"],
        weight=parts["weight"],
        label=parts["label"],
        label_names=tuple(_text(name) for name in words["label_names"]),
        dims=int(dims),
        axes=axes,
        device=_text(words["device"]),
        notes=tuple(_text(note) for note in words["notes"]),
        referees={_text(k): _text(v) for k, v in words["referees"].items()},
    )


def _text(value: Any) -> str:
    _must(isinstance(value, str), "names and notes must be text")
    return str(value)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{_OWNER}: {what}; save the run again")
