"""A log of the works of local models' engines."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.llm.local.engine import LocalLLMEngine

WAIT_S = 30.0


class WatchedEngines:
    """The works of all local engines, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[PrimitiveKind, str]] = []
        self._has_begun = threading.Event()
        submit, step = LocalLLMEngine.submit, LocalLLMEngine.step

        def submitted(engine: Any, work: Any) -> None:
            for one in work:
                told = "|".join(message.content for message in one.payload.messages)
                self.asked.append((one.kind, told))
            submit(engine, work)

        def stepped(engine: Any, budget: Any) -> Any:
            outputs = step(engine, budget)
            if any(one.handle is not None for one in outputs):
                self._has_begun.set()
            return outputs

        monkeypatch.setattr(LocalLLMEngine, "submit", submitted)
        monkeypatch.setattr(LocalLLMEngine, "step", stepped)

    def early(self) -> list[str]:
        """Return the beginnings that were computed early."""
        return [text for kind, text in self.asked if kind is PrimitiveKind.PARTIAL_PREFILLING]

    def wait(self) -> None:
        """Wait until one was computed."""
        assert self._has_begun.wait(WAIT_S), "no beginning was computed"
