"""Async engines that upstream lets block their loop leave it free, and do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import (
    AT_ONCE,
    ENGINES,
    QUESTION,
    ask,
    every_engine,
    knowing_fakes,
    llm_of,
    meeting,
    parents_of_spans,
    parts_of,
)
from li_programs import (
    Parts,
    run_in_loop,
    shown,
)
from llama_index.core.schema import QueryBundle

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.usefixtures("shared_models")
accelerator = knowing_fakes

# The same ---------------------------------------------------------------------------------------


@every_engine
def test_what_is_shown_is_what_the_plain_engine_shows(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    parts, bare = parts_of(llm=llm_of(make)), parts_of(llm=llm_of(make))
    engine = accelerate(make(parts), accelerator=accelerator)
    plain_engine = make(bare)
    with parents_of_spans() as plain_parents:
        plain = shown(lambda: ask(plain_engine)[0])
    with parents_of_spans() as parents:
        assert shown(lambda: ask(engine)[0]) == plain
    assert parents == plain_parents
    assert [prompt for _, prompt in parts.llm.seen] == [prompt for _, prompt in bare.llm.seen]
    assert soon_idle(accelerator)


def test_a_transform_is_moved_from_asynthesize_too(accelerator: Accelerator) -> None:
    def synthesized(engine: Any) -> Any:
        async def call() -> Any:
            return await engine.asynthesize(bundle, nodes)

        return run_in_loop(call())

    bundle, bare = QueryBundle(QUESTION), parts_of()
    nodes = bare.index().as_retriever().retrieve(QUESTION)
    parts, plain_engine = parts_of(), ENGINES["hyde"](bare)
    plain = shown(lambda: synthesized(plain_engine))
    engine = accelerate(ENGINES["hyde"](parts), accelerator=accelerator)
    assert shown(lambda: synthesized(engine)) == plain
    assert len({thread for thread, _ in parts.llm.seen}) == 2


# The loop is free -------------------------------------------------------------------------------


@every_engine
def test_sixteen_queries_are_under_way_at_once(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    parts = parts_of(meeting(), llm_of(make))
    plain = [str(one) for one in ask(make(parts_of(llm=llm_of(make))), AT_ONCE)]
    found = ask(accelerate(make(parts), accelerator=accelerator), AT_ONCE)
    assert [str(one) for one in found] == plain
