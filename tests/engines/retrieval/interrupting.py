"""Interrupt a call at any point at which CPython lets an interrupt in.

CPython looks for pending interrupts after calls, at jumps backwards and when a function begins, and
nowhere else. So a tracer counts these points and asks for an exception just before one of them; the
interpreter itself raises it there. What is tried is therefore exactly what can happen.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import starmap
from types import CodeType, FrameType
from typing import Any


class Interrupt(BaseException):
    """Stand for KeyboardInterrupt, a time limit's exception and their like."""


_ask_for = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Tracer:
    def __init__(self, turns: set[int]) -> None:
        self.seen = 0
        self._turns = turns
        thread = ctypes.c_ulong(threading.get_ident())
        self._request = (thread, ctypes.py_object(Interrupt))

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event != "opcode" or frame.f_lasti not in _points(frame.f_code):
            return self.trace
        self.seen += 1
        if self.seen not in self._turns:
            return self.trace
        if self.seen == max(self._turns):
            sys.settrace(None)
        # A loop calls without a look for interrupts, so the exception is not raised in here.
        for _ in starmap(_ask_for, [self._request]):
            break
        return self.trace


@cache
def _points(code: CodeType) -> frozenset[int]:
    """Return the instructions of a function that look for interrupts."""

    def looks(name: str) -> bool:
        return name in ("JUMP_BACKWARD", "RESUME") or name.startswith("CALL")

    return frozenset(one.offset for one in dis.get_instructions(code) if looks(one.opname))


def interrupted(call: Callable[[], object], *turns: int) -> Interrupt | None:
    """Make a call, interrupt it at these of its points, from 1, and return what came of it.

    An interrupt after the first one meets what the call does about the first. Whoever keeps the
    exception keeps all frames of the call alive, as a notebook and many a logger do.
    """
    gc.disable()  # an interrupt that meets a finaliser of something else is nobody's
    try:
        _trace(call, _Tracer(set(turns)))
    except Interrupt as error:
        return error
    finally:
        gc.enable()
    return None


def points(call: Callable[[], object]) -> int:
    """Make a call and return at how many points it can be interrupted."""
    tracer = _Tracer({-1})
    _trace(call, tracer)
    return tracer.seen


def _trace(call: Callable[[], object], tracer: _Tracer) -> None:
    outer = sys.gettrace()
    try:
        sys.settrace(tracer.trace)
        call()
    finally:
        sys.settrace(outer)  # raises what was asked for and not yet raised


def request_interrupt(thread: int) -> None:
    """Have a thread interrupted the next time it looks."""
    _ask_for(ctypes.c_ulong(thread), ctypes.py_object(Interrupt))
