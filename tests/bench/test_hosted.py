"""The measurement of a server of embeddings counts its calls and compares every vector."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from langchain_core.runnables import RunnableLambda

from bench.embedding import hosted
from bench.results import Row

TEXTS = [f"text number {number}" for number in range(32)]
TINY = hosted.Sizes(lone_texts=2, repeats=2, call_s=0.02, text_s=0.0)
TOGETHER, ALONE = "embeddings server, 32 threads", "embeddings server, 1 thread"

pytestmark = pytest.mark.processes


def _only(rows: list[Row], system: str, workload: str, metric: str) -> Row:
    key = (system, workload, metric)
    (row,) = [row for row in rows if row.key == key]
    return row


def _moved(vector: list[float]) -> list[float]:
    return [vector[0] + 1, *vector[1:]]


def test_callers_of_a_server_share_its_calls_and_get_plain_vectors() -> None:
    ratios, rows = hosted.hosted(TEXTS, TINY)
    assert set(ratios) == {"hosted_vs_plain", "hosted_alone", "hosted_wide"}
    assert _only(rows, "plain", TOGETHER, "server_calls").median == 32
    assert _only(rows, "accelerated", TOGETHER, "server_calls").median < 32
    for system in ("plain", "accelerated"):
        assert _only(rows, system, ALONE, "server_calls").median == 2
        assert _only(rows, system, TOGETHER, "latency_ms").n == 64
    for workload, count in ((TOGETHER, 64), (ALONE, 4)):
        row = _only(rows, "accelerated", workload, "different_answers")
        assert (row.median, row.n) == (0, count)


def test_an_arm_that_shares_nothing_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "accelerate", lambda chain, accelerator: chain)
    with pytest.raises(hosted.EngineError, match="shared no calls"):
        hosted.hosted(TEXTS, TINY)


def test_a_vector_of_a_server_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(chain: Any, accelerator: Any) -> Any:
        accelerated = accelerate(chain, accelerator=accelerator)
        return accelerated | RunnableLambda(_moved)

    accelerate = hosted.accelerate
    monkeypatch.setattr(hosted, "accelerate", change)
    _, rows = hosted.hosted(TEXTS, TINY)
    assert _only(rows, "accelerated", TOGETHER, "different_answers").median == 64
