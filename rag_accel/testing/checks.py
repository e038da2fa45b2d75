"""Checks of an engine's outputs; a broken contract raises AssertionError.

Explicit raises instead of ``assert``: a contract must not fall silent under ``python -O``.
"""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import numpy as np

from rag_accel.engine_api import EngineOutput, EngineRequest


def check(condition: bool, message: str) -> None:
    """Raise AssertionError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(message)


def skip(reason: str) -> NoReturn:
    """End a test as skipped; pytest and unittest both know this exception."""
    raise unittest.SkipTest(reason)


def is_end(output: EngineOutput) -> bool:
    return output.kind in ("final", "error")


def check_final(outputs: Sequence[EngineOutput], work: Sequence[EngineRequest]) -> None:
    """Raise unless each piece of work ended exactly once, and with ``final``."""
    for request in work:
        ends = [output for output in outputs if output.id == request.id and is_end(output)]
        found = [f"{end.kind} {end.error!r}" if end.error else end.kind for end in ends]
        check(found == ["final"], f"{request.id} ended with {found}, expected one final")


def check_silent(request: EngineRequest, outputs: Sequence[EngineOutput]) -> None:
    """Raise if there is any output for this work."""
    found = [output.kind for output in outputs if output.id == request.id]
    check(not found, f"{request.id} was cancelled and still reported {found}")


def final_value(outputs: Sequence[EngineOutput], request: EngineRequest) -> Any:
    """Return the value this work ended with; raise unless it ended once, with ``final``."""
    check_final(outputs, [request])
    return next(o.value for o in outputs if o.id == request.id and o.kind == "final")


def pieces(outputs: Sequence[EngineOutput]) -> list[Any]:
    """Return the values of the ``partial`` outputs."""
    return [output.value for output in outputs if output.kind == "partial"]


def threads_left(before: Collection[threading.Thread], timeout_s: float) -> list[str]:
    """Return the names of threads that are not among ``before`` and do not end in time."""
    deadline = time.monotonic() + timeout_s
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(thread.name for thread in new if thread.is_alive())


def results_equal(left: Any, right: Any, tolerance: float) -> bool:
    """Compare two results deeply; numbers may differ by ``tolerance``, NaN equals NaN."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return _arrays_equal(np.asarray(left), np.asarray(right), tolerance)
    if isinstance(left, float) and isinstance(right, float):
        return bool(np.isclose(left, right, rtol=0.0, atol=tolerance, equal_nan=True))
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        left, right = _fields(left), _fields(right)
    if isinstance(left, Mapping):
        same = left.keys() == right.keys()
        return same and all(results_equal(left[key], right[key], tolerance) for key in left)
    if isinstance(left, (list, tuple)):
        same = len(left) == len(right)
        return same and all(map(results_equal, left, right, [tolerance] * len(left)))
    return bool(left == right)


def _arrays_equal(left: np.ndarray, right: np.ndarray, tolerance: float) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not np.issubdtype(left.dtype, np.number):
        return bool(np.array_equal(left, right))
    return bool(np.allclose(left, right, rtol=0.0, atol=tolerance, equal_nan=True))


def _fields(value: Any) -> dict[str, Any]:
    return {spec.name: getattr(value, spec.name) for spec in fields(value)}
