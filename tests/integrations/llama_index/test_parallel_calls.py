"""Calls of LlamaIndex's that do not need each other run side by side, and show the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_off_loop import knowing, parents_of_spans
from li_programs import recording, run_in_loop
from li_side_by_side import (
    NUM_CALLS,
    OWN,
    PROGRAMS,
    QUESTION,
    Told,
    ameeting,
    bundle,
    calls_seen,
    events_by_span,
    fusion,
    meeting,
    parts_of,
    plainly,
    strings,
    sub_questions,
)
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, CBEventType
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever

from llama_index_rag_accel import accelerate, activate
from llama_index_rag_accel.concurrency.composites import composite_of
from rag_accel import Accelerator
from rag_accel.system.classes import full_name

VAR: ContextVar[str] = ContextVar("var", default="unset")
every_program = pytest.mark.parametrize("name", PROGRAMS)


class Handler(BaseCallbackHandler):
    """A handler that counts events by their kind and that of the event around them."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.lock = threading.Lock()
        self.kinds: dict[str, CBEventType] = {}
        self.seen: Counter[tuple[Any, Any]] = Counter()

    def on_event_start(
        self,
        event_type: Any,
        payload: Any = None,
        event_id: str = "",
        parent_id: str = "",
        **_: Any,
    ) -> str:
        with self.lock:
            self.kinds[event_id] = event_type
            self.seen[event_type, self.kinds.get(parent_id)] += 1
        return event_id

    def on_event_end(
        self, event_type: Any, payload: Any = None, event_id: str = "", **_: Any
    ) -> None:
        with self.lock:
            self.seen[event_type, "end"] += 1

    def start_trace(self, trace_id: str | None = None) -> None:
        """Do nothing."""

    def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None:
        """Do nothing."""


pytestmark = pytest.mark.usefixtures("shared_models")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator to which the fakes are thread-safe."""
    with knowing(*OWN, Handler) as made:
        yield made


def _meeting(name: str, size: int = NUM_CALLS) -> Any:
    """Return parts whose calls meet: those of the model, or of the embedding."""
    return parts_of(meeting(size)) if _of_model(name) else parts_of(embedding=meeting(size))


def _of_model(name: str) -> bool:
    return name in ("sub-questions", "accumulate")


def _plain(name: str) -> Any:
    make, ask = PROGRAMS[name]
    return plainly(ask(make(parts_of())))


# They overlap ------------------------------------------------------------------------------------


@every_program
def test_calls_overlap_and_give_the_same(name: str, accelerator: Accelerator) -> None:
    make, ask = PROGRAMS[name]
    parts = _meeting(name)
    program = accelerate(make(parts), accelerator=accelerator)
    assert plainly(ask(program)) == _plain(name)
    assert len({thread for thread, _ in calls_seen(parts)}) == NUM_CALLS
    assert soon_idle(accelerator)


def test_strings_overlap_on_a_loop(accelerator: Accelerator) -> None:
    async def ask(retriever: Any) -> Any:
        return await retriever.aretrieve(bundle())

    plain = run_in_loop(ask(strings(parts_of())))
    parts = parts_of(aduring=ameeting())
    program = accelerate(strings(parts), accelerator=accelerator)
    assert plainly(run_in_loop(ask(program))) == plainly(plain)
    assert len({thread for thread, _ in parts.embedding.seen}) == 1


def test_retrievers_of_one_query_overlap_once_it_has_its_embedding() -> None:
    def found(parts: Any, meet: Any) -> Any:
        retrievers = [strings(parts), *(Told(meet, place) for place in range(2))]
        retriever = QueryFusionRetriever(
            retrievers, llm=parts.llm, num_queries=1, use_async=False, similarity_top_k=9
        )
        return plainly(retriever.retrieve(QUESTION))

    plain = found(parts_of(), lambda text: None)
    with knowing(*OWN, Told) as accelerator, activate(accelerator):
        assert found(parts_of(), meeting(2)) == plain


def test_retrievers_of_one_query_share_the_embedding_that_the_first_needs(
    accelerator: Accelerator,
) -> None:
    parts, bare = parts_of(), parts_of()
    accelerate(fusion(parts), accelerator=accelerator).retrieve(QUESTION)
    fusion(bare).retrieve(QUESTION)
    assert len(parts.embedding.seen) == len(bare.embedding.seen) == NUM_CALLS


def test_chunks_of_messages_overlap(accelerator: Accelerator) -> None:
    def ask(parts: Any) -> Any:
        made = get_response_synthesizer(llm=parts.llm, response_mode=ResponseMode.ACCUMULATE)
        made._multimodal = True
        messages = [ChatMessage(content=f"text {place}") for place in range(NUM_CALLS)]
        return made.get_response_from_messages(QUESTION, messages)

    plain = ask(parts_of())
    with activate(accelerator):
        assert ask(parts_of(meeting())) == plain


# They show the same ------------------------------------------------------------------------------


@every_program
def test_events_and_spans_are_those_of_the_plain_program(
    name: str, accelerator: Accelerator
) -> None:
    make, ask = PROGRAMS[name]

    def shown(program: Any) -> Any:
        with recording() as counts, parents_of_spans() as parents, events_by_span() as events:
            result = plainly(ask(program))
        return result, counts, parents, events

    plain = shown(make(parts_of()))
    program = accelerate(make(_meeting(name)), accelerator=accelerator)
    assert shown(program) == plain


@every_program
def test_callbacks_come_with_the_same_parents(
    name: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, ask = PROGRAMS[name]

    def shown(parts: Any, as_it_runs: Any) -> Counter[Any]:
        handler = Handler()
        monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([handler]))
        for leaf in (parts.llm, parts.embedding):
            leaf.callback_manager = Settings.callback_manager
        program = as_it_runs(make(parts))
        ask(program)  # of the first answer of a process, LlamaIndex loses parents by itself
        handler.seen.clear()
        ask(program)
        return Counter(handler.seen)

    plain = shown(parts_of(), lambda program: program)
    fast = shown(_meeting(name), lambda program: accelerate(program, accelerator=accelerator))
    assert fast == plain
    assert sum(plain.values()) >= 2 * NUM_CALLS


@every_program
def test_the_context_is_left_as_by_the_plain_program(name: str, accelerator: Accelerator) -> None:
    make, ask = PROGRAMS[name]

    def left_by(as_it_runs: Any, meet: Any) -> str:
        def during(text: str) -> None:
            VAR.set(text)
            meet(text)

        parts = parts_of(llm=during) if _of_model(name) else parts_of(embedding=during)
        program = as_it_runs(make(parts))
        VAR.set("before")
        ask(program)
        return VAR.get()

    plain = left_by(lambda program: program, lambda text: None)
    fast = left_by(lambda program: accelerate(program, accelerator=accelerator), meeting())
    assert fast == plain != "before"


def test_programs_in_programs_end_with_one_thread() -> None:
    def nested(parts: Any) -> Any:
        return sub_questions(parts, sub_questions(parts, number=3), number=3)

    plain = plainly(nested(parts_of()).query(QUESTION))
    with knowing(*OWN, call_threads=1) as accelerator:
        program = accelerate(nested(parts_of()), accelerator=accelerator)
        assert plainly(program.query(QUESTION)) == plain


def test_upstream_is_what_is_known(accelerator: Accelerator) -> None:
    parts = parts_of()
    methods = [
        sub_questions(parts)._query,
        fusion(parts)._run_sync_queries,
        parts.embedding.get_agg_embedding_from_queries,
        parts.embedding.aget_agg_embedding_from_queries,
    ]
    for method in methods:
        plain = getattr(type(method.__self__), method.__name__)
        assert composite_of(plain) is not None, full_name(type(method.__self__))
