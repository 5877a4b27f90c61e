"""What leaves an arena: numbers of every lane, a script that finds them again, a session that opens again."""

import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from dmviz import arena_export, store
from dmviz.arena import Arena, Lane, Lap, from_link, query, race
from dmviz.arena_export import EXPORTS, SUFFIX, at_frame, load, made, save
from dmviz.flows.euler import Euler
from dmviz.flows.langevin import Langevin
from dmviz.losses.energy_distance import EnergyDistance
from dmviz.losses.mmd import Mmd
from dmviz.run import Setup
from dmviz.shapes.gaussian import Gaussian

ARENA = Arena(
    Setup(target=Gaussian(scale=0.1), n=30, m=20, referees="sliced_wasserstein", referee_every=5, seed=2),
    (Lane(EnergyDistance(), Euler(dt=0.3)), Lane(Mmd(bandwidth=0.4)), Lane(flow=Langevin(dt=10.0))),
)


@pytest.fixture(scope="module")
def laps() -> tuple[Lap, ...]:
    """Three lanes after 20 steps; the last of them broke on the way."""
    found = race(ARENA, 20)
    assert [bool(lap.ended) for lap in found] == [False, False, True]
    return found


def opened(name: str, content: bytes):
    if name.endswith("csv"):
        return pyarrow.csv.read_csv(io.BytesIO(content))
    return pyarrow.parquet.read_table(io.BytesIO(content))


@pytest.mark.parametrize("name", ["trajectory_csv", "trajectory_parquet"])
def test_coordinates_of_every_lane_are_exact(name: str, laps: tuple[Lap, ...]) -> None:
    table = opened(name, made(name, ARENA, laps))
    assert len(table) == sum(len(lap.frames) * 30 for lap in laps)
    for i, lap in enumerate(laps, 1):
        mine = table.filter(np.array(table["lane"]) == i)
        x = np.stack([np.array(mine["x"]), np.array(mine["y"])], 1).astype(np.float32)
        assert np.array_equal(x, np.concatenate([frame.x for frame in lap.frames]))
        assert np.array_equal(np.array(mine["step"]), np.repeat([f.step for f in lap.frames], 30))


def test_coordinates_at_a_step_are_those_on_screen(laps: tuple[Lap, ...]) -> None:
    table = opened("csv", made("frame_csv", ARENA, laps, 7))
    assert len(table) == 3 * 30
    last = laps[2].frames[-1].step
    assert sorted(set(table["step"].to_pylist())) == sorted({7, min(7, last)})
    assert [lap.frames[0].step for lap in at_frame(laps, 100)] == [20, 20, last]


def test_arrays_of_every_lane_carry_its_number(laps: tuple[Lap, ...]) -> None:
    with np.load(io.BytesIO(made("trajectory_npz", ARENA, laps))) as found:
        assert from_link(str(found["link"])) == ARENA
        for i, lap in enumerate(laps, 1):
            assert np.array_equal(found[f"lane{i}.x"], np.stack([frame.x for frame in lap.frames]))
            assert np.array_equal(found[f"lane{i}.target"], lap.scene.target_x)


@pytest.mark.parametrize("name", ["curve_csv", "curve_parquet"])
def test_curves_hold_each_measure_where_it_was_taken(name: str, laps: tuple[Lap, ...]) -> None:
    rows = opened(name, made(name, ARENA, laps)).to_pylist()
    assert len(rows) == sum(len(lap.frames) for lap in laps)
    for i, lap in enumerate(laps, 1):
        mine = [row for row in rows if row["lane"] == i]
        assert [row["loss"] for row in mine] == pytest.approx([f.metrics["loss"] for f in lap.frames], nan_ok=True)
        judged = [row["sliced_wasserstein"] for row in mine]
        assert [k for k, value in enumerate(judged) if value is not None] == [
            k for k, frame in enumerate(lap.frames) if "sliced_wasserstein" in frame.metrics
        ]


def test_the_table_has_a_row_a_lane(laps: tuple[Lap, ...]) -> None:
    rows = opened("csv", made("table_csv", ARENA, laps)).to_pylist()
    assert [row["lane"] for row in rows] == [1, 2, 3]
    assert rows[2]["ended"].startswith("Stopped at step")


def test_names_tell_arenas_apart(laps: tuple[Lap, ...]) -> None:
    other = replace(ARENA, shared=replace(ARENA.shared, seed=3))
    for item in EXPORTS.values():
        assert item.name(ARENA) != item.name(other) and item.name(ARENA).endswith(item.suffix)
    assert len({item.name(ARENA) for item in EXPORTS.values()}) == len(EXPORTS)


def test_an_unknown_name_or_too_much_is_a_sentence(laps: tuple[Lap, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no export named 'film'; there are frame_csv"):
        made("film", ARENA, laps)
    monkeypatch.setitem(arena_export.export.MOST_NUMBERS, "csv", 5_000)
    with pytest.raises(ValueError, match="the frames of 3 lanes are .* and csv takes 5,000"):
        made("trajectory_csv", ARENA, laps)


def test_the_script_finds_the_numbers_again_and_notices_others(laps: tuple[Lap, ...], tmp_path) -> None:
    file = tmp_path / "arena.py"
    code = made("script", ARENA, laps, 20).decode()
    file.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The numbers are those of the page" in done.stdout and query(ARENA) in code
    file.write_text(code.replace("bandwidth=0.4", "bandwidth=0.5"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "The numbers differ" in done.stderr


def test_a_session_opens_again_bit_for_bit(laps: tuple[Lap, ...]) -> None:
    arena, runs = load(save(ARENA, laps))
    assert arena == ARENA
    for lap, run in zip(laps, runs, strict=True):
        assert (run.setup, run.ended) == (lap.setup, lap.ended)
        assert all(np.array_equal(a.x, b.x) for a, b in zip(lap.frames, run.frames, strict=True))
        assert all(a.metrics.keys() == b.metrics.keys() for a, b in zip(lap.frames, run.frames, strict=True))


def boxed(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as box:
        for name, content in members.items():
            box.writestr(name.replace("_", "."), content)
    return out.getvalue()


def packed(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as box, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as small:
        for name in box.namelist():
            small.writestr(name, box.read(name))
    return out.getvalue()


WORDS = json.dumps({"format": 1, "link": query(ARENA)}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "broken or no arena"),
        (b"PK\x03\x04 nothing", "broken or no arena"),
        (boxed(other_txt=b"x"), "and nothing else"),
        (boxed(lane1_dmviz=b"x"), "broken or no arena"),
        (boxed(arena_json=b"{"), "broken or no arena"),
        (boxed(arena_json=b"[]"), "no link that this version"),
        (boxed(arena_json=b'{"format": 9, "link": ""}'), "no link that this version"),
        (boxed(arena_json=b'{"format": 1, "link": "lane1.loss=mdd"}'), "no loss named 'mdd'"),
        (boxed(arena_json=WORDS), "runs are not those of its link"),
        (boxed(arena_json=WORDS, lane1_dmviz=b"x"), "Session file"),
    ],
)
def test_any_other_file_is_one_sentence(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as problem:
        load(content)
    assert "\n" not in str(problem.value)


def test_a_packed_or_shuffled_session_is_refused(laps: tuple[Lap, ...]) -> None:
    with pytest.raises(ValueError, match="packed or too large"):
        load(packed(save(ARENA, laps)))
    with pytest.raises(ValueError, match="runs are not those of its link"):
        load(save(ARENA, laps[::-1]))
    assert SUFFIX != store.SUFFIX
