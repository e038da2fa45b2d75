"""A file gives back the very state that was written, or says by name why it does not."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from chunk_states import chunk_state, same_state
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from rag_accel.errors import ChunkFileError
from rag_accel.kv.files import HEADER_BYTES, ChunkTag, read_chunk, read_header, write_chunk

SECRET = b"s" * 32
TAG = ChunkTag("name", "model", "tenant", "digest", 3, 1000.5)


def written(state: Any = None, tag: ChunkTag = TAG) -> bytes:
    file = io.BytesIO()
    write_chunk(file, state or chunk_state(), tag, SECRET)
    return file.getvalue()


def read(data: bytes, **wanted: Any) -> Any:
    expected = {"name": "name", "model": "model", "dtype": torch.float32, "secret": SECRET}
    return read_chunk(io.BytesIO(data), len(data), **{**expected, **wanted})


def reason(data: bytes, **wanted: Any) -> str:
    with pytest.raises(ChunkFileError) as caught:
        read(data, **wanted)
    return caught.value.reason


def with_header(data: bytes, **changes: Any) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"].update(changes.pop("metadata", {}))
    header.update(changes)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data[8 + length :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_comes_back_as_it_was(dtype: torch.dtype) -> None:
    state = chunk_state(dtype=dtype)
    found, tag = read(written(state), dtype=dtype)
    assert same_state(found, state)
    assert tag == TAG


def test_the_file_is_one_of_safetensors() -> None:
    assert torch.equal(load(written())["values"], chunk_state().values)


def test_state_of_a_view_is_written_as_it_is_seen() -> None:
    state = chunk_state(tokens=6)
    part = replace(state, keys=state.keys[:, :, 1:4], values=state.values[:, :, 1:4])
    assert same_state(read(written(part))[0], part)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"name": "other"}, "foreign"),
        ({"model": "other"}, "foreign"),
        ({"dtype": torch.bfloat16}, "dtype"),
        ({"secret": b"t" * 32}, "damaged"),
    ],
)
def test_what_was_not_written_for_this_is_refused(wanted: dict[str, Any], why: str) -> None:
    assert reason(written(), **wanted) == why


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"version": "3"}, "newer"),
        ({"version": "1"}, "older"),
        ({"format": "pt"}, "foreign"),
        ({"text": "x"}, "damaged"),
    ],
)
def test_another_format_is_named(metadata: dict[str, str], why: str) -> None:
    assert reason(with_header(written(), metadata=metadata)) == why


@given(st.data())
def test_a_shorter_file_is_truncated(data: st.DataObject) -> None:
    whole = written()
    kept = data.draw(st.integers(0, len(whole) - 1))
    assert reason(whole[:kept]) == "truncated"


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    changed = bytearray(written())
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        found, tag = read(bytes(changed))
    except ChunkFileError:
        return
    assert same_state(found, chunk_state())  # as where white space of the header has changed
    assert tag == TAG


@given(st.binary(max_size=200))
def test_no_bytes_of_any_kind_are_taken_for_state(data: bytes) -> None:
    with pytest.raises(ChunkFileError):
        read(data)


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [2, 2, 1 << 30, 8], "data_offsets": [0, 1 << 37]},
        {"dtype": "F32", "shape": [2, 2, -4, 8], "data_offsets": [0, 512]},
        {"dtype": "F32", "shape": [2, 2, 4.0, 8], "data_offsets": [0, 512]},
        {"dtype": "I8", "shape": [2, 2, 4, 8], "data_offsets": [0, 512]},
        {"dtype": "F32", "shape": [128], "data_offsets": [0, 512]},
        {"dtype": "F32", "shape": [2, 2, 4, 8], "data_offsets": [512, 1024]},
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused_unread(tensor: dict[str, Any]) -> None:
    changed = with_header(written(), keys=tensor, values=tensor)
    with pytest.raises(ChunkFileError):
        read_header(io.BytesIO(changed), len(changed))


def test_no_header_of_any_length_is_read() -> None:
    data = struct.pack("<Q", HEADER_BYTES + 1) + b" " * (HEADER_BYTES + 1)
    assert reason(data) == "damaged"


def test_what_stands_behind_the_tensors_is_refused() -> None:
    assert reason(written() + b"x") == "damaged"
