"""A composite makes its independent calls side by side, unnoticed, where it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.chains import LLMChain
from langchain_classic.retrievers import (
    MergerRetriever,
    MultiQueryRetriever,
    ParentDocumentRetriever,
)
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
    words,
)
from lc_fakes import (
    AsyncChat,
    AsyncRetriever,
    FakeEmbeddings,
    SyncChat,
    SyncRetriever,
    documents,
)
from lc_recording import plain
from lc_runs import Runs, config_with
from lc_waiting import wait_until
from pydantic import Field

from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator
from rag_accel.errors import DeadlineError
from rag_accel.interception.parallel_calls import MAX_AT_ONCE
from rag_accel.system.classes import full_name

QUESTION = "question one"
VAR: ContextVar[str] = ContextVar("var", default="unset")
Find = Callable[[str], list[Document]]


def found(query: str) -> list[Document]:
    """Return what any of these calls finds."""
    return documents(query, "d")


class Meeting:
    """Be a call that returns only if others are under way at the same time."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def __call__(self, query: str) -> list[Document]:
        self._barrier.wait(10.0)
        return found(query)


def queries(number: int, find: Find) -> MultiQueryRetriever:
    """Return a retriever that searches for ``0``, ``1`` and so on."""
    chain = RunnableLambda(lambda _: [str(place) for place in range(number)])
    return MultiQueryRetriever(retriever=Told(find=find), llm_chain=chain)


#: For an accelerator to which what these tests make is thread-safe.
THREAD_SAFE = (
    *map(full_name, (Told, Meeting, AsyncChat, AsyncRetriever, SyncChat, SyncRetriever, Runs)),
    f"{full_name(queries)}.<locals>.<lambda>",
)


class MeetingChat(AsyncChat):
    """Answer, synchronously, once the calls it is to meet are under way."""

    meeting: Any = Field(exclude=True, repr=False)

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        self.meeting("")
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator to which the fakes are thread-safe."""
    with Accelerator(
        strict=True, thread_safe_classes=(*THREAD_SAFE, full_name(MeetingChat))
    ) as made:
        yield made
        assert made.bypassed == {}


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
    name: str, place: str, way: str, accelerator: Accelerator
) -> None:
    bare = PLACES[place](_of_two(Meeting(1))[name]())
    fast = accelerate(PLACES[place](_of_two(Meeting(2))[name]()), accelerator=accelerator)
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


UNKNOWN: dict[str, tuple[type, Callable[[], Any], list[type]]] = {
    "retriever": (Told, lambda: queries(4, found), []),
    "part of a part": (Told, lambda: merger(merger(Told(find=found)), SyncRetriever()), []),
    "model": (AsyncChat, extracting, []),
    "handler": (Runs, lambda: queries(4, found), [Runs]),
    "handler above a compressor": (Runs, extracting, [Runs]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_to_be_thread_safe_keeps_the_order(name: str) -> None:
    unknown, make, handlers = UNKNOWN[name]
    known = tuple(one for one in THREAD_SAFE if one != full_name(unknown))
    retriever = make()
    config = {"callbacks": [handler() for handler in handlers]}
    for safe, is_parallel in ((known, False), (THREAD_SAFE, True)):
        with Accelerator(strict=True, thread_safe_classes=safe) as accelerator:
            fast = accelerate(retriever, accelerator=accelerator)
            call = partial(fast.invoke, QUESTION, config)
            assert (_helpers(accelerator, call) > 0) is is_parallel
            said = explain(fast)
        # A handler comes with its call: nothing is known of it before.
        assert ("at most 8 at once" in said) is (is_parallel or bool(handlers))
        if not is_parallel and not handlers:
            assert f"in order: {full_name(unknown)} is not known to be thread-safe (if it" in said


def test_an_option_keeps_the_order() -> None:
    retriever = queries(4, found)
    with Accelerator(parallel_calls=False, thread_safe_classes=THREAD_SAFE) as accelerator:
        fast = accelerate(retriever, accelerator=accelerator)
        assert _helpers(accelerator, lambda: fast.invoke(QUESTION)) == 0
        assert "in order: parallel_calls=False" in explain(fast)


def test_the_deadline_of_the_request_holds_for_each_call() -> None:
    asked: list[str] = []

    def find(query: str) -> list[Document]:
        asked.append(query)
        time.sleep(0.3)
        return found(query)

    with Accelerator(strict=True, deadline_s=0.2, thread_safe_classes=THREAD_SAFE) as late:
        fast = accelerate(queries(3 * MAX_AT_ONCE, find), accelerator=late)
        with pytest.raises(DeadlineError):
            fast.invoke(QUESTION)
    assert 1 < len(asked) <= MAX_AT_ONCE


async def test_a_blocked_loop_keeps_its_thread(accelerator: Accelerator) -> None:
    retriever = queries(4, found)
    fast = accelerate(retriever, accelerator=accelerator)
    assert _helpers(accelerator, lambda: fast.invoke(QUESTION)) == 0
    assert all(call.loop is not None for call in retriever.retriever.journal.calls)


def test_a_version_that_is_not_known_runs_as_it_is(accelerator: Accelerator) -> None:
    class OneByOne(MergerRetriever):
        def merge_documents(self, query: str, run_manager: Any) -> list[Document]:
            return [document for one in self.retrievers for document in one.invoke(query)]

    part = Told(find=found)
    retriever = OneByOne(retrievers=[part, part, part])
    fast = accelerate(RunnableLambda(str) | retriever, accelerator=accelerator)
    assert _helpers(accelerator, lambda: fast.invoke(QUESTION)) == 0
    assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)


def test_the_callers_bound_counts(accelerator: Accelerator) -> None:
    fast = accelerate(RunnableLambda(str) | queries(6, Meeting(2)), accelerator=accelerator)
    assert _helpers(accelerator, lambda: fast.invoke(QUESTION, {"max_concurrency": 2})) == 1
    fast = accelerate(RunnableLambda(str) | queries(6, found), accelerator=accelerator)
    assert _helpers(accelerator, lambda: fast.invoke(QUESTION, {"max_concurrency": 1})) == 0


#: what else nested composites hold
NESTED = (
    *THREAD_SAFE,
    *map(full_name, (ParentDocumentRetriever, FakeEmbeddings, words)),
)


# How they do -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call_threads", [1, 2, 64])
def test_composites_in_composites_end_with_any_number_of_threads(call_threads: int) -> None:
    with Accelerator(
        strict=True, call_threads=call_threads, thread_safe_classes=NESTED
    ) as accelerator:
        program = RunnableLambda(str) | nested_composites()
        fast = accelerate(program, accelerator=accelerator)
        assert _helpers(accelerator, lambda: fast.invoke(QUESTION)) > MAX_AT_ONCE
        inputs = [f"question {number}" for number in range(4)]
        assert fast.batch(inputs) == program.batch(inputs)


def test_without_threads_the_caller_does_all_and_it_is_counted() -> None:
    accelerator = Accelerator(thread_safe_classes=THREAD_SAFE)
    retriever = queries(3, found)
    fast = accelerate(RunnableLambda(str) | retriever, accelerator=accelerator)
    accelerator.calls.close()
    assert fast.invoke(QUESTION) == retriever.invoke(QUESTION)
    assert sum(accelerator.bypassed.values()) == 1
    accelerator.close()


@pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")
@pytest.mark.parametrize("name", RETRIEVERS)
def test_explain_says_which_calls_run_in_parallel(name: str, accelerator: Accelerator) -> None:
    program = itemgetter("input") | RETRIEVERS[name]()
    said = accelerate(program, accelerator=accelerator).explain()
    has_some = any(
        word in name for word in ("multi", "ensemble", "merger", "extra", "steps", "nes")
    )
    assert ("makes its calls" in said) == has_some


# Errors ----------------------------------------------------------------------------------------


def test_the_first_error_in_order_leaves_even_if_another_was_earlier(
    accelerator: Accelerator,
) -> None:
    errors = {"0": ValueError("zero"), "1": KeyError("one")}
    later = threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert later.wait(10.0)
        later.set()
        raise errors[query]

    runs = Runs()
    fast = accelerate(RunnableLambda(str) | queries(2, find), accelerator=accelerator)
    with pytest.raises(ValueError, match="zero") as raised:
        fast.invoke(QUESTION, {"callbacks": [runs]})
    assert raised.value is errors["0"]
    assert runs.open() == []


def test_calls_under_way_are_over_before_the_error_leaves(accelerator: Accelerator) -> None:
    failed, over = threading.Event(), threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert failed.wait(10.0)
            raise ValueError("zero")
        failed.set()
        VAR.set(query)
        wait_until(lambda: any(told[0] == "on_retriever_error" for told in runs.events()), "0")
        over.set()
        return found(query)

    runs = Runs()
    fast = accelerate(queries(2, find), accelerator=accelerator)
    VAR.set("callers")
    with pytest.raises(ValueError, match="zero"):
        fast.invoke(QUESTION, {"callbacks": [runs]})
    assert over.is_set()
    assert VAR.get() == "callers"
    assert runs.open() == []


def test_an_interrupt_waits_for_no_call(accelerator: Accelerator) -> None:
    began, release = threading.Event(), threading.Event()

    def find(query: str) -> list[Document]:
        if query == "0":
            assert began.wait(10.0)
            raise KeyboardInterrupt
        began.set()
        assert release.wait(10.0)
        return found(query)

    retriever = queries(2, find)
    fast = accelerate(retriever, accelerator=accelerator)
    with pytest.raises(KeyboardInterrupt):
        fast.invoke(QUESTION)
    assert retriever.retriever.journal.under_way == 1
    release.set()
    wait_until(lambda: retriever.retriever.journal.under_way == 0, "the other call")


@given(st.lists(st.sampled_from(["found", "nothing", "fails"]), max_size=12), st.integers(0, 9))
def test_whatever_calls_come_to_it_is_what_comes_of_them_one_by_one(
    outcomes: list[str], bound: int
) -> None:
    errors = [ValueError(place) for place in range(len(outcomes))]

    def find(query: str) -> list[Document]:
        outcome = outcomes[int(query)]
        if outcome == "fails":
            raise errors[int(query)]
        return found(query) if outcome == "found" else []

    def come(program: Any) -> Any:
        try:
            return program.invoke(QUESTION, {"max_concurrency": bound} if bound else {})
        except ValueError as error:
            return error

    program = RunnableLambda(str) | queries(len(outcomes), find)
    with Accelerator(strict=True, thread_safe_classes=THREAD_SAFE) as accelerator:
        fast, expected = come(accelerate(program, accelerator=accelerator)), come(program)
    assert fast is expected if isinstance(expected, ValueError) else fast == expected
