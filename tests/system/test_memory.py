"""Memory that nothing uses is freed, whatever the C library is."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import pytest

from rag_accel.system.memory import return_freed_memory


class Held:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_only_cycles_hold_is_freed() -> None:
    watch = weakref.ref(Held())
    return_freed_memory()
    assert watch() is None


@pytest.mark.parametrize("error", [OSError, AttributeError, TypeError])
def test_where_the_library_has_no_such_call_nothing_is_wrong(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def refuse(name: Any) -> Any:
        asked.append(name)
        raise error("no such call")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    return_freed_memory()
    assert asked == [None]
