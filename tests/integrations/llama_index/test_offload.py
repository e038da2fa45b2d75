"""Async engines that upstream lets block their loop leave it free, and do the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import (
    AT_ONCE,
    ENGINES,
    PATIENCE_S,
    QUESTION,
    WatchedLLM,
    ask,
    every_engine,
    guideline,
    knowing,
    knowing_fakes,
    llm_of,
    meeting,
    parents_of_spans,
    parts_of,
)
from li_programs import (
    HashEmbedding,
    Parts,
    run_in_loop,
    shown,
)
from llama_index.core.schema import QueryBundle

from llama_index_rag_accel import accelerate, activate
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


@every_engine
def test_an_activated_engine_shows_the_same(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    plain_engine, engine = (make(parts_of(llm=llm_of(make))) for _ in range(2))
    plain = shown(lambda: ask(plain_engine)[0])
    with activate(accelerator):
        assert shown(lambda: ask(engine)[0]) == plain


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


def test_the_users_transformer_keeps_the_last_evaluation(accelerator: Accelerator) -> None:
    plain, engine = (guideline(parts_of()) for _ in range(2))
    ask(plain)
    ask(accelerate(engine, accelerator=accelerator))
    assert engine.query_transformer.evaluation == plain.query_transformer.evaluation


@every_engine
def test_the_loop_goes_on_while_a_model_waits(
    make: Callable[[Parts], Any], accelerator: Accelerator
) -> None:
    waiting, ticked, results = threading.Event(), threading.Event(), list[bool]()

    def wait_for_a_tick(prompt: str) -> None:
        if not results:
            waiting.set()
            results.append(ticked.wait(PATIENCE_S))

    async def tick() -> None:
        await asyncio.to_thread(waiting.wait, PATIENCE_S)
        ticked.set()

    async def both() -> None:
        await asyncio.gather(engine.aquery(QUESTION), tick())

    engine = accelerate(make(parts_of(wait_for_a_tick, llm_of(make))), accelerator=accelerator)
    run_in_loop(both())
    assert results == [True]


@pytest.mark.parametrize("name", ["multi-step", "retry"])
def test_more_queries_than_threads_all_end(name: str) -> None:
    plain = [str(one) for one in ask(ENGINES[name](parts_of()), 4)]
    with knowing(WatchedLLM, HashEmbedding, call_threads=1) as accelerator:
        engine = accelerate(ENGINES[name](parts_of()), accelerator=accelerator)
        assert [str(one) for one in ask(engine, 4)] == plain


def test_a_loop_in_debug_mode_has_nothing_to_say(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = PATIENCE_S
        return await asyncio.gather(*(engine.aquery(QUESTION) for _ in range(4)))

    engine = accelerate(ENGINES["multi-step"](parts_of()), accelerator=accelerator)
    assert len({str(one) for one in run_in_loop(ask())}) == 1
    assert [one for one in caplog.records if one.name == "asyncio" and one.levelno > 10] == []
