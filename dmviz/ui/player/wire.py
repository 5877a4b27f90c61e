"""The bytes between a stage and the browser: frames as 16-bit positions, everything else as a small JSON header.

A chunk is one `bytes`, because Streamlit turns bytes nested in a dict silently into text:

    b"DMV1" | uint32 length of the header | header, JSON in UTF-8 | spaces up to a multiple of 8 | arrays

All numbers are little-endian. `header["arrays"]` lists every array as [name, dtype, shape, offset], the offset
counted from the end of the padding and a multiple of 8. Positions take 2 bytes a coordinate: 4 bytes a particle and
step in 2-D. They are stored relative to a box that holds the whole chunk, so nothing is clipped; a value that is not a
number is sent as 65535.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"DMV1"
ENVELOPE = b"DMVP"
TOP = 65534
"""The largest code of a finite number; 65535 stands for NaN and infinity."""
TINY = float(np.finfo(np.float32).tiny)


def quantise(x: NDArray[np.floating[Any]]) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
    """16-bit codes of `x` (..., dims) and the box (2, dims) that decodes them: low corner, length of one unit of code.

    $$ x = \\mathrm{low} + \\mathrm{unit} \\cdot \\mathrm{code} $$

    The error is at most half a unit, 1/131068 of the box. Numbers that are not finite get the code 65535.

    >>> code, box = quantise(np.array([[0.0], [1.0], [np.nan]], np.float32))
    >>> code.ravel().tolist()
    [0, 65534, 65535]
    """
    code = np.empty(x.shape, np.uint16)
    box = np.empty((2, x.shape[-1]), np.float32)
    for j in range(x.shape[-1]):
        code[..., j], box[:, j] = _column(np.ascontiguousarray(x[..., j], np.float32))
    return code, box


def _column(v: NDArray[np.float32]) -> tuple[NDArray[np.uint16], tuple[np.float32, np.float32]]:
    """Codes of one coordinate, and its low end and unit. All in float32 where every number is finite: that is most of
    what a chunk costs."""
    low, high = (v.min(), v.max()) if v.size else (np.float32(0), np.float32(0))
    span = float(high) - float(low)
    if not span < 3e38:  # also where something is not a number
        return _patchy(v)
    unit = np.float32(max(span / TOP, TINY) if span > 0 else 1.0)
    scaled = v - low
    scaled /= unit
    scaled += np.float32(0.5)
    return scaled.astype(np.uint16), (low, unit)


def _patchy(v: NDArray[np.float32]) -> tuple[NDArray[np.uint16], tuple[np.float32, np.float32]]:
    """The same where some numbers are not finite, or too far apart for float32."""
    finite = np.isfinite(v)
    good = v[finite].astype(np.float64)
    low, high = (float(good.min()), float(good.max())) if good.size else (0.0, 0.0)
    unit = np.float32(max((high - low) / TOP, TINY) if high > low else 1.0)
    code = np.rint((np.where(finite, v, low).astype(np.float64) - low) / np.float64(unit))
    return np.where(finite, np.clip(code, 0, TOP), TOP + 1).astype(np.uint16), (np.float32(low), unit)


def restore(code: NDArray[np.uint16], box: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that `quantise` stored, as the browser computes them; NaN where the code is 65535."""
    x = box[0].astype(np.float64) + box[1].astype(np.float64) * code
    return np.where(code > TOP, np.nan, x).astype(np.float32)


def encode(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """One chunk: `header` (JSON values only) and `arrays`, in the order given.

    Raises ValueError for a dtype the browser has no typed array for.
    """
    listed, parts, offset = [], [], 0
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if little.dtype.str not in ("|u1", "<u2", "<i4", "<u4", "<f4", "<f8"):
            raise ValueError(f"wire: array '{name}' has dtype {array.dtype}, which the browser cannot read")
        listed.append([name, little.dtype.str.lstrip("<|"), list(array.shape), offset])
        parts += [little.tobytes(), bytes(-little.nbytes % 8)]
        offset += little.nbytes + (-little.nbytes % 8)
    text = json.dumps({**header, "arrays": listed}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return b"".join([MAGIC, len(text).to_bytes(4, "little"), text, *parts])


def decode(chunk: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a chunk, as the browser reads them.

    >>> header, arrays = decode(encode({"k0": 3}, {"x": np.arange(3, dtype=np.uint16)}))
    >>> header["k0"], arrays["x"].tolist()
    (3, [0, 1, 2])
    """
    if chunk[:4] != MAGIC:
        raise ValueError(f"wire: a chunk starts with {MAGIC!r}, got {chunk[:4]!r}")
    start = 8 + int.from_bytes(chunk[4:8], "little")
    header = json.loads(chunk[8:start])
    arrays = {}
    for name, kind, shape, offset in header.pop("arrays"):
        dtype = np.dtype(kind).newbyteorder("<")
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(chunk, dtype, count, start + offset).reshape(shape)
    return header, arrays


def envelope(settings: Mapping[str, Any], chunk: bytes) -> bytes:
    """A chunk together with what the page wants of the player: colours, titles, the request it answers."""
    text = json.dumps(settings, allow_nan=False).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return b"".join([ENVELOPE, len(text).to_bytes(4, "little"), text, chunk])


def opened(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Settings and chunk of an envelope."""
    if message[:4] != ENVELOPE:
        raise ValueError(f"wire: a message starts with {ENVELOPE!r}, got {message[:4]!r}")
    start = 8 + int.from_bytes(message[4:8], "little")
    return json.loads(message[8:start]), message[start:]


def bundle(settings: Mapping[str, Any], chunks: Sequence[bytes]) -> bytes:
    """Several chunks in one envelope, whose settings tell how long each is."""
    return envelope({**settings, "chunks": [len(chunk) for chunk in chunks]}, b"".join(chunks))


def unbundled(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Settings and chunks of a bundle.

    >>> unbundled(bundle({"key": "arena"}, [b"one", b"", b"three"]))
    ({'key': 'arena'}, [b'one', b'', b'three'])
    """
    settings, rest = opened(message)
    chunks, at = [], 0
    for length in settings.pop("chunks"):
        chunks.append(rest[at : at + length])
        at += length
    return settings, chunks
