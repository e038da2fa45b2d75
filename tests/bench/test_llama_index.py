"""The suite on LlamaIndex runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")

from bench.answers import too_many
from bench.llama_index_programs import UNBATCHED
from bench.suites import llama_index

pytestmark = [pytest.mark.bench, pytest.mark.usefixtures("loop_of_the_thread")]


def _compact() -> Any:
    return UNBATCHED["compact"](0.0)


def test_an_answer_that_differs_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = llama_index._shown
    told: list[Any] = []

    def numbered(response: Any) -> Any:
        told.append(response)
        return shown(response), len(told)

    monkeypatch.setattr(llama_index, "_shown", numbered)
    pairs = asyncio.run(llama_index._rounds(_compact(), _compact(), 1, 0))
    rows = llama_index._pair_rows("compact", pairs)
    (wrong,) = too_many(rows, "different_answers")
    assert wrong.startswith("accelerated")
