"""Frames on a pipe: what is written is read back; what is no frame is refused."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.embedding.frames import MAX_HEADER, read_frame, write_frame


@given(
    st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())),
    st.binary(max_size=200),
)
def test_a_frame_is_read_back_as_it_was_written(header: dict[str, object], body: bytes) -> None:
    pipe = io.BytesIO()
    write_frame(pipe, header, body)
    pipe.seek(0)
    assert read_frame(pipe) == (header, body)


def test_several_frames_follow_each_other() -> None:
    pipe = io.BytesIO()
    for number in range(3):
        write_frame(pipe, {"n": number}, b"x" * number)
    pipe.seek(0)
    assert [read_frame(pipe)[0]["n"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("kept", [0, 3, 11, 13, 20])
def test_a_cut_frame_means_that_the_other_side_is_gone(kept: int) -> None:
    pipe = io.BytesIO()
    write_frame(pipe, {"some": "header"}, b"body")
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(pipe.getvalue()[:kept]))


def test_lengths_no_frame_can_have_are_refused_before_reading() -> None:
    with pytest.raises(ValueError, match="not a frame"):
        read_frame(io.BytesIO(struct.pack("<IQ", MAX_HEADER + 1, 0)))
