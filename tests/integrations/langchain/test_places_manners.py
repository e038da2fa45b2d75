"""An accelerated LangGraph leaves no trace of us where its owner looks, and errs as the plain one.

Also: what is said to whoever passes something that cannot be accelerated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from lc_fakes import SyncChat, SyncRetriever
from places_programs import QUESTION, Kit, State, Update, ask

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.errors import ConfigError

THREAD: Any = {"configurable": {"thread_id": "thread"}}
GIVEN = {"question": QUESTION}
ARMS = ("accelerate", "activate")


@contextmanager
def scheduled(program: Any, accelerator: Accelerator, arm: str) -> Iterator[Any]:
    """Give a program in a form, or in a block, in which its leaves are scheduled."""
    if arm == "accelerate":
        yield accelerate(program, accelerator=accelerator)
        return
    with activate(accelerator):
        yield program


def answering(saver: Any = None) -> Any:
    model = SyncChat()

    def answer(state: State) -> Update:
        return {"answer": str(model.invoke(state["question"]).text)}

    return Kit(saver=saver).line(answer=answer)


# A missing thread id --------------------------------------------------------------------------


async def _all_of(items: Any) -> list[Any]:
    return [item async for item in items]


UNTHREADED: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda graph: graph.invoke(GIVEN),
    "astream": lambda graph: asyncio.run(_all_of(graph.astream(GIVEN))),
}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("call", UNTHREADED.values(), ids=UNTHREADED.keys())
def test_a_missing_thread_id_is_langgraphs_own_error(
    call: Callable[[Any], Any], arm: str, accelerator: Accelerator
) -> None:
    graph = answering(InMemorySaver())
    with pytest.raises(ValueError, match="thread_id") as plain:
        call(graph)
    with (
        scheduled(graph, accelerator, arm) as fast,
        pytest.raises(ValueError, match="thread_id") as found,
    ):
        call(fast)
    assert str(found.value) == str(plain.value)


# Nothing of ours where the owner looks --------------------------------------------------------


def _mentions_us(value: Any) -> bool:
    """Tell whether a key, or a value's class or text, comes from us."""
    if isinstance(value, dict):
        return any(_mentions_us(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        return any(map(_mentions_us, value))
    return "rag_accel" in type(value).__module__ or "rag_accel" in repr(value)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("mode", ["debug", "checkpoints"])
def test_streamed_checkpoints_hold_nothing_of_ours(
    mode: str, arm: str, accelerator: Accelerator
) -> None:
    with scheduled(answering(InMemorySaver()), accelerator, arm) as fast:
        items = list(fast.stream(GIVEN, THREAD, stream_mode=mode))
    assert items
    assert not _mentions_us(items)


def _looking(seen: list[RunnableConfig]) -> Any:
    """Return a graph whose node keeps the config it is given."""

    def answer(state: State, config: RunnableConfig) -> Update:
        seen.append(config)
        return {}

    return Kit().line(answer=answer)


def _looking_around(seen: list[RunnableConfig]) -> Any:
    """Return a graph whose node keeps the config that its context names."""

    def answer(state: State) -> Update:
        seen.append(get_config())
        return {}

    return Kit().line(answer=answer)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("given", [None, {"configurable": {"tenant": "a"}, "tags": ["b"]}])
@pytest.mark.parametrize("build", [_looking, _looking_around])
def test_user_code_sees_the_config_of_the_plain_program(
    build: Callable[[list[Any]], Any], given: Any, arm: str, accelerator: Accelerator
) -> None:
    seen: list[Any] = []
    graph = build(seen)
    graph.invoke(GIVEN, given)
    with scheduled(graph, accelerator, arm) as fast:
        fast.invoke(GIVEN, given)
    plain, found = seen
    assert found["configurable"].keys() == plain["configurable"].keys()
    assert found["metadata"].keys() == plain["metadata"].keys()
    assert found.keys() == plain.keys()
    assert not _mentions_us([found["configurable"], found["metadata"], found.get("tags")])


# Hints ----------------------------------------------------------------------------------------


def test_an_uncompiled_graph_is_told_to_compile() -> None:
    graph = Kit().builder(answer=lambda state: {})
    with pytest.raises(ConfigError, match=r"\.compile\(\)") as raised:
        accelerate(graph)
    assert "RunnableLambda" not in str(raised.value)


def test_a_function_is_told_of_runnable_lambda() -> None:
    with pytest.raises(ConfigError, match="RunnableLambda"):
        accelerate(len)


@pytest.mark.parametrize("is_index", [False, True])
def test_a_llama_index_object_is_told_which_package_accelerates_it(is_index: bool) -> None:
    core = pytest.importorskip("llama_index.core")
    made = core.MockEmbedding(embed_dim=4)
    if is_index:
        made = core.VectorStoreIndex.from_documents([], embed_model=made)
    with pytest.raises(ConfigError, match="llama_index_rag_accel") as raised:
        accelerate(made)
    assert "RunnableLambda" not in str(raised.value)


# A closed accelerator -------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("make", [SyncChat, SyncRetriever])
def test_a_closed_accelerator_warns_once_for_many_calls(
    make: Callable[[], Any], arm: str, caplog: pytest.LogCaptureFixture
) -> None:
    leaf = make()

    def answer(state: State) -> Update:
        return {"notes": [ask(leaf, state["question"]) for _ in range(10)]}

    graph = Kit().line(answer=answer)
    plain = graph.invoke(GIVEN)
    accelerator = Accelerator(strict=False)
    with caplog.at_level(logging.WARNING), scheduled(graph, accelerator, arm) as fast:
        accelerator.close()
        found = [fast.invoke(GIVEN) for _ in range(10)]
    assert found == [plain] * 10
    assert (
        len([record for record in caplog.records if record.name == "rag_accel.interception"]) == 1
    )
