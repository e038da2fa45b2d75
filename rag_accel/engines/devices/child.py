"""The program of a member in a process of its own: it embeds what comes over a pipe.

It ends when the pipe is closed, which happens with the process it serves, or when it has another
parent: a process that was forked off the parent may hold the pipe too.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from rag_accel.errors import EngineError

_LOOK_S = 1.0
_ENDED_WITH_PARENT = 3


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The first message to the program.

    Args:
        parent: id of the process it serves.
        cpus: the cores it may run on, None for all.
        model: a pickled function that returns a model or an engine; or a model's name or path, or
            None for the packaged one.
        options: further arguments of ``SentenceTransformerEngine``.
    """

    parent: int
    cpus: frozenset[int] | None
    model: bytes | str | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """An answer of the program: it is ready, or the outcome of a request.

    Args:
        value: ``[texts, dim], float32``, or the most tokens of a call.
        error: a pickled exception.
        text: the exception in words, for a parent that does not know its class.
    """

    value: Any = None
    error: bytes | None = None
    text: str = ""


def main() -> None:
    """Serve the process that has started this one until it closes the pipe."""
    requests = sys.stdin.buffer
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings: ChildSettings = pickle.load(requests)
    _end_with(settings.parent)
    if settings.cpus is not None:
        os.sched_setaffinity(0, settings.cpus)
    member = _tried(lambda: _member(settings), answers)
    if member is None:
        return
    _send(ChildAnswer(member.max_tokens), answers)
    while (request := _next(requests)) is not None:
        texts, role, threads = request
        value = _tried(lambda: member.embed(texts, role, threads), answers)  # noqa: B023
        if value is not None:
            _send(ChildAnswer(value), answers)
        # The next request may be long in coming: no text may stay alive until then.
        del request, texts, value


def portable(error: Exception) -> ChildAnswer:
    """Return an error for the pipe, pickled where its class allows it."""
    text = f"{type(error).__name__}: {error}"
    try:
        sent = pickle.dumps(error)
        if type(pickle.loads(sent)) is type(error):
            return ChildAnswer(error=sent, text=text)
    except Exception as fault:  # any class may be unable to be sent or to be made again
        text += f" ({type(fault).__name__} when it was sent)"
    return ChildAnswer(error=b"", text=text)


def _member(settings: ChildSettings) -> Any:
    from rag_accel.engines.devices.members import EngineMember
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    model: Any = settings.model
    if isinstance(model, bytes):
        model = pickle.loads(model)()
    if hasattr(model, "profile"):
        return EngineMember(model, max_texts=sys.maxsize)
    engine = SentenceTransformerEngine(model, **settings.options)
    return EngineMember(engine, max_texts=sys.maxsize)


def _tried(work: Callable[[], Any], answers: BinaryIO) -> Any:
    """Return the result of a call; None if it raised, which is sent as the answer."""
    try:
        value = work()
    except Exception as error:
        _send(portable(error), answers)
        return None
    if value is None:
        _send(portable(EngineError("a call returned nothing")), answers)
    return value


def _send(answer: ChildAnswer, answers: BinaryIO) -> None:
    pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
    answers.flush()


def _next(requests: BinaryIO) -> Any:
    try:
        return pickle.load(requests)
    except EOFError:
        return None


def _end_with(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(_ENDED_WITH_PARENT)

    threading.Thread(target=watch, daemon=True).start()
