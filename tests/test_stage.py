"""The worker behind the player: frames by index, never ahead of need, never changed, stopped within a step."""

import gc
import threading
import time
import tracemalloc
import weakref
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from dmviz.ui.player import answer, points, wire
from dmviz.ui.shelf import Shelf
from dmviz.ui.stage import IDLE_AHEAD, Stage


@dataclass(frozen=True, eq=False)
class Frame:
    step: int
    time: float
    clouds: dict
    x: np.ndarray
    arrows: np.ndarray
    speed: np.ndarray
    metrics: dict = field(default_factory=dict)
    note: str = ""
    ended: str = ""


@dataclass(frozen=True, eq=False)
class Scene:
    target: np.ndarray
    target_weight: np.ndarray | None = None
    weight: np.ndarray | None = None
    label: np.ndarray | None = None
    target_label: np.ndarray | None = None
    label_names: tuple = ()
    dims: int = 2
    axes: tuple = ("x", "y")
    device: str = "CPU"
    notes: tuple = ()


def make_frame(k, n=7, dims=2, ended=""):
    x = np.random.default_rng(k).normal(size=(n, dims)).astype(np.float32)
    metrics = {"loss": 1.0 / (k + 1)} | ({"referee": float(k)} if k % 10 == 0 else {})
    speed = np.linalg.norm(x, axis=1).astype(np.float32)
    return Frame(k, 0.1 * k, {"particles": x}, x, x * 2, speed, metrics, f"note {k}" if k == 3 else "", ended)


def same(one, other):
    """Whether two frames agree to the bit."""
    arrays = [(one.x, other.x), (one.arrows, other.arrows), (one.speed, other.speed)]
    arrays += [(one.clouds[name], other.clouds[name]) for name in one.clouds]
    words = ("step", "time", "metrics", "note", "ended")
    return all(np.array_equal(a, b) for a, b in arrays) and all(getattr(one, w) == getattr(other, w) for w in words)


SCENE = Scene(np.zeros((4, 2), np.float32), label=np.arange(7, dtype=np.int32), label_names=("a",))


class Run:
    """A factory that counts its frames; `seconds` is the time one takes, `first` its first index."""

    def __init__(self, last=None, seconds=0.0, n=7, first=0, broken=None):
        self.last, self.seconds, self.n, self.first, self.broken = last, seconds, n, first, broken
        self.made = 0
        self.threads = set()

    def __call__(self):
        return SCENE, self.frames()

    def frames(self):
        k = self.first
        while self.last is None or k <= self.last:
            self.threads.add(threading.current_thread().name)
            time.sleep(self.seconds)
            if k == self.broken:
                raise RuntimeError("secret detail")
            self.made += 1
            yield make_frame(k, self.n, ended="It broke." if k == self.last else "")
            k += 1


@pytest.fixture
def stage():
    one = Stage(threads=None)
    yield one
    one.close()


def settle(stage, seconds=0.15):
    before = -1
    while before != stage.available:
        before = stage.available
        time.sleep(seconds)


def test_paused_it_computes_a_few_frames_ahead_and_rests(stage):
    run = Run()
    assert stage.load("a", run)
    settle(stage)
    assert stage.available == 1 + IDLE_AHEAD == run.made
    stage.poke(5, False)
    settle(stage)
    assert stage.available == 6 + IDLE_AHEAD


def test_playing_it_computes_seconds_ahead_of_the_viewer(stage):
    stage.load("a", Run())
    stage.poke(0, True, 40.0)
    settle(stage)
    assert stage.available == 1 + 100  # 2.5 s at 40 frames a second


def test_pause_takes_effect_within_one_step(stage):
    stage.load("a", Run(seconds=0.05))
    stage.poke(0, True, 100.0)
    stage.wait(IDLE_AHEAD + 4)
    stage.pause()
    at = stage.available
    time.sleep(0.3)
    assert stage.available <= at + 1


def test_stop_ends_the_run_within_one_step_and_keeps_its_frames(stage):
    stage.load("a", Run(seconds=0.02))
    stage.poke(0, True, 100.0)
    stage.wait(5)
    stage.stop()
    at = stage.available
    time.sleep(0.15)
    assert stage.available == at
    assert stage.ended.startswith("Stopped at frame")
    assert stage.frame(at - 1).step == at - 1


def test_the_factory_runs_in_the_worker_not_in_the_caller(stage):
    caller = threading.current_thread().name
    seen = []

    def factory():
        seen.append(threading.current_thread().name)
        return SCENE, Run().frames()

    stage.load("a", factory)
    stage.wait(1)
    assert seen and seen[0] != caller


def test_the_same_question_always_has_the_same_answer(stage):
    stage.load("a", Run(last=40))
    stage.poke(40, False)
    stage.wait(41)
    ask = {"k0": 10, "most": 5, "arrows": True, "speed": True, "since": 3}
    first = wire.decode(stage.chunk(**ask))[1]
    again = wire.decode(stage.chunk(**ask))[1]
    assert first.keys() == again.keys()
    assert all((first[key] == again[key]).all() for key in first if key != "metric")
    assert np.array_equal(first["metric"], again["metric"], equal_nan=True)


def test_a_chunk_says_where_it_starts_and_holds_what_was_computed(stage):
    stage.load("a", Run(last=40))
    stage.poke(40, False)
    stage.wait(41)
    header, arrays = wire.decode(stage.chunk(10, 5, arrows=True, speed=True, since=8))
    assert (header["k0"], header["count"], header["available"], header["since"]) == (10, 5, 41, 8)
    back = wire.restore(arrays["x"], arrays["box"])
    speed = wire.restore(arrays["speed"], arrays["speed_box"])[..., 0]
    for i in range(5):
        exact = make_frame(10 + i)
        assert np.abs(back[i] - exact.x).max() <= 0.51 * arrays["box"][1].max()
        assert (arrays["arrows"][i] == exact.arrows).all()
        assert np.abs(speed[i] - exact.speed).max() <= 0.51 * arrays["speed_box"][1].max()
    assert arrays["step"].tolist() == list(range(8, 41))
    loss = arrays["metric"][header["metrics"].index("loss")]
    assert np.allclose(loss, [1 / (k + 1) for k in range(8, 41)])
    referee = arrays["metric"][header["metrics"].index("referee")]
    assert np.isnan(referee).sum() == 33 - 4


def test_notes_and_the_end_reach_the_browser(stage):
    stage.load("a", Run(last=6))
    stage.wait(7)
    header, _ = wire.decode(stage.chunk(0))
    assert header["notes"] == [[3, "note 3"]]
    assert header["ended"] == "It broke." == stage.ended


def test_a_chunk_beyond_the_end_is_empty_and_waits_no_longer_than_told(stage):
    stage.load("a", Run(last=6))
    stage.wait(7)
    start = time.perf_counter()
    header, arrays = wire.decode(stage.chunk(100, wait=5.0))
    assert time.perf_counter() - start < 1.0  # the run is over: nothing to wait for
    assert header["count"] == 0 and "x" not in arrays


def test_large_frames_travel_in_small_chunks(stage):
    stage.load("a", Run(n=100_000))
    stage.wait(4)
    chunk = stage.chunk(0, 64)
    assert len(chunk) < 3_100_000
    assert wire.decode(chunk)[0]["count"] == 4


def test_an_explosion_does_not_blur_the_frames_before_it(stage):
    sizes = [1.0, 1.1, 0.9, 1e12, 1e30, float("inf"), 1.0]

    def factory():
        return SCENE, (
            replace(make_frame(k), clouds={"particles": (make_frame(k).x * np.float32(size))})
            for k, size in enumerate(sizes)
        )

    stage.load("a", factory)
    stage.wait(len(sizes))
    k = 0
    while k < len(sizes):
        header, arrays = wire.decode(stage.chunk(k, 64))
        assert header["k0"] == k and header["count"] >= 1
        back = wire.restore(arrays["x"], arrays["box"])
        for i in range(header["count"]):
            exact = make_frame(k + i).x * np.float32(sizes[k + i])
            assert np.isfinite(back[i]).all() == np.isfinite(exact).all()
            if np.isfinite(exact).all():
                assert np.abs(back[i] - exact).max() < 1e-3 * np.abs(exact).max()
        k += header["count"]


def test_bytes_per_particle_and_step_stay_below_4_3(stage):
    stage.load("a", Run(n=2000))
    stage.poke(60, False)
    stage.wait(64)
    assert len(stage.chunk(0, 64)) / (64 * 2000) <= 4.3


def test_the_scene_travels_when_it_is_asked_for(stage):
    stage.load("a", Run())
    stage.wait(1)
    header, arrays = wire.decode(stage.chunk(0, scene=True))
    assert header["scene"]["axes"] == ["x", "y"] and header["scene"]["device"] == "CPU"
    assert arrays["target"].shape == (4, 2) and arrays["label"].tolist() == list(range(7))
    assert "scene" not in wire.decode(stage.chunk(0))[0]


def test_kept_frames_never_change_and_cannot_be_written(stage):
    stage.load("a", Run())
    stage.poke(30, False)
    stage.wait(20)
    before = [stage.frame(k).x.copy() for k in range(20)]
    stage.poke(200, False)
    stage.wait(200)
    assert all((stage.frame(k).x == before[k]).all() for k in range(20))
    with pytest.raises(ValueError, match="read-only"):
        stage.frame(3).x[0, 0] = 1.0


def test_frames_are_kept_up_to_a_number_and_the_run_says_so():
    stage = Stage(most_frames=20, threads=None)
    stage.load("a", Run())
    stage.poke(100, False)
    assert stage.wait(1000, 5.0)
    assert stage.available == 20
    assert stage.ended.startswith("Stopped at frame 19")
    stage.close()


def test_frames_are_kept_up_to_a_size_and_the_run_says_so():
    stage = Stage(most_bytes=100_000, threads=None)
    stage.load("a", Run(n=500))
    stage.poke(1000, False)
    assert stage.wait(1000, 5.0)
    assert 5 <= stage.available <= 10
    assert "fill their" in stage.ended and len(stage.ended.split(". ")) == 2
    stage.close()


def test_the_same_link_changes_nothing_unless_asked_again(stage):
    run = Run()
    stage.load("a", run)
    settle(stage)
    generation = stage.generation
    assert not stage.load("a", Run())
    assert stage.generation == generation
    assert stage.load("a", Run(), again=True)
    assert stage.generation == generation + 1


def test_another_run_starts_at_frame_0_and_the_old_worker_stops(stage):
    old = Run(seconds=0.01)
    stage.load("a", old)
    stage.poke(5, True, 1000.0)
    stage.wait(8)
    stage.load("b", Run(n=3))
    time.sleep(0.05)
    made = old.made
    time.sleep(0.15)
    assert old.made == made
    assert stage.pos == 0.0 and stage.playing  # it goes on playing
    assert stage.frame(0).x.shape == (3, 2)
    header, _ = wire.decode(stage.chunk(0))
    assert header["gen"] == stage.generation and header["keep"] == 0


def test_a_branch_keeps_the_frames_before_it(stage):
    stage.load("a", Run())
    stage.poke(30, False)
    stage.wait(31)
    kept = [stage.frame(k) for k in range(20)]
    parent = wire.decode(stage.chunk(0))[0]["run"]
    stage.load("b", Run(first=100), keep=20)
    stage.wait(25)
    assert all(same(stage.frame(k), kept[k]) for k in range(20))
    assert stage.frame(20).step == 100
    header, _ = wire.decode(stage.chunk(0))
    assert (header["keep"], header["parent"]) == (20, parent)
    assert stage.pos == 20.0


def test_a_value_error_of_the_setup_is_shown_word_for_word(stage):
    def factory():
        raise ValueError("MMD: bandwidth must be in [0.01, 10], got 20")

    stage.load("a", factory)
    stage.wait(1)
    header, _ = wire.decode(stage.chunk(0, scene=True))
    assert header["ended"] == "MMD: bandwidth must be in [0.01, 10], got 20"
    assert header["available"] == 0 and not header["ready"]


def test_any_other_failure_is_one_sentence_and_a_log_entry(stage, caplog):
    stage.load("a", Run(broken=4))
    stage.wait(99)
    assert "RuntimeError" in stage.ended and "secret detail" not in stage.ended and "\n" not in stage.ended
    assert stage.available == 4
    assert "secret detail" in caplog.text


def test_an_iterator_that_just_ends_is_no_failure(stage):
    stage.load("a", lambda: (SCENE, iter([make_frame(0), make_frame(1)])))
    stage.wait(99)
    assert stage.available == 2 and stage.ended == "The run ended at frame 1."


def test_a_frame_that_is_not_kept_is_refused_with_the_range(stage):
    stage.load("a", Run(last=3))
    stage.wait(4)
    with pytest.raises(IndexError, match="there are frames 0 to 3"):
        stage.frame(4)
    with pytest.raises(IndexError):
        stage.frame(-1)


def test_the_time_of_a_step_is_measured(stage):
    stage.load("a", Run(seconds=0.02))
    stage.wait(5)
    assert 18 < stage.ms < 60


def test_a_request_of_a_run_that_left_is_answered_with_the_present_one(stage):
    stage.load("a", Run())
    stage.wait(1)
    old = stage.generation
    stage.load("b", Run(n=3))
    stage.wait(1)
    wanted = {"id": 4, "gen": old, "k0": 40, "pos": 40, "play": True, "speed": 30}
    header, arrays = wire.decode(answer(stage, wanted))
    assert header["gen"] == stage.generation and header["k0"] == 0 and "scene" in header
    assert arrays["x"].shape[1:] == (3, 2)
    assert not stage.playing and stage.pos == 0.0  # the old request moves nothing


def test_a_request_moves_the_viewer_and_gets_its_frames(stage):
    stage.load("a", Run(last=50))
    stage.poke(50, False)
    stage.wait(51)
    wanted = {
        "id": 1,
        "gen": stage.generation,
        "k0": 20,
        "most": 4,
        "pos": 20.5,
        "play": True,
        "speed": 60,
        "since": 51,
    }
    header, arrays = wire.decode(answer(stage, {**wanted, "parts": ["x", "arrows"]}))
    assert (stage.pos, stage.playing, stage.speed) == (20.5, True, 60)
    assert header["k0"] == 20 and header["count"] == 4
    assert "arrows" in arrays and "speed" not in arrays and arrays["step"].size == 0


def test_positions_that_are_not_numbers_are_refused(stage):
    with pytest.raises(ValueError, match="finite"):
        stage.poke(float("nan"), True)


def test_drawn_points_are_numbers_or_nothing():
    assert points(None) is None and points([]) is None and points("abc") is None
    assert points([[1, 2.5], [0, -1]]) == ((1.0, 2.5), (0.0, -1.0))


def test_a_stage_that_nobody_holds_stops_its_worker():
    run = Run(seconds=0.005)
    stage = Stage(threads=None)
    stage.load("a", run)
    stage.poke(0, True, 1000.0)
    stage.wait(3)
    gone = weakref.ref(stage)
    del stage
    gc.collect()
    assert gone() is None
    time.sleep(0.05)
    made = run.made
    time.sleep(0.1)
    assert run.made == made


def test_five_stages_never_mix():
    stages = [Stage(threads=None) for _ in range(5)]
    for i, stage in enumerate(stages):
        stage.load(f"link {i}", Run(n=3 + i))
    for i, stage in enumerate(stages):
        stage.wait(5)
        header, arrays = wire.decode(stage.chunk(0))
        assert arrays["x"].shape[1] == 3 + i
        stage.close()
    assert len({s.generation for s in stages}) == 1  # generations are per session; the run's name tells them apart


def wide_frame(k):
    """A frame whose picture is not its particles, as in more than three dimensions."""
    x = np.random.default_rng(k).normal(size=(5, 9)).astype(np.float32)
    return Frame(k, float(k), {"particles": x[:, :2].copy()}, x, x[:, 2:4].copy(), x[:, 4].copy(), {"loss": 1.0})


def test_a_shelf_gives_back_every_frame_to_the_bit_and_nobody_can_change_it():
    shelf, frames = Shelf(), [make_frame(k) for k in range(5)] + [wide_frame(k) for k in range(5, 9)]
    for frame in frames:
        shelf.append(frame)
    assert len(shelf) == 9
    assert all(same(there, here) for there, here in zip(shelf, frames, strict=True))
    assert [frame.step for frame in shelf[2:7]] == [2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="read-only"):
        shelf[0].x[0, 0] = 1.0
    assert [note.note for note in shelf.notes(2)][:2] == ["", "note 3"]


def test_two_shelves_that_share_their_beginning_go_on_apart():
    shelf = Shelf()
    for k in range(6):
        shelf.append(make_frame(k))
    other = shelf.first(3)
    shelf.append(make_frame(50))
    other.append(make_frame(60))
    assert [frame.step for frame in shelf] == [0, 1, 2, 3, 4, 5, 50]
    assert [frame.step for frame in other] == [0, 1, 2, 60]
    assert same(other[3], make_frame(60)) and same(shelf[6], make_frame(50))


def test_frames_of_a_long_run_are_not_held_in_memory():
    shelf = Shelf()
    tracemalloc.start()
    for k in range(40):
        shelf.append(make_frame(k, n=20_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shelf.bytes == 40 * 20_000 * (8 + 8 + 4)
    assert held < shelf.bytes / 20
