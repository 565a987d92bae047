"""Tensors on the wire: what goes in comes out, and nothing that lies gets in."""

import tracemalloc

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.core.tensors import (
    DTYPES,
    check_datatype,
    check_shape,
    decode_bytes,
    decode_json,
    decode_typed,
    encode_bytes,
    encode_json,
)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray]:
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    size = int(np.prod(shape))
    if datatype == "BYTES":
        values = draw(st.lists(st.binary(max_size=9), min_size=size, max_size=size))
        array = np.empty(size, np.object_)
        array[:] = values
        return datatype, array.reshape(shape)
    values = draw(st.lists(st.integers(0, 1 if datatype == "BOOL" else 100), min_size=size, max_size=size))
    return datatype, np.array(values).astype(DTYPES[datatype]).reshape(shape)


@given(tensors())
def test_bytes_bring_back_what_was_sent(sent: tuple[str, np.ndarray]) -> None:
    datatype, array = sent
    back = decode_bytes(datatype, array.shape, encode_bytes(array), "x")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(tensors())
def test_json_brings_back_what_was_sent(sent: tuple[str, np.ndarray]) -> None:
    datatype, array = sent
    if datatype == "BYTES":
        texts = [str(index).encode() for index in range(array.size)]
        array = np.array(texts, dtype=np.object_).reshape(array.shape)
    text = orjson.dumps(encode_json(array, "y"), option=orjson.OPT_SERIALIZE_NUMPY)
    back = decode_json(datatype, array.shape, orjson.loads(text), "x")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4) | st.integers(0, 2**70), max_size=4), st.binary(max_size=64))
def test_bytes_that_lie_are_refused_and_take_no_memory(datatype: str, shape: list[int], data: bytes) -> None:
    try:
        array = decode_bytes(datatype, check_shape(shape, "x"), data, "x")
    except InvalidRequest:
        return
    assert array.shape == tuple(shape)
    assert len(encode_bytes(array)) == len(data)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("FP32", [2], b"1234567", "takes 8 bytes, received 7"),
        ("BYTES", [2], b"\0\0\0\0", "names 2 BYTES elements"),
        ("BYTES", [1], b"\5\0\0\0abc", "ends within its BYTES element 0"),
        ("BYTES", [2], b"\3\0\0\0abc\0", "ends within the length of its BYTES element 1"),
        ("BYTES", [1], b"\1\0\0\0abc", "2 bytes after its last"),
    ],
)
def test_wrong_bytes_say_what_is_wrong(datatype: str, shape: list[int], data: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        decode_bytes(datatype, tuple(shape), data, "x")


@pytest.mark.parametrize(
    ("datatype", "data", "says"),
    [
        ("INT8", [300], "beyond INT8"),
        ("UINT8", [-1], "beyond UINT8"),
        ("INT32", [1.5], "not INT32"),
        ("INT32", ["1"], "not INT32"),
        ("FP32", [True], "not FP32"),
        ("BOOL", [1], "not BOOL"),
        ("FP32", [[1], [1, 2]], "differ in length"),
        ("FP32", [1, 2], "takes 1 elements, received 2"),
        ("FP32", 1.0, "as a list"),
        ("FP32", [None], "not FP32"),
        ("BYTES", [1], "takes text"),
        ("BYTES", [["a"], "b"], "mixes lists"),
        ("UINT64", [2**70], "not UINT64"),
    ],
)
def test_wrong_json_says_what_is_wrong(datatype: str, data: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        decode_json(datatype, (1,), data, "x")


def test_one_long_text_among_numbers_does_not_become_the_width_of_all() -> None:
    text = "x" * 20_000
    for data in ([text, *[1] * 4000], [*[[1, 1]] * 2000, [1, text]], [1, [text]], [text, [1]]):
        tracemalloc.start()
        with pytest.raises(InvalidRequest):
            decode_json("FP32", (4001,), data, "x")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20  # as a NumPy array of texts these would be 320 MB


@given(tensors())
def test_nested_lists_are_their_elements_in_order(sent: tuple[str, np.ndarray]) -> None:
    datatype, array = sent
    if datatype in ("BYTES", "BF16") or array.ndim == 0:
        return
    np.testing.assert_array_equal(decode_json(datatype, array.shape, array.tolist(), "x"), array)


def test_any_byte_but_zero_is_true_and_unaligned_bytes_are_moved() -> None:
    truth = decode_bytes("BOOL", (3,), b"\0\1\7", "x")
    assert truth.tolist() == [False, True, True]
    assert truth.view(np.uint8).max() == 1
    array = decode_bytes("FP64", (1,), memoryview(b"x" + np.float64(2.5).tobytes())[1:], "x")
    assert array.flags.aligned
    assert array.tolist() == [2.5]


def test_what_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NaN or infinity"):
        encode_json(np.array([np.nan], np.float32), "y")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        encode_json(np.array([b"\xff"], np.object_), "y")


def test_datatypes_shapes_and_typed_lists_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="unknown datatype 'FP8'"):
        check_datatype("FP8", "x")
    for shape in ([0, 2**61], [2**70], [-1], [1.0], "12", [True], list(range(40)), None):
        with pytest.raises(InvalidRequest, match="shape"):
            check_shape(shape, "x")
    with pytest.raises(InvalidRequest, match="beyond INT8"):
        decode_typed("INT8", (1,), [1000], "x")
    with pytest.raises(InvalidRequest, match="takes 2 elements"):
        decode_typed("INT8", (2,), [1], "x")
