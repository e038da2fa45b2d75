"""Eviction policies of users in programs: a fault changes no answer, and each has one engine."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from chunk_prompts import answer
from path_graphs import ask, local, over_graph, walking
from tree_prompts import FUJI, LANE, RUNNERS, asked, engine_on, masked_answer

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction import LookaheadPolicy, LRUPolicy

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")


class Unknown(LRUPolicy):
    """A policy that names a state which was never kept."""

    def victim(self) -> bytes:
        return b"never kept"


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_victim_that_is_not_kept_changes_no_answer(
    runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_on(runner, chunk_bytes=20_000, eviction=Unknown())
    given = (FUJI, LANE, FUJI[:2] + LANE[1:], LANE + FUJI)
    with caplog.at_level(logging.WARNING, logger="rag_accel.llm"):
        for at in range(8):
            work = asked(str(at), *given[at % 4], question=f"\n\n{at}?")
            assert answer(engine, work).text == masked_answer(work)
    assert engine.counts["chunk_memory_bytes"] <= 20_000
    engine.close()
    assert [record.name for record in caplog.records] == ["rag_accel.llm"]


def test_two_accelerators_with_one_policy_are_refused() -> None:
    llm = local(eviction=LookaheadPolicy())
    with walking(llm) as accelerator:
        with pytest.raises(ConfigError, match="an eviction policy is of one engine alone"):
            walking(llm)
        assert ask(accelerator, over_graph())[0]
    with walking(llm) as again:  # the first one is closed
        assert ask(again, over_graph())[0]


def test_a_folder_is_no_second_store(tmp_path: Any) -> None:
    llm = local(eviction=LookaheadPolicy(), kv_folder=str(tmp_path / "kept"))
    for _ in range(2):
        with walking(llm) as accelerator:
            assert ask(accelerator, over_graph())[1].approximate > 0
