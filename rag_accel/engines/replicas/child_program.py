"""The program of a child process: calls of an object's methods come over a pipe.

It ends when the pipe is closed, which happens with the process it serves, or when it has another
parent: a process that was forked off the parent may hold the pipe too.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

from rag_accel.system.parents import end_with

#: Methods that run at a time: one waits for outputs, the others return soon.
_METHODS = 16
_ENDED_WITH_PARENT = 3


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The first message to the program.

    Args:
        parent: id of the process it serves.
        cpus: the cores it may run on, None for all.
        make: a pickled function that returns the object.
    """

    parent: int
    cpus: frozenset[int] | None
    make: bytes


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A call of a method.

    Args:
        number: by which its answer is known.
        method: its name.
        arguments: a pickled tuple.
    """

    number: int
    method: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The outcome of a call.

    Args:
        number: of the request.
        value: what the method returned, pickled; None if it raised.
        error: the exception, pickled; None for one that cannot be sent.
        text: the exception in words.
    """

    number: int
    value: bytes | None = None
    error: bytes | None = None
    text: str = ""


def main() -> None:
    """Serve the process that has started this one until it closes the pipe."""
    requests = sys.stdin.buffer
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings: ChildSettings = pickle.load(requests)
    end_with(settings.parent, lambda: os._exit(_ENDED_WITH_PARENT))
    if settings.cpus is not None:
        os.sched_setaffinity(0, settings.cpus)
    made = pickle.loads(settings.make)()
    lock = threading.Lock()
    with ThreadPoolExecutor(_METHODS, "rag-accel-calls") as calls:
        while (request := _next(requests)) is not None:
            calls.submit(_answer, made, request, answers, lock)
            # The next request may be long in coming: no text may stay alive until then.
            del request


def _answer(made: Any, request: ChildRequest, answers: BinaryIO, lock: threading.Lock) -> None:
    answer = _outcome(
        request.number,
        lambda: getattr(made, request.method)(*pickle.loads(request.arguments)),
    )
    with lock:
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _outcome(number: int, call: Callable[[], Any]) -> ChildAnswer:
    try:
        return ChildAnswer(number, pickle.dumps(call(), protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as raised:
        text = f"{type(raised).__name__}: {raised}"
        try:
            error = pickle.dumps(raised)
            if type(pickle.loads(error)) is type(raised):
                return ChildAnswer(number, error=error, text=text)
        except Exception as fault:  # any class may be unable to be sent or to be made again
            text += f" ({type(fault).__name__} when it was sent)"
        return ChildAnswer(number, text=text)


def _next(requests: BinaryIO) -> ChildRequest | None:
    try:
        return pickle.load(requests)
    except EOFError:
        return None
