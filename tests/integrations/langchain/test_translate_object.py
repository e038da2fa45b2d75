"""A translated program is an ordinary runnable that says what was understood of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    RunnableBinding,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from lc_fakes import AsyncChat, AsyncRetriever, SyncChat
from lc_programs import QUESTION, joined, model_chain, retrieval_chain
from lc_translating import Runs, config_with, translated

from langchain_rag_accel import accelerate
from langchain_rag_accel.runnables import AcceleratedRunnable
from langchain_rag_accel.translation.runnable import TranslatedRunnable
from rag_accel import Accelerator, Options, TranslationError
from rag_accel.accelerator import current_request

INPUT = {"input": "question one"}


def test_the_mode_chooses_translation() -> None:
    fast = accelerate(model_chain(), options=Options.load(mode="translate"))
    assert isinstance(fast, TranslatedRunnable)
    assert isinstance(fast, RunnableBinding)
    assert fast.invoke(INPUT) == model_chain().invoke(INPUT)
    fast.accelerator.close()


def test_the_other_mode_intercepts() -> None:
    with Accelerator(mode="auto") as accelerator:
        fast = accelerate(model_chain(), accelerator=accelerator)
        assert type(fast) is AcceleratedRunnable


def test_the_mode_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_ACCEL_MODE", "translate")
    assert isinstance(accelerate(model_chain()), TranslatedRunnable)


def test_models_and_retrievers_alone_have_nothing_to_translate() -> None:
    with Accelerator(mode="translate") as accelerator:
        assert isinstance(accelerate(SyncChat(), accelerator=accelerator), BaseChatModel)


def test_switched_off_it_is_the_plain_program(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_ACCEL", "0")
    fast = translated(RunnableParallel(a=lambda _: current_request.get(), b=len), accelerator)
    assert fast.invoke(INPUT) == {"a": None, "b": 1}


def test_what_is_made_of_it_stays_translated(accelerator: Accelerator) -> None:
    fast = translated(itemgetter("input") | AsyncChat() | StrOutputParser(), accelerator)
    for made in (
        fast.with_config(tags=["t"]),
        fast.bind(),
        fast.with_listeners(on_start=lambda run: None),
        fast.with_types(input_type=dict),
        copy.copy(fast),
        copy.deepcopy(fast),
    ):
        assert isinstance(made, TranslatedRunnable)
        assert made.translation is not None
        assert made.invoke(INPUT) == fast.invoke(INPUT)


def test_a_retry_around_it_is_intercepted(accelerator: Accelerator) -> None:
    tries: list[Any] = []

    def flaky(given: Any) -> str:
        tries.append(given)
        if len(tries) < 2:
            raise ConnectionError("again")
        return "done"

    fast = translated(RunnableParallel(a=flaky, b=len), accelerator)
    steady = fast.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    assert steady.translation is None
    assert steady.invoke(INPUT) == {"a": "done", "b": 1}
    assert "by interception" in steady.explain()


def test_it_travels_by_pickle() -> None:
    fast = translated(QUESTION | SyncChat() | StrOutputParser(), Accelerator())
    loaded = pickle.loads(pickle.dumps(fast))
    assert loaded.translation is not None
    assert loaded.invoke(INPUT) == fast.invoke(INPUT)
    fast.accelerator.close()
    loaded.accelerator.close()


async def test_streams_are_those_of_the_plain_program(accelerator: Accelerator) -> None:
    bare, fast = retrieval_chain(), translated(retrieval_chain(), accelerator)
    of_bare, of_fast = Runs(), Runs()
    expected = list(bare.stream(INPUT, config_with(of_bare)))
    assert list(fast.stream(INPUT, config_with(of_fast))) == expected
    assert of_fast.forest() == of_bare.forest()
    assert [chunk async for chunk in fast.astream(INPUT)] == [c async for c in bare.astream(INPUT)]


# What is not understood, and what is said ----------------------------------------------------


def _as_they_come(chunks: Iterator[Any]) -> Iterator[Any]:
    yield from chunks


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (SyncChat().map(), "RunnableEach"),
        (RunnableGenerator(_as_they_come), "RunnableGenerator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_is_not_understood_is_named_with_its_place(part: Any, named: str) -> None:
    inner = RunnablePassthrough.assign(answer=QUESTION | part | RunnablePassthrough())
    with Accelerator(mode="translate") as accelerator:
        with pytest.raises(TranslationError) as raised:
            accelerate(RunnablePassthrough() | inner, accelerator=accelerator)
        assert raised.value.where == "program.1.answer.1"
        assert named in str(raised.value.found)
        assert "RunnableParallel" in str(raised.value.valid)
        assert 'mode="auto"' in str(raised.value.hint)


def test_an_accelerated_part_is_not_understood(accelerator: Accelerator) -> None:
    with pytest.raises(TranslationError, match="AcceleratedRunnable"):
        translated(RunnablePassthrough() | accelerate(model_chain()), accelerator)


def test_auto_takes_what_translation_refuses() -> None:
    program = RunnableLambda(len).map()
    with Accelerator(mode="auto", strict=True) as accelerator:
        assert accelerate(program, accelerator=accelerator).invoke(["a", "bc"]) == [1, 2]


def test_explain_shows_the_graph_and_what_is_opaque(accelerator: Accelerator) -> None:
    found = itemgetter("input") | AsyncRetriever() | joined
    both = RunnableParallel(
        context=found, input=lambda given: given["input"], all=RunnablePassthrough()
    )
    said = translated(both | QUESTION | SyncChat(), accelerator).explain()
    assert "ragraph(input)" in said
    assert "0.context.1.retriever: Function(0.context.0.function)" in said
    assert "RunnableLambda | AsyncRetriever | joined" in said
    assert "program.0.context.2: joined" in said
    assert "AsyncRetriever: borrowed" in said
    assert "max_concurrency below 3" in said


def test_explain_says_what_is_done_aside(accelerator: Accelerator) -> None:
    found = itemgetter("input") | AsyncRetriever() | joined
    both = RunnableParallel(context=found, input=itemgetter("input"), all=RunnablePassthrough())
    said = translated(both | QUESTION, accelerator).explain()
    assert "program.0.input, program.0.all: done before the branch beside them" in said
    assert "max_concurrency" not in said


def test_explain_says_whose_batch_is_kept(accelerator: Accelerator) -> None:
    from lc_fakes import FakeLLM

    said = translated(RunnablePassthrough() | FakeLLM(), accelerator).explain()
    assert "batch: intercepted, since program.1: FakeLLM" in said
