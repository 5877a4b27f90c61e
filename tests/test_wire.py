"""The bytes that go to the browser: what comes out is what went in, and positions stay within half a unit of code."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dmviz.ui.player import wire

CLOUDS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3)),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


@given(CLOUDS)
def test_positions_come_back_within_half_a_unit(x):
    code, box = wire.quantise(x)
    back = wire.restore(code, box)
    # Half a unit of code, and the rounding of float32 at the size of the numbers themselves.
    allowed = 0.5 * box[1] * 1.02 + np.spacing(np.abs(x).max(initial=0)) * 2
    assert (np.abs(back - x) <= allowed).all()


@given(CLOUDS, st.data())
def test_what_is_not_a_number_is_marked_and_disturbs_nothing_else(x, data):
    where = data.draw(hnp.arrays(bool, x.shape))
    bad = np.where(where, np.float32(data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))), x)
    code, box = wire.quantise(bad)
    assert ((code == 65535) == where).all()
    assert np.isnan(wire.restore(code, box)[where]).all()
    assert np.isfinite(wire.restore(code, box)[~where]).all()


def test_numbers_too_far_apart_for_float32_still_come_back():
    x = np.array([[[-3e38], [3e38], [0.0], [np.nan]]], np.float32)
    code, box = wire.quantise(x)
    assert np.allclose(wire.restore(code, box)[0, :3, 0], x[0, :3, 0], atol=6e38 / 65534)
    assert code[0, 3, 0] == 65535


def test_no_points_at_all_are_a_chunk_too():
    code, box = wire.quantise(np.zeros((3, 0, 2), np.float32))
    assert code.shape == (3, 0, 2) and np.isfinite(box).all()


def test_a_cloud_of_one_repeated_point_comes_back_exactly():
    x = np.full((2, 5, 2), 0.3, np.float32)
    assert (wire.restore(*wire.quantise(x)) == x).all()


def test_a_tiny_cloud_far_from_the_origin_keeps_float32_accuracy():
    x = (1e4 + np.linspace(0, 0.01, 50)).astype(np.float32).reshape(1, 25, 2)
    code, box = wire.quantise(x)
    assert np.abs(wire.restore(code, box) - x).max() <= np.spacing(np.float32(1e4))


def test_arrays_start_at_multiples_of_eight_whatever_the_header():
    for name in ("", "x", "xy", "xyz", "käse", "点群"):
        arrays = {
            "a": np.arange(3, dtype=np.uint16),
            "b": np.arange(5, dtype=np.float32),
            "c": np.zeros((0, 2), np.float32),
        }
        chunk = wire.encode({"name": name}, arrays)
        start = 8 + int.from_bytes(chunk[4:8], "little")
        assert start % 8 == 0
        assert all(offset % 8 == 0 for _, _, _, offset in json.loads(chunk[8:start])["arrays"])
        header, back = wire.decode(chunk)
        assert header["name"] == name
        assert all((back[key] == arrays[key]).all() and back[key].shape == arrays[key].shape for key in arrays)


def test_a_big_endian_array_is_sent_little_endian():
    _, back = wire.decode(wire.encode({}, {"x": np.arange(4, dtype=">i4")}))
    assert back["x"].tolist() == [0, 1, 2, 3]


def test_a_dtype_the_browser_has_no_array_for_is_refused_by_name():
    with pytest.raises(ValueError, match="'x' has dtype int64"):
        wire.encode({}, {"x": np.arange(3)})


def test_a_header_with_nan_is_refused_because_json_has_none():
    with pytest.raises(ValueError, match="JSON"):
        wire.encode({"ms": float("nan")}, {})


def test_an_envelope_keeps_its_chunk_and_its_alignment():
    chunk = wire.encode({"k0": 0}, {"x": np.arange(8, dtype=np.float32)})
    for title in ("", "a", "ab", "é"):
        message = wire.envelope({"title": title}, chunk)
        settings, inner = wire.opened(message)
        assert settings == {"title": title}
        assert inner == chunk
        assert (len(message) - len(chunk)) % 8 == 0


def test_bytes_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="starts with"):
        wire.decode(b"PK\x03\x04" + bytes(20))
    with pytest.raises(ValueError, match="starts with"):
        wire.opened(b"DMV1" + bytes(20))
