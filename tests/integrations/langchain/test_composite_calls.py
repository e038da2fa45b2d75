"""With mode="translate" a composite makes its independent calls side by side, unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.chains import LLMChain
from langchain_classic.retrievers import MergerRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from lc_composites import (
    RETRIEVERS,
    Told,
    compression,
    ensemble,
    extracting,
    merger,
    nested_composites,
)
from lc_fakes import AsyncChat, AsyncRetriever, SyncRetriever
from lc_meeting import Meeting, found, queries
from lc_recording import plain
from lc_translating import Runs, config_with
from pydantic import Field

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.parallel_calls import MAX_AT_ONCE
from rag_accel import Accelerator

QUESTION = "question one"
VAR: ContextVar[str] = ContextVar("var", default="unset")


@pytest.fixture
def translating() -> Iterator[Accelerator]:
    """Give a strict accelerator that translates."""
    with Accelerator(strict=True, mode="translate") as made:
        yield made
        assert made.bypassed == {}


class MeetingChat(AsyncChat):
    """Answer, synchronously, once the calls it is to meet are under way."""

    meeting: Any = Field(exclude=True, repr=False)

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.meeting("")
        return super()._generate(messages, *args, **kwargs)


def _of_two(find: Meeting) -> dict[str, Callable[[], Any]]:
    """Return composites that make two calls."""
    model = MeetingChat(meeting=find)

    def old_chain() -> Any:
        chain = LLMChain(llm=model, prompt=PromptTemplate.from_template("{question} {context}"))
        return compression(LLMChainExtractor(llm_chain=chain), AsyncRetriever())

    return {
        "ensemble": lambda: ensemble(Told(find=find), Told(find=find)),
        "ensemble of runnables": lambda: ensemble(RunnableLambda(find), Told(find=find)),
        "merger": lambda: merger(Told(find=find), Told(find=find)),
        "multi-query": lambda: queries(2, find),
        "extraction": lambda: extracting(model),
        "extraction by an old chain": old_chain,
    }


PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda retriever: retriever,
    "chain": lambda retriever: RunnableLambda(str) | retriever | RunnableLambda(list),
    "side by side": lambda retriever: RunnableParallel(a=retriever, b=len),
    "fallbacks": lambda retriever: retriever.with_fallbacks([SyncRetriever()]),
}

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda program, config: program.invoke(QUESTION, config),
    "stream": lambda program, config: list(program.stream(QUESTION, config)),
    "batch": lambda program, config: program.batch([QUESTION], config),
}


@pytest.mark.filterwarnings("ignore:The class `LLMChain` was deprecated")
@pytest.mark.parametrize(
    ("place", "way"),
    # a parallel streams whatever comes first
    [
        (place, way)
        for place in PLACES
        for way in WAYS
        if (place, way) != ("side by side", "stream")
    ],
)
@pytest.mark.parametrize("name", _of_two(Meeting(1)))
def test_two_calls_overlap_and_all_is_as_in_the_plain_program(
    name: str, place: str, way: str, translating: Accelerator
) -> None:
    bare = PLACES[place](_of_two(Meeting(1))[name]())
    fast = accelerate(PLACES[place](_of_two(Meeting(2))[name]()), accelerator=translating)
    of_bare, of_fast = Runs(), Runs()
    expected = WAYS[way](bare, config_with(of_bare))
    assert plain(WAYS[way](fast, config_with(of_fast))) == plain(expected)
    assert of_fast.forest() == of_bare.forest()


# When they do not ------------------------------------------------------------------------------


def _helpers(accelerator: Accelerator, call: Callable[[], Any]) -> int:
    """Return how many threads a call asks the accelerator for."""
    asked: list[Any] = []
    submit = accelerator.calls.submit

    def asking(fn: Callable[[], Any]) -> Any:
        asked.append(fn)
        return submit(fn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator.calls, "submit", asking)
        call()
    return len(asked)


@pytest.mark.parametrize("mode", ["auto", "translate"])
def test_only_one_mode_asks_for_threads(mode: Any) -> None:
    retriever = queries(4, found)
    with Accelerator(strict=True, mode=mode) as accelerator:
        fast = accelerate(retriever, accelerator=accelerator)
        number = _helpers(accelerator, lambda: fast.invoke(QUESTION))
    assert number == (3 if mode == "translate" else 0)


def test_the_plain_object_beside_it_stays_plain(translating: Accelerator) -> None:
    retriever = queries(4, found)
    fast = accelerate(RunnableLambda(str) | retriever, accelerator=translating)
    assert _helpers(translating, lambda: retriever.invoke(QUESTION)) == 0
    assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)


def test_switched_off_calls_are_one_by_one(
    translating: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def switch_off(given: Any) -> Any:
        monkeypatch.setenv("RAG_ACCEL", "0")
        return given

    fast = accelerate(RunnableLambda(switch_off) | queries(4, found), accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION)) == 0
    assert _helpers(translating, lambda: fast.invoke(QUESTION)) == 0


async def test_a_blocked_loop_keeps_its_thread(translating: Accelerator) -> None:
    retriever = queries(4, found)
    fast = accelerate(retriever, accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION)) == 0
    assert all(call.loop is not None for call in retriever.retriever.journal.calls)


def test_what_is_part_of_a_leaf_stays_within_its_permit(translating: Accelerator) -> None:
    inner = queries(4, found)
    program = accelerate(RunnableLambda(str) | inner, accelerator=translating)
    outer = accelerate(Told(find=lambda query: inner.invoke(query)), accelerator=translating)
    assert _helpers(translating, lambda: program.invoke(QUESTION)) == 3
    assert _helpers(translating, lambda: outer.invoke(QUESTION)) == 0


def test_a_version_that_is_not_known_runs_as_it_is(translating: Accelerator) -> None:
    class OneByOne(MergerRetriever):
        def merge_documents(self, query: str, run_manager: Any) -> list[Document]:
            return [document for one in self.retrievers for document in one.invoke(query)]

    part = Told(find=found)
    retriever = OneByOne(retrievers=[part, part, part])
    fast = accelerate(RunnableLambda(str) | retriever, accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION)) == 0
    assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)


def test_the_callers_bound_counts(translating: Accelerator) -> None:
    fast = accelerate(RunnableLambda(str) | queries(6, Meeting(2)), accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION, {"max_concurrency": 2})) == 1
    fast = accelerate(RunnableLambda(str) | queries(6, found), accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION, {"max_concurrency": 1})) == 0


# How they do -----------------------------------------------------------------------------------


def test_under_activate_they_overlap_too(translating: Accelerator) -> None:
    retriever = queries(2, Meeting(2))
    with activate(accelerator=translating):
        assert retriever.invoke(QUESTION) == queries(2, found).invoke(QUESTION)


def test_never_more_than_the_bound_run_at_once(translating: Accelerator) -> None:
    retriever = queries(2 * MAX_AT_ONCE, Meeting(MAX_AT_ONCE))
    fast = accelerate(retriever, accelerator=translating)
    assert _helpers(translating, lambda: fast.invoke(QUESTION)) == MAX_AT_ONCE - 1
    assert retriever.retriever.journal.peak == MAX_AT_ONCE


def test_the_first_call_is_made_in_the_callers_thread(translating: Accelerator) -> None:
    threads: dict[str, str] = {}
    meeting = Meeting(2)

    def find(query: str) -> list[Document]:
        threads[query] = threading.current_thread().name
        return meeting(query)

    accelerate(queries(2, find), accelerator=translating).invoke(QUESTION)
    assert threads["0"] == threading.current_thread().name
    assert threads["1"].startswith("rag-accel-call-")


@pytest.mark.parametrize("call_threads", [1, 2, 64])
def test_composites_in_composites_end_with_any_number_of_threads(call_threads: int) -> None:
    with Accelerator(strict=True, mode="translate", call_threads=call_threads) as accelerator:
        program = RunnableLambda(str) | nested_composites()
        fast = accelerate(program, accelerator=accelerator)
        inputs = [f"question {number}" for number in range(4)]
        assert fast.batch(inputs) == program.batch(inputs)


def test_without_free_threads_the_caller_does_all() -> None:
    with Accelerator(strict=True, mode="translate", call_threads=1) as accelerator:
        release = threading.Event()
        accelerator.calls.submit(lambda: release.wait(10.0))
        retriever = queries(4, found)
        fast = accelerate(retriever, accelerator=accelerator)
        assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)
        assert retriever.retriever.journal.peak == 1
        release.set()


def test_without_threads_the_caller_does_all_and_it_is_counted() -> None:
    accelerator = Accelerator(mode="translate")
    retriever = queries(3, found)
    fast = accelerate(RunnableLambda(str) | retriever, accelerator=accelerator)
    accelerator.calls.close()
    assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)
    assert sum(accelerator.bypassed.values()) == 1
    accelerator.close()


def test_calls_see_the_callers_context_and_set_what_they_would_set(
    translating: Accelerator,
) -> None:
    def find(query: str) -> list[Document]:
        seen = Document(f"{query} {VAR.get()}")
        if query != "3":
            VAR.set(query)
        return [seen]

    fast = accelerate(queries(4, find), accelerator=translating)
    VAR.set("callers")
    texts = [document.page_content for document in fast.invoke(QUESTION)]
    assert texts[0] == "0 callers"
    assert texts == ["0 callers", "1 callers", "2 callers", "3 callers"]
    assert VAR.get() == "2"


@pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")
@pytest.mark.parametrize("name", RETRIEVERS)
def test_explain_says_what_runs_side_by_side(name: str, translating: Accelerator) -> None:
    program = itemgetter("input") | RETRIEVERS[name]()
    said = accelerate(program, accelerator=translating).explain()
    has_some = any(
        word in name for word in ("multi", "ensemble", "merger", "extra", "steps", "nes")
    )
    assert (f"side by side, at most {MAX_AT_ONCE} at once" in said) == has_some
