"""Play, pause, step, scrub and reset of a running iterator of frames; knows nothing of Streamlit.

A `Stage` belongs to one session. Its worker thread pulls frames as far ahead of the viewer as the viewer needs and no
further, keeps them, and looks at a stop flag between two steps. Whoever draws asks for frames by their index: the
same question always has the same answer, so a lost or doubled request does no harm.
"""

import atexit
import logging
import math
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dmviz.ui.player import wire
from dmviz.ui.shelf import Note, Shelf

if TYPE_CHECKING:
    from dmviz.run import Frame, Scene

log = logging.getLogger(__name__)

Factory = Callable[[], "tuple[Scene, Iterator[Frame]]"]
"""Builds a run: called in the worker, so that a slow setup never blocks the page."""

IDLE_AHEAD = 12  # frames made ready while paused, so that Play and Step answer at once
PLAY_AHEAD = 2.5  # seconds of frames made ready while playing
CHUNK_BYTES = 3_000_000  # a chunk stays below this unless one frame alone is larger
ALIKE = 16.0  # frames of one chunk differ in size by no more: its box has 16 bits
ARROWS = 400  # at most so many arrows are sent


class _Run:
    """One run: its frames so far, and what its worker must know. Everything is guarded by `changed`."""

    def __init__(self, link: str, generation: int, kept: Shelf, parent: str, most: tuple[int, int]) -> None:
        self.link, self.generation, self.parent = link, generation, parent
        self.name = blake2b(link.encode(), digest_size=8).hexdigest()
        self.frames = kept
        self.keep = len(kept)
        self.scene: Scene | None = None
        self.ended = ""
        self.limit = self.keep + IDLE_AHEAD
        self.stopping = False
        self.most_bytes, self.most_frames = most
        self.bytes = kept.bytes
        self.seconds: deque[float] = deque(maxlen=31)
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def end(self, sentence: str) -> None:
        with self.changed:
            self.ended = self.ended or sentence
            self.changed.notify_all()


_runs: "weakref.WeakSet[_Run]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A torch thread that is killed at exit aborts the process: stop each worker and wait for its last step."""
    for run in list(_runs):
        run.stop()
    for run in list(_runs):
        if run.thread is not None:
            run.thread.join(5.0)


def _work(run: _Run, factory: Factory, threads: int | None) -> None:
    """The worker: build the run, then one frame after another while someone wants more."""
    try:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        scene, frames = factory()
        with run.changed:
            run.scene = scene
            run.changed.notify_all()
        _pull(run, frames)
    except ValueError as error:
        run.end(str(error))
    except Exception as error:
        log.exception("the run %s stopped", run.link)
        kind = "ran out of memory" if isinstance(error, MemoryError) else f"failed ({type(error).__name__})"
        run.end(f"The run {kind} after frame {len(run.frames) - 1}; the log has the details. Change the setup.")


def _pull(run: _Run, frames: "Iterator[Frame]") -> None:
    while True:
        with run.changed:
            run.changed.wait_for(lambda: run.stopping or len(run.frames) < run.limit)
            if run.stopping:
                return
            full = _full(run)
        if full:
            run.end(full)
            return
        start = time.perf_counter()
        frame = next(frames, None)
        took = time.perf_counter() - start
        if frame is None:
            run.end(f"The run ended at frame {len(run.frames) - 1}.")
            return
        with run.changed:
            if run.stopping:
                return
            run.bytes += run.frames.append(frame)
            run.seconds.append(took)
            run.ended = run.ended or frame.ended
            run.changed.notify_all()
            if run.ended:
                return


def _full(run: _Run) -> str:
    """The sentence that ends a run whose frames fill their memory; '' while there is room."""
    last = len(run.frames) - 1
    if len(run.frames) >= run.most_frames:
        return f"Stopped at frame {last:,}: that is as many frames as are kept. Take more steps a frame to see further."
    if run.bytes >= run.most_bytes:
        size = run.most_bytes / 2**20
        return (
            f"Stopped at frame {last:,}: the frames fill their {size:,.0f} MB. "
            "Take fewer particles or more steps a frame to see further."
        )
    return ""


class Stage:
    """The run a session looks at.

    `most_bytes` and `most_frames` bound what is kept: a run that reaches them stops and says so, and frames already
    kept never change. `threads` is the number of torch threads in the worker (None leaves torch's choice): with a few
    hundred points on a busy machine one thread is many times faster than two.
    """

    def __init__(self, *, most_bytes: int = 512 << 20, most_frames: int = 20_000, threads: int | None = 1) -> None:
        self.most_bytes, self.most_frames, self.threads = most_bytes, most_frames, threads
        self.pos, self.playing, self.speed = 0.0, False, 30.0
        self._generation = 0
        self._run = _Run("", 0, Shelf(), "", (most_bytes, most_frames))

    def __del__(self) -> None:
        if hasattr(self, "_run"):
            self._run.stop()

    # -- choose a run --------------------------------------------------------------------------------------------

    def load(self, link: str, factory: Factory, *, keep: int = 0, again: bool = False) -> bool:
        """Show the run of `link`. Returns False, and changes nothing, if it is on stage already.

        `factory` builds it in the worker. `again` starts the same link afresh. `keep` branches: frames 0 to keep - 1
        of the present run stay as they are, and the first frame the new iterator gives becomes frame `keep`.
        """
        old = self._run
        if link == old.link and not again:
            return False
        old.stop()
        with old.changed:
            kept = old.frames.first(max(keep, 0)) if keep > 0 else Shelf()
        self._generation += 1
        run = _Run(link, self._generation, kept, old.name, (self.most_bytes, self.most_frames))
        self._run = run
        self.pos = float(min(self.pos, len(kept)))
        self.poke(self.pos, self.playing, self.speed)
        run.thread = threading.Thread(
            target=_work, args=(run, factory, self.threads), daemon=True, name=f"dmviz-stage-{run.name}"
        )
        _runs.add(run)
        run.thread.start()
        return True

    def stop(self) -> None:
        """End the run where it is, at the latest after the step in progress; its frames stay."""
        self._run.stop()
        self._run.end(f"Stopped at frame {self.available - 1}.")

    def close(self) -> None:
        """Stop, wait for the worker and let the frames go."""
        run = self._run
        run.stop()
        if run.thread is not None and run.thread is not threading.current_thread():
            run.thread.join(5.0)
        self._run = _Run("", self._generation, Shelf(), "", (self.most_bytes, self.most_frames))

    # -- where the viewer is -------------------------------------------------------------------------------------

    def poke(self, pos: float, playing: bool, speed: float = 30.0) -> None:
        """The viewer looks at frame `pos` and plays, or not, at `speed` frames a second: compute ahead of that."""
        if not math.isfinite(pos + speed):
            raise ValueError(f"Stage: position and speed must be finite, got {pos} and {speed}")
        self.pos, self.playing, self.speed = max(pos, 0.0), playing, min(max(speed, 0.1), 1000.0)
        ahead = max(IDLE_AHEAD, math.ceil(PLAY_AHEAD * self.speed)) if playing else IDLE_AHEAD
        run = self._run
        with run.changed:
            run.limit = math.floor(self.pos) + 1 + ahead
            run.changed.notify_all()

    def pause(self) -> None:
        """Compute no further than a few frames ahead; takes effect after the step in progress."""
        self.poke(self.pos, False, self.speed)

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def link(self) -> str:
        return self._run.link

    @property
    def generation(self) -> int:
        """Grows with every run put on stage: two runs of one session never share it."""
        return self._run.generation

    @property
    def available(self) -> int:
        """How many frames are kept: 0 to available - 1."""
        return len(self._run.frames)

    @property
    def ended(self) -> str:
        """One sentence if no further frame will come, else ''."""
        return self._run.ended

    @property
    def scene(self) -> "Scene | None":
        """What is constant over the run; None until the worker has built it."""
        return self._run.scene

    @property
    def ms(self) -> float:
        """Median milliseconds the last frames took to compute; nan before the first."""
        seconds = list(self._run.seconds)
        return 1000.0 * statistics.median(seconds) if seconds else math.nan

    @property
    def frames(self) -> "tuple[Frame, ...]":
        """All frames kept so far."""
        return tuple(self._run.frames)

    def frame(self, k: int) -> "Frame":
        """Frame k, exact. IndexError, with the frames there are, if it is not kept."""
        frames = self._run.frames
        if not 0 <= k < len(frames):
            raise IndexError(f"Stage: frame {k} is not kept; there are frames 0 to {len(frames) - 1}")
        return frames[k]

    def wait(self, frames: int, timeout: float = 10.0) -> bool:
        """Wait until so many frames are kept or the run ended; False if the time ran out."""
        run = self._run
        with run.changed:
            return run.changed.wait_for(lambda: len(run.frames) >= frames or bool(run.ended), timeout)

    # -- what goes to the browser --------------------------------------------------------------------------------

    def chunk(
        self,
        k0: int = 0,
        most: int = 64,
        *,
        x: bool = True,
        arrows: bool = False,
        speed: bool = False,
        scene: bool = False,
        since: int | None = None,
        wait: float = 0.0,
    ) -> bytes:
        """Frames k0, k0 + 1, ... as bytes (see wire.py); at most `most`, fewer where they are large or not there yet.

        `x`, `arrows`, `speed` choose what is sent of each frame; steps, times and metrics are sent for all frames
        from `since` (default: k0) on. `scene` adds what is constant over the run. `wait` seconds for frame k0.
        """
        run = self._run
        with run.changed:
            run.changed.wait_for(lambda: len(run.frames) > k0 or bool(run.ended) or run.link == "", wait)
            available, ended, constant = len(run.frames), run.ended, run.scene
            k0 = min(max(k0, 0), available)
            known = run.frames.notes(min(max(k0 if since is None else since, 0), available))
        most = min(max(most, 0), available - k0)
        frames = run.frames[k0 : k0 + min(most, 1)]
        frames += run.frames[k0 + 1 : k0 + min(most, _fitting(frames, x, arrows, speed))]
        frames = frames[: _alike(frames)]
        header: dict[str, Any] = {
            "run": run.name,
            "gen": run.generation,
            "keep": run.keep,
            "parent": run.parent,
            "threads": self.threads,
            "k0": k0,
            "count": len(frames),
            "since": available - len(known),
            "available": available,
            "ended": ended,
            "ready": constant is not None,
            "ms": None if math.isnan(self.ms) else self.ms,
            "frame_bytes": run.bytes // max(available, 1),
            "notes": [[available - len(known) + i, f.note] for i, f in enumerate(known) if f.note],
        }
        arrays: dict[str, NDArray[Any]] = {}
        if scene and constant is not None:
            header["scene"] = _scene_header(constant)
            arrays |= _scene_arrays(constant)
        header["metrics"], history = _history(known)
        return wire.encode(header, arrays | history | _moving(frames, x, arrows, speed))


def _fitting(frames: "list[Frame]", x: bool, arrows: bool, speed: bool) -> int:
    """How many frames fit in one chunk; at least one."""
    if not frames:
        return 0
    n, dims = frames[0].clouds["particles"].shape
    size = x * 2 * n * dims + speed * 2 * n + arrows * 4 * min(n, ARROWS) * dims
    return max(1, CHUNK_BYTES // max(int(size), 1))


def _alike(frames: "list[Frame]") -> int:
    """How many frames share the box of one chunk well: in a box that holds an explosion, all before it is one point."""
    reach = [_reach(frame.clouds["particles"]) for frame in frames]
    unlike = (k for k, size in enumerate(reach) if not reach[0] / ALIKE <= size <= reach[0] * ALIKE)
    return next(unlike, len(frames))


def _reach(x: NDArray[Any]) -> float:
    """The largest finite coordinate."""
    largest = float(np.abs(x).max(initial=0.0))
    if math.isfinite(largest):
        return largest
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def _scene_header(scene: "Scene") -> dict[str, Any]:
    return {
        "dims": int(scene.dims),
        "axes": list(scene.axes),
        "device": scene.device,
        "label_names": list(scene.label_names),
        "notes": list(scene.notes),
    }


def _scene_arrays(scene: "Scene") -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"target": np.asarray(scene.target, np.float32)}
    for name in ("target_weight", "weight"):
        if getattr(scene, name) is not None:
            arrays[name] = np.asarray(getattr(scene, name), np.float32)
    for name in ("target_label", "label"):
        if getattr(scene, name) is not None:
            arrays[name] = np.asarray(getattr(scene, name), np.int32)
    return arrays


def _history(frames: list[Note]) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Names of the metrics, and step, time and metrics (names, frames) of each frame; NaN where not computed."""
    names = list(dict.fromkeys(["loss", *(name for frame in frames for name in frame.metrics)]))
    rows = [[frame.metrics.get(name, math.nan) for frame in frames] for name in names]
    return names, {
        "step": np.array([frame.step for frame in frames], np.int32),
        "time": np.array([frame.time for frame in frames], np.float32),
        "metric": np.array(rows, np.float32).reshape(len(names), len(frames)),
    }


def _moving(frames: "list[Frame]", x: bool, arrows: bool, speed: bool) -> dict[str, NDArray[Any]]:
    """What differs from frame to frame and grows with the particles."""
    arrays: dict[str, NDArray[Any]] = {}
    if not frames:
        return arrays
    if x:
        arrays["x"], arrays["box"] = wire.quantise(np.stack([f.clouds["particles"] for f in frames]))
    if speed:
        arrays["speed"], arrays["speed_box"] = wire.quantise(np.stack([f.speed for f in frames])[..., None])
    if arrows:
        n = len(frames[0].arrows)
        chosen = np.arange(min(n, ARROWS)) * n // min(n, ARROWS)
        arrays["arrows"] = np.stack([f.arrows[chosen] for f in frames]).astype(np.float32)  # (K, A, dims)
    return arrays
