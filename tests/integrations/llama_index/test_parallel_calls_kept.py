"""What LlamaIndex does in order stays so wherever side by side could differ from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import knowing
from li_programs import run_in_loop
from li_side_by_side import (
    NUM_CALLS,
    OWN,
    PATIENCE_S,
    PROGRAMS,
    QUESTION,
    SeenEmbedding,
    SeenLLM,
    Told,
    bundle,
    calls_seen,
    parts_of,
    plainly,
    strings,
    sub_questions,
)
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

every_program = pytest.mark.parametrize("name", PROGRAMS)
#: programs whose calls' errors reach their caller: a sub-question's is logged
raising = pytest.mark.parametrize("name", ["fusion", "accumulate", "strings"])


pytestmark = pytest.mark.usefixtures("shared_models")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with knowing(*OWN, Told) as made:
        yield made


def _texts(parts: Any) -> list[str]:
    return [text for _, text in calls_seen(parts)]


def _stays_plain(make: Callable[[Any], Any], ask: Callable[[Any], Any], made: Accelerator) -> None:
    """Check that a program makes its calls in order, in the caller's thread."""
    bare, parts = parts_of(), parts_of()
    plain = plainly(ask(make(bare)))
    assert plainly(ask(accelerate(make(parts), accelerator=made))) == plain
    assert _texts(parts) == _texts(bare)
    assert {thread for thread, _ in calls_seen(parts)} == {threading.get_ident()}


# Whose order is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unnamed"),
    [
        ("sub-questions", SeenLLM),
        ("sub-questions", SeenEmbedding),
        ("fusion", SeenEmbedding),
        ("accumulate", SeenLLM),
        ("strings", SeenEmbedding),
    ],
)
def test_a_users_class_keeps_its_thread_and_its_order(name: str, unnamed: type) -> None:
    with knowing(*(one for one in OWN if one is not unnamed)) as accelerator:
        _stays_plain(*PROGRAMS[name], accelerator)


@every_program
def test_an_option_keeps_the_order(name: str) -> None:
    with knowing(*OWN, parallel_calls=False) as accelerator:
        _stays_plain(*PROGRAMS[name], accelerator)


def test_a_class_that_makes_its_calls_itself_keeps_the_order() -> None:
    class Own(SubQuestionQueryEngine):
        def _query_subq(self, *args: Any, **kwargs: Any) -> Any:
            return super()._query_subq(*args, **kwargs)

    def make(parts: Any) -> Any:
        engine = sub_questions(parts)
        engine.__class__ = Own
        return engine

    with knowing(*OWN, Own) as knowing_own:
        _stays_plain(make, PROGRAMS["sub-questions"][1], knowing_own)


def test_an_object_with_a_method_of_its_own_keeps_the_order(accelerator: Accelerator) -> None:
    def make(parts: Any) -> Any:
        engine = sub_questions(parts)
        inherited = engine._query_subq
        engine._query_subq = lambda *args, **kwargs: inherited(*args, **kwargs)
        return engine

    _stays_plain(make, PROGRAMS["sub-questions"][1], accelerator)


def test_a_cache_keeps_the_order_of_strings(accelerator: Accelerator) -> None:
    def make(parts: Any) -> Any:
        retriever = strings(parts)
        parts.embedding.embeddings_cache = SimpleKVStore()
        return retriever

    _stays_plain(make, PROGRAMS["strings"][1], accelerator)


def test_retrievers_that_need_no_embedding_keep_the_order(accelerator: Accelerator) -> None:
    told = [Told(lambda text: None, place) for place in range(3)]
    retriever = QueryFusionRetriever([*told], llm=parts_of().llm, num_queries=1, use_async=False)
    accelerate(retriever, accelerator=accelerator).retrieve(QUESTION)
    assert [one.threads for one in told] == [[threading.get_ident()]] * 3


@every_program
def test_a_call_that_blocks_a_running_loop_keeps_the_order(
    name: str, accelerator: Accelerator
) -> None:
    make, ask = PROGRAMS[name]
    parts = parts_of()
    program = accelerate(make(parts), accelerator=accelerator)

    async def on_loop() -> int:
        ask(program)
        return threading.get_ident()

    thread = run_in_loop(on_loop())
    assert {one for one, _ in calls_seen(parts)} == {thread}


# Errors ------------------------------------------------------------------------------------------


def _failing(name: str, during: Callable[[str], None]) -> Any:
    return parts_of(llm=during) if name == "accumulate" else parts_of(embedding=during)


class Failing:
    """Something done during each call: the second fails while the first is under way.

    The first goes on only when the one thread of the pool has stopped to take calls.
    """

    def __init__(self, accelerator: Accelerator, *, first_fails: bool) -> None:
        self._accelerator, self._first_fails = accelerator, first_fails
        self._lock = threading.Lock()
        self._caller = threading.get_ident()
        self.texts: list[str] = []
        self.ended: list[str] = []

    def __call__(self, text: str) -> None:
        with self._lock:
            self.texts.append(text)
        if threading.get_ident() != self._caller:
            raise ValueError("a later call")
        self._accelerator.calls.submit(lambda: None).result(PATIENCE_S)
        self.ended.append(text)
        if self._first_fails:
            raise ValueError("the first call")


@pytest.mark.parametrize("first_fails", [False, True])
@raising
def test_after_an_error_none_begins_and_the_first_in_order_leaves(
    name: str, first_fails: bool
) -> None:
    make, ask = PROGRAMS[name]
    with knowing(*OWN, call_threads=1) as accelerator:
        failing = Failing(accelerator, first_fails=first_fails)
        program = accelerate(make(_failing(name, failing)), accelerator=accelerator)
        expected = "the first call" if first_fails else "a later call"
        with pytest.raises(ValueError, match=expected):
            ask(program)
        assert len(failing.texts) == 2
        assert len(failing.ended) == 1  # it was over before the error left


def test_a_sub_question_that_fails_is_left_out_as_upstream(
    accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> None:
        if text.endswith("of tool 1"):
            raise ValueError("the second")

    def asked(as_it_runs: Callable[[Any], Any]) -> tuple[Any, list[str]]:
        engine = as_it_runs(sub_questions(parts_of(embedding=fail)))
        found = plainly(engine.query(QUESTION))
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()  # its records hold the errors, and so the program
        return found, said

    plain, said = asked(lambda engine: engine)
    assert asked(lambda engine: accelerate(engine, accelerator=accelerator)) == (plain, said)
    assert len(said) == 1


def test_after_an_error_on_a_loop_those_under_way_end_first(accelerator: Accelerator) -> None:
    ended: list[str] = []

    async def during(text: str) -> None:
        if text.endswith("1"):
            raise ValueError("the second")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append(text)

    async def ask() -> None:
        with pytest.raises(ValueError, match="the second"):
            await program.aretrieve(bundle())
        # The error was met when the tasks of all five had begun, or before.
        assert len(ended) == len(parts.embedding.seen) - 1

    parts = parts_of(aduring=during)
    program = accelerate(strings(parts), accelerator=accelerator)
    run_in_loop(ask())
    assert 2 <= len(parts.embedding.seen) <= NUM_CALLS


def test_a_cancelled_caller_cancels_its_calls(accelerator: Accelerator) -> None:
    cancelled: list[str] = []
    all_began = asyncio.Event()

    async def during(text: str) -> None:
        if len(parts.embedding.seen) == NUM_CALLS:
            all_began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(text)
            raise

    async def ask() -> None:
        task = asyncio.ensure_future(program.aretrieve(bundle()))
        await all_began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(cancelled) == NUM_CALLS

    parts = parts_of(aduring=during)
    program = accelerate(strings(parts), accelerator=accelerator)
    run_in_loop(ask())
    assert soon_idle(accelerator)
