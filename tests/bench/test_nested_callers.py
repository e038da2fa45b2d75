from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.documents import Document

from bench import nested_callers
from bench.nested_callers import Inner, Outer, time_nested
from rag_accel.errors import EngineError


def test_callers_that_get_another_answer_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Changed(Inner):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [Document("something else")]

    monkeypatch.setattr(nested_callers, "accelerate", lambda _, accelerator: Outer(inner=Changed()))
    assert nested_callers.main(["3", "2"]) == 0
    # A warm-up and two turns of three callers.
    assert json.loads(capsys.readouterr().out)["num_different"] == 9


def test_nested_callers_that_do_not_end_are_ended() -> None:
    with pytest.raises(EngineError, match="did not end"):
        time_nested(callers=3, pairs=2, limit_s=0.01)
