from __future__ import annotations

import pytest

from bench.nested_callers import time_nested
from rag_accel.errors import EngineError


def test_nested_callers_are_timed_in_a_process_of_their_own() -> None:
    found = time_nested(callers=3, pairs=2, limit_s=60)
    assert len(found.plain) == len(found.other) == 2
    assert min(found.plain + found.other) > 0


def test_nested_callers_that_do_not_end_are_ended() -> None:
    with pytest.raises(EngineError, match="did not end"):
        time_nested(callers=3, pairs=2, limit_s=0.01)


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_ACCEL", "0")
    with pytest.raises(EngineError) as caught:
        time_nested(callers=3, pairs=1, limit_s=60)
    assert "switched off" in str(caught.value)
