"""A session opens again bit for bit; a hostile one gives a sentence and takes no memory."""

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from dmviz import store
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.run import Frame, Run, Setup, record, simulate, start
from dmviz.shapes.gaussian import Gaussian
from dmviz.shapes.gaussian_mixture import GaussianMixture
from dmviz.store import load, save


@pytest.fixture(scope="module", autouse=True)
def one_kind_of_kernels() -> Iterator[None]:
    """Bits are compared: a run must not be begun before the compiled kernels are ready and repeated after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMVIZ_COMPILE", "0")
        yield


@pytest.fixture(scope="module")
def run() -> Run:
    source = GaussianMixture(components=3, radius=1.0)
    return record(
        Setup(source=source, loss=EnergyDistance(), n=20, m=30, referees="sliced_wasserstein", referee_every=2), 5
    )


@pytest.fixture(scope="module")
def wide() -> Run:
    setup = Setup(source=Gaussian(dim=7), target=GaussianMixture(dim=7), loss=EnergyDistance(), n=20, m=30, referees="")
    return record(setup, 4, every=2)


def same(a: Frame, b: Frame) -> bool:
    arrays = all(np.array_equal(getattr(a, n), getattr(b, n), equal_nan=True) for n in ("x", "arrows", "speed"))
    clouds = a.clouds.keys() == b.clouds.keys() and all(np.array_equal(a.clouds[n], b.clouds[n]) for n in a.clouds)
    words = (a.step, a.time, a.note, a.ended) == (b.step, b.time, b.note, b.ended)
    return arrays and clouds and words and list(a.metrics) == list(b.metrics) and repr(a.metrics) == repr(b.metrics)


@pytest.mark.parametrize("name", ["run", "wide"])
def test_a_session_opens_again_bit_for_bit(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    again = load(save(run))
    assert again.setup == run.setup and again.link == run.link and again.machine == run.machine
    assert len(again.frames) == len(run.frames) and all(map(same, again.frames, run.frames))
    for field in ("target", "target_x", "target_weight", "target_label", "weight", "label"):
        before, after = getattr(run.scene, field), getattr(again.scene, field)
        assert (before is None and after is None) or (np.array_equal(before, after) and before.dtype == after.dtype)
    for field in ("label_names", "dims", "axes", "device", "notes", "referees"):
        assert getattr(again.scene, field) == getattr(run.scene, field)
    assert save(again) == save(run)
    assert not again.frames[0].x.flags.writeable and not again.scene.target.flags.writeable


def test_a_flow_goes_on_from_an_opened_session(run: Run) -> None:
    last = load(save(run)).frames[-1]
    onward = simulate(start(run.setup), last.x, last.step, last.time)
    next(onward)
    expected = record(run.setup, 6).frames[-1]
    assert np.array_equal(next(onward).x, expected.x)


def test_a_run_that_broke_keeps_its_reason_and_its_nan(run: Run) -> None:
    x = np.full_like(run.frames[-1].x, np.nan)
    end = replace(
        run.frames[-1], x=x, clouds={"particles": x}, metrics={"loss": float("nan")}, ended="Stopped at step 5."
    )
    again = load(save(Run(run.setup, run.scene, (*run.frames, end), run.machine)))
    assert again.ended == "Stopped at step 5." and np.isnan(again.frames[-1].metrics["loss"])
    assert list(again.frames[-1].metrics) == ["loss"] and np.isnan(again.frames[-1].x).all()


def test_numpy_opens_a_session_without_pickle(run: Run) -> None:
    with np.load(io.BytesIO(save(run)), allow_pickle=False) as parts:
        assert np.array_equal(parts["x"][-1], run.frames[-1].x)


def test_a_run_too_large_for_a_session_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 1_000)
    with pytest.raises(ValueError, match="keep fewer frames"):
        save(run)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as box:
        return {name: box.read(name) for name in box.namelist()}


def zipped(parts: dict[str, bytes], pack: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", pack) as box:
        for name, content in parts.items():
            box.writestr(name, content)
    return out.getvalue()


def array(value: np.ndarray, pickled: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, value, allow_pickle=pickled)
    return out.getvalue()


def words(parts: dict[str, bytes], **changes: object) -> dict[str, bytes]:
    return parts | {"run.json": json.dumps(json.loads(parts["run.json"]) | changes).encode()}


def huge(parts: dict[str, bytes]) -> bytes:
    """A header that promises 10^15 numbers, over 8 bytes."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }".ljust(117) + b"\n"
    return zipped(parts | {"x.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"\0" * 8})


HOSTILE: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "empty": lambda p: b"",
    "text": lambda p: b"step,x\n1,2\n",
    "a pickle": lambda p: pickle.dumps({"x": 1}),
    "a zip of nothing": lambda p: zipped({}),
    "only words": lambda p: zipped({"run.json": p["run.json"]}),
    "no words": lambda p: zipped({k: v for k, v in p.items() if k != "run.json"}),
    "broken words": lambda p: zipped(p | {"run.json": b"{"}),
    "deep words": lambda p: zipped(p | {"run.json": b"[" * 200_000}),
    "a list of words": lambda p: zipped(p | {"run.json": b"[1]"}),
    "another format": lambda p: zipped(words(p, format=99)),
    "a link to nothing": lambda p: zipped(words(p, link="loss=nonsense")),
    "a link that is no text": lambda p: zipped(words(p, link=3)),
    "a scene of numbers": lambda p: zipped(words(p, scene=7)),
    "notes of numbers": lambda p: zipped(words(p, notes=[1] * 6)),
    "a cloud that is not there": lambda p: zipped(words(p, clouds=["ghost"])),
    "metrics without loss": lambda p: zipped(words(p, metrics=["a", "b"])),
    "a pickled array": lambda p: zipped(p | {"x.npy": array(np.array([{}], dtype=object), pickled=True)}),
    "a part that is no array": lambda p: zipped(p | {"x.npy": b"hello"}),
    "a foreign part": lambda p: zipped(p | {"../../evil.py": b"import os"}),
    "too many parts": lambda p: zipped(p | {f"cloud.{i}.npy": p["x.npy"] for i in range(100)}),
    "packed": lambda p: zipped(p, zipfile.ZIP_DEFLATED),
    "a bomb": lambda p: zipped(p | {"x.npy": b"\0" * 300_000_000}, zipfile.ZIP_DEFLATED),
    "a header that lies": huge,
    "cut short": lambda p: zipped(p)[: len(zipped(p)) // 2],
    "flipped": lambda p: bytes(b ^ (i % 97 == 5) for i, b in enumerate(zipped(p))),
    "an array cut short": lambda p: zipped(p | {"x.npy": p["x.npy"][:-4]}),
    "another number of particles": lambda p: zipped(p | {"speed.npy": array(np.zeros((6, 3), np.float32))}),
    "no frames": lambda p: zipped(p | {"x.npy": array(np.zeros((0, 20, 2), np.float32))}),
    "steps backwards": lambda p: zipped(p | {"step.npy": array(np.arange(6)[::-1].copy())}),
    "numbers of another kind": lambda p: zipped(p | {"x.npy": array(np.zeros((6, 20, 2)))}),
    "labels of another length": lambda p: zipped(p | {"scene.label.npy": array(np.zeros(3, np.int64))}),
    "a target elsewhere": lambda p: zipped(p | {"scene.target.npy": array(np.zeros((30, 3), np.float32))}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_session_gives_one_sentence(name: str, run: Run) -> None:
    content = HOSTILE[name](members(save(run)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^Session file: [^\n]{10,250}$") as caught:
            load(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is ValueError  # a sentence of ours, not an error that escaped
    assert peak < 20_000_000


def test_two_parts_of_one_name_are_refused(run: Run) -> None:
    out = io.BytesIO(save(run))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(out, "a") as box:
        box.writestr("x.npy", b"")
    with pytest.raises(ValueError, match="one name"):
        load(out.getvalue())


def test_a_session_of_another_size_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 10)
    monkeypatch.setattr(store, "MOST_WORDS", 10)
    with pytest.raises(ValueError, match="at most"):
        load(b"PK" * 100)
