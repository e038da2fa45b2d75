"""Answers as OpenAI's chat completions and embeddings have them."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.errors import EngineOutputError
from rag_accel.serving.event_stream import event
from rag_accel.serving.served import ServedAnswer, ServedPiece, ServedUsage


def completion(answer: ServedAnswer, model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text}
    made = {
        **_head("chat.completion", model),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return made if answer.usage is None else {**made, "usage": _usage(answer.usage)}


async def completion_events(
    pieces: AsyncIterator[ServedPiece], model: str, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yield an answer in the making."""
    head = _head("chat.completion.chunk", model)
    usage: ServedUsage | None = None
    role: dict[str, str] = {"role": "assistant"}
    closing: Any = pieces
    async with aclosing(closing):
        async for piece in pieces:
            usage = piece.usage or usage
            if piece.text:
                yield event({**head, "choices": [_delta({**role, "content": piece.text})]})
                role = {}
    if role:  # nothing was said
        yield event({**head, "choices": [_delta({**role, "content": ""})]})
    yield event({**head, "choices": [_delta({}, "stop")]})
    if with_usage and usage is not None:
        yield event({**head, "choices": [], "usage": _usage(usage)})


def embeddings(given: Any, count: int, model: str, is_base64: bool) -> dict[str, Any]:
    """Return vectors by their index.

    Args:
        given: ``[count, dim]``, of any type that NumPy reads as float32.
        count: how many texts there were.
        model: the name that was asked for.
        is_base64: little-endian float32 in base64 in the place of lists.

    Raises:
        EngineOutputError: another count, no vectors, or a value that is not finite.
    """
    table: npt.NDArray[np.float32] = np.asarray(given, dtype="<f4")
    if table.ndim != 2 or len(table) != count or not np.isfinite(table).all():
        raise EngineOutputError(
            "the embedder gave no vectors", found=f"shape {table.shape} for {count} texts"
        )
    if is_base64:
        values: list[Any] = [base64.b64encode(row.tobytes()).decode() for row in table]
    else:
        values = table.tolist()
    rows = [
        {"object": "embedding", "index": index, "embedding": value}
        for index, value in enumerate(values)
    ]
    return {"object": "list", "data": rows, "model": model}


def _head(kind: str, model: str) -> dict[str, Any]:
    number = f"chatcmpl-{uuid.uuid4().hex}"
    return {"id": number, "object": kind, "created": int(time.time()), "model": model}


def _delta(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _usage(usage: ServedUsage) -> dict[str, int]:
    total = usage.prompt_tokens + usage.completion_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
