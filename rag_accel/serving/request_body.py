"""Requests as they arrive: bodies within their bound, and clients that leave."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from rag_accel.errors import DeadlineError, ServedRequestError

T = TypeVar("T")

DEADLINE_HEADER = "x-deadline-s"


class ClientGoneError(Exception):
    """The client has left, so that nobody reads an answer."""


class ProgramExitError(Exception):
    """The program raised what would end a task or the process: it ends its request alone."""


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the JSON body of a request.

    Raises:
        ServedRequestError: another content type, or more than ``most_bytes``.
        ClientGoneError: the client left before its end.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ServedRequestError(
            "the body is no JSON by its content type",
            status=415,
            found=repr(kind[:80]),
            valid="application/json",
        )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                raise _too_large(most_bytes)
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


def _too_large(most_bytes: int) -> ServedRequestError:
    return ServedRequestError(
        "the body is too large", status=413, valid=f"at most {most_bytes} bytes"
    )


def deadline_of(request: Request, most_s: float | None) -> float | None:
    """Return the seconds that a request may take: what it asks for, at most ``most_s``.

    Raises:
        ServedRequestError: its header is no number above 0.
    """
    given = request.headers.get(DEADLINE_HEADER)
    if given is None:
        return most_s
    try:
        asked_s = float(given)
    except ValueError:
        asked_s = math.nan
    if not 0 < asked_s < math.inf:
        raise ServedRequestError(
            "bad deadline", where="X-Deadline-S", found=repr(given[:40]), valid="seconds above 0"
        )
    return asked_s if most_s is None else min(asked_s, most_s)


async def in_time(request: Request, deadline_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; cancel it when its client leaves or its time is over.

    The request's body must have been read.

    Raises:
        ClientGoneError: the client left.
        DeadlineError: ``deadline_s`` seconds have passed.
        ProgramExitError: the work ended with SystemExit, CancelledError or the like by itself.
    """
    task = asyncio.ensure_future(_contained(work))
    gone = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, gone}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return _result_of(task)
        if gone.done():
            raise ClientGoneError
        raise DeadlineError(
            "the request ran past its deadline", where="the server", found=f"{deadline_s} s"
        )
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:  # out of a task, it would end the loop
        raise ProgramExitError from error


def _result_of(task: asyncio.Task[T]) -> T:
    try:
        return task.result()
    except Exception:
        raise
    except BaseException as error:
        raise ProgramExitError from error


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
