"""An option that no part of an object reads is said once, as an error where it cannot be meant."""

from __future__ import annotations

import gc
import logging
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from lc_fakes import FakeEmbeddings, SyncChat
from lc_programs import QUESTION, model_chain, retrieval_chain

from langchain_rag_accel import accelerate, activate, explain
from rag_accel import Accelerator, UnreadOptionWarning
from rag_accel.interception.option_reach import MAX_PARTS

INPUT = {"input": "question one"}


def graph() -> Any:
    graphs = pytest.importorskip("langgraph.graph")
    model = SyncChat()

    class State(TypedDict):
        answer: str

    def ask(state: State) -> dict[str, Any]:
        return {"answer": model.invoke("x").content}

    return graphs.StateGraph(State).add_node("ask", ask).add_edge(graphs.START, "ask").compile()


def test_an_unread_option_warns_and_the_program_runs() -> None:
    with Accelerator(kv_reuse="full") as accelerator:
        with pytest.warns(UnreadOptionWarning, match="kv_reuse='full'") as said:
            fast = accelerate(model_chain(), accelerator=accelerator)
        assert fast.invoke(INPUT) == model_chain().invoke(INPUT)
    assert [one.message.option for one in said] == ["kv_reuse"]  # type: ignore[union-attr]
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    "given",
    [
        {"kv_folder": "/nowhere"},
        {"adopt_llm": "batched"},
        {"embedding_runtime": "bf16"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_each_option_has_its_warning(given: dict[str, Any]) -> None:
    with (
        Accelerator(**given) as accelerator,
        pytest.warns(UnreadOptionWarning, match=next(iter(given))),
    ):
        accelerate(retrieval_chain(), accelerator=accelerator)


def test_a_value_that_asks_for_nothing_is_no_matter() -> None:
    quiet: dict[str, Any] = {
        "adopt_llm": "off",
        "embedding_runtime": "torch",
        "parallel_calls": False,
        "offload_blocking": False,
    }
    with Accelerator(**quiet) as accelerator:
        accelerate(retrieval_chain(), accelerator=accelerator)


@pytest.mark.parametrize("name", ["offload_blocking", "parallel_calls"])
def test_a_default_in_the_environment_counts_as_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RAG_ACCEL_{name.upper()}", "1")
    with pytest.warns(UnreadOptionWarning, match=f"{name}=True"):
        accelerate(retrieval_chain())


def test_nothing_is_said_where_nothing_was_given(accelerator: Accelerator) -> None:
    for program in (model_chain(), retrieval_chain(), FakeEmbeddings(), SyncChat(), graph()):
        accelerate(program)
        accelerate(program, accelerator=accelerator)
        assert "option" not in explain(accelerate(program, accelerator=accelerator))


def test_one_object_is_told_once_and_another_again() -> None:
    first, second = model_chain(), model_chain()
    with Accelerator(kv_reuse="full") as accelerator, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for program in (first, first, second):
            accelerate(accelerate(program, accelerator=accelerator))
    assert [one.category for one in said] == [UnreadOptionWarning] * 2


def test_many_threads_are_told_once() -> None:
    program, start = model_chain(), threading.Barrier(8)

    def make(accelerator: Accelerator) -> Any:
        start.wait(60)
        return accelerate(program, accelerator=accelerator)

    with (
        Accelerator(kv_reuse="full") as accelerator,
        warnings.catch_warnings(record=True) as said,
        ThreadPoolExecutor(8) as pool,
    ):
        warnings.simplefilter("always")
        assert len(list(pool.map(make, [accelerator] * 8))) == 8
    assert len(said) == 1


def test_what_was_told_keeps_no_program_alive() -> None:
    program = model_chain()
    gone = weakref.ref(program)
    with Accelerator(kv_reuse="full") as accelerator:
        with pytest.warns(UnreadOptionWarning):
            accelerate(program, accelerator=accelerator)
        del program
        gc.collect()
        assert gone() is None


def test_a_warning_as_an_error_is_the_users_choice() -> None:
    program = model_chain()
    with Accelerator(kv_reuse="full") as accelerator:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UnreadOptionWarning) as raised:
                accelerate(program, accelerator=accelerator)
        assert raised.value.option == "kv_reuse"
        assert accelerate(program, accelerator=accelerator).invoke(INPUT)


def test_activate_says_nothing() -> None:
    with Accelerator(kv_reuse="full") as accelerator, activate(accelerator):
        model_chain().invoke(INPUT)


def test_a_program_of_hidden_leaves_is_not_judged() -> None:
    with Accelerator(kv_reuse="full") as accelerator:
        accelerate(RunnableLambda(lambda text: text), accelerator=accelerator)


def test_a_huge_program_is_looked_at_as_far_as_the_bound() -> None:
    chain: Any = QUESTION
    for _ in range(MAX_PARTS + 1):
        chain = chain | RunnableLambda(lambda value: value)
    with Accelerator(kv_reuse="full") as accelerator:
        accelerate(chain | SyncChat(), accelerator=accelerator)


class Hostile(FakeEmbeddings):
    """Be embeddings whose attributes cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise RuntimeError("not for you")
        return super().__getattribute__(name)


def test_an_object_that_cannot_be_looked_at_is_accelerated_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = SyncChat() | RunnableLambda(str) | RunnableLambda(Hostile().embed_query)
    with Accelerator(kv_reuse="full") as accelerator, caplog.at_level(logging.WARNING, "rag_accel"):
        assert accelerate(program, accelerator=accelerator) is not program
    record = caplog.records[-1]
    assert "what langchain_core.runnables.base.RunnableSequence reads" in record.getMessage()
    assert "not for you" in record.getMessage()
    assert not any(isinstance(one, BaseException) for one in record.args or ())
