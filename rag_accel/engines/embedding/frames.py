"""Pass embedding work over a pipe: length-prefixed frames of JSON and raw float32, no pickle.

frame = 4 bytes length of header | 8 bytes length of body | header: JSON | body: float32 bytes
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

_LENGTHS = struct.Struct("<IQ")
MAX_HEADER = 256 * 1024 * 1024
MAX_BODY = 8 * 1024 * 1024 * 1024


def write_frame(pipe: BinaryIO, header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    """Write one frame and flush it."""
    encoded = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    pipe.write(_LENGTHS.pack(len(encoded), len(body)) + encoded)
    if len(body):
        pipe.write(body)
    pipe.flush()


def read_frame(pipe: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Raises:
        EOFError: if the other side is gone, also in the middle of a frame.
        ValueError: if what came is no frame.
    """
    header_length, body_length = _LENGTHS.unpack(_exactly(pipe, _LENGTHS.size))
    if header_length > MAX_HEADER or body_length > MAX_BODY:
        raise ValueError(f"not a frame: {header_length} and {body_length} bytes announced")
    header = json.loads(_exactly(pipe, header_length))
    return header, _exactly(pipe, body_length)


def _exactly(pipe: BinaryIO, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        part = pipe.read(count)  # an unbuffered pipe gives what is there
        if not part:
            raise EOFError("the other side of the pipe is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
