"""Shelf: the frames of a run, their arrays in a temporary file, so that memory stays flat however long it plays."""

import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dmviz.run import Frame


class Note(NamedTuple):
    """What a frame says besides its arrays; kept in memory."""

    step: int
    time: float
    metrics: Mapping[str, float]
    note: str
    ended: str


class _Place(NamedTuple):
    """Where a frame's arrays lie in the file: the first byte, the cloud's names, and a shape each."""

    start: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    own: bool  # False where the exact particles are the ones on the picture

    @property
    def size(self) -> int:
        return sum(_bytes(shape) for shape in self.shapes)


class _File:
    """One temporary file, gone when nobody holds it; several shelves may share what is written."""

    def __init__(self) -> None:
        self.lock, self.end = threading.Lock(), 0
        self.raw = tempfile.TemporaryFile(prefix="dmviz-", buffering=0)  # noqa: SIM115  it lives as long as its frames

    def __del__(self) -> None:
        self.raw.close()

    def write(self, parts: list[memoryview]) -> int:
        with self.lock:
            start = self.end
            self.raw.seek(start)
            for part in parts:
                while part:  # an unbuffered write may take only some of it
                    part = part[self.raw.write(part) :]
            self.end = self.raw.tell()
        return start

    def read(self, start: int, size: int) -> bytearray:
        found = bytearray(size)
        with self.lock:
            self.raw.seek(start)
            view = memoryview(found)
            while view:
                taken = self.raw.readinto(view)
                if not taken:
                    raise OSError("the temporary file of the frames was cut short")
                view = view[taken:]
        return found


class Shelf:
    """Frames by their index, exact, as they were appended: float32 arrays that nobody can change.

    A shelf grows at its end only. It looks like a sequence of `run.Frame`; each one asked for is read anew.
    """

    def __init__(self) -> None:
        self._file = _File()
        self._notes: list[Note] = []
        self._places: list[_Place] = []

    def first(self, count: int) -> "Shelf":
        """A shelf with the first `count` frames of this one, which goes on by itself."""
        other = Shelf.__new__(Shelf)
        other._file, other._notes, other._places = self._file, self._notes[:count], self._places[:count]
        return other

    @property
    def bytes(self) -> int:
        return sum(place.size for place in self._places)

    def append(self, frame: "Frame") -> int:
        """Keep a frame; returns its bytes."""
        own = not any(frame.x is cloud for cloud in frame.clouds.values())
        arrays = [*frame.clouds.values(), *((frame.x,) if own else ()), frame.arrows, frame.speed]
        flat = [np.ascontiguousarray(array, np.float32) for array in arrays]
        start = self._file.write([memoryview(array.tobytes()) for array in flat])
        place = _Place(start, tuple(frame.clouds), tuple(array.shape for array in flat), own)
        self._places.append(place)
        self._notes.append(Note(frame.step, frame.time, frame.metrics, frame.note, frame.ended))
        return place.size

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> "Iterator[Frame]":
        return (self[k] for k in range(len(self)))

    @overload
    def __getitem__(self, k: int) -> "Frame": ...
    @overload
    def __getitem__(self, k: slice) -> "list[Frame]": ...
    def __getitem__(self, k: int | slice) -> "Frame | list[Frame]":
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        from dmviz.run import Frame

        place, note = self._places[k], self._notes[k]
        arrays = self._arrays(place)
        clouds = dict(zip(place.names, arrays, strict=False))
        x, arrows, speed = arrays[-3:] if place.own else (next(iter(clouds.values())), *arrays[-2:])
        return Frame(note.step, note.time, clouds, x, arrows, speed, note.metrics, note.note, note.ended)

    def notes(self, first: int = 0) -> list[Note]:
        """What the frames from `first` on say, without reading their arrays."""
        return self._notes[first:]

    def _arrays(self, place: _Place) -> list[NDArray[np.float32]]:
        raw, at, found = self._file.read(place.start, place.size), 0, []
        for shape in place.shapes:
            array = np.frombuffer(raw, np.float32, count=int(np.prod(shape)), offset=at).reshape(shape)
            array.flags.writeable = False
            found.append(array)
            at += _bytes(shape)
        return found


def _bytes(shape: tuple[int, ...]) -> int:
    return 4 * int(np.prod(shape))
