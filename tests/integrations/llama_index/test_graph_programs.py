"""Programs over a property graph give what they give plainly: nodes, scores, order, duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_graph_programs import (
    AskedGraph,
    GraphParts,
    aretrieve,
    filled,
    programs,
    retrieve,
    retriever,
)
from li_programs import run_in_loop
from llama_index.core.graph_stores import SimplePropertyGraphStore

from llama_index_rag_accel import accelerate
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator

AT_ONCE = 16
#: an index of triplets is made of a graph that was met twice
TIMES = 4

STORES: dict[str, Callable[[], Any]] = {
    "simple": SimplePropertyGraphStore,
    "asked": AskedGraph,
}
CASES = [(store, name) for store, cls in STORES.items() for name in programs(cls is AskedGraph)]

pytestmark = pytest.mark.usefixtures("default_model")


def _made(store: str) -> GraphParts:
    return GraphParts(filled(STORES[store]()))


@pytest.mark.cross_product(keep=11)
@pytest.mark.parametrize(("store", "name"), CASES)
def test_an_accelerated_program_does_as_the_plain_one(
    store: str, name: str, accelerator: Accelerator
) -> None:
    parts = _made(store)
    program = programs(store == "asked")[name]
    bare = program.make(parts)
    plain = program.evidence(bare)
    assert plain.given
    fast = accelerate(program.make(parts), accelerator=accelerator)
    for _ in range(TIMES):
        with coverage() as meter:
            assert program.evidence(fast) == plain
        assert meter.rows()
        assert meter.passed_by == 0, str(meter)
    assert soon_idle(accelerator)


def _all(parts: GraphParts) -> Any:
    return retriever(parts, "synonyms", "context", "custom", text=True)


QUESTIONS = [f"What does E{at} lead to?" for at in range(AT_ONCE)]


def test_programs_on_one_loop_find_what_each_finds_alone(accelerator: Accelerator) -> None:
    program = _all(_made("simple"))
    plain = [retrieve(program, question) for question in QUESTIONS]
    fast = accelerate(program, accelerator=accelerator)

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(aretrieve(fast, question) for question in QUESTIONS))

    for _ in range(TIMES):
        assert run_in_loop(all_at_once()) == plain
