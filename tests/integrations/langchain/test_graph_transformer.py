"""``LLMGraphTransformer`` gives the plain graphs, its model asked side by side where it may be."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from idle_accelerators import soon_idle
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator
from rag_accel.system.classes import full_name
from rag_accel_adapters.langchain.composites import composite_of

llm = pytest.importorskip("langchain_experimental.graph_transformers.llm")

NUMBER = 5
PATIENCE_S = 30


class GraphChat(BaseChatModel):
    """Write the path that a text tells of, as text or as the call of a tool."""

    during: Any = Field(default=None, exclude=True, repr=False)
    aduring: Any = Field(default=None, exclude=True, repr=False)
    seen: list[Any] = Field(default_factory=list, exclude=True)

    @property
    def _llm_type(self) -> str:
        return "fake-graph"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools)

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.seen.append((threading.get_ident(), messages[-1].text))
        other = self.during(messages[-1].text) if self.during else None
        return self._result(messages, kwargs, other)

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        other = await self.aduring(messages[-1].text) if self.aduring else None
        return self._result(messages, kwargs, other)

    def _result(self, messages: Any, kwargs: Any, other: str | None) -> ChatResult:
        pump, tank = re.findall(r"Pump (\d+) feeds tank (\d+)", messages[-1].text)[-1]
        message = AIMessage(_text(pump, tank) if other is None else other)
        if "tools" in kwargs and other is None:
            name = kwargs["tools"][0].__name__
            message = AIMessage(
                "", tool_calls=[ToolCall(name=name, args=_graph(pump, tank), id="")]
            )
        return ChatResult(generations=[ChatGeneration(message=message)])


def _text(pump: str, tank: str) -> str:
    path = {"head": f"pump {pump}", "relation": "feeds", "tail": f"tank {tank}"}
    return json.dumps([{**path, "head_type": "Pump", "tail_type": "Tank"}])


def _graph(pump: str, tank: str) -> dict[str, Any]:
    nodes = [{"id": f"pump {pump}", "type": "pump"}, {"id": f"tank {tank}", "type": "tank"}]
    path = {
        "source_node_id": nodes[0]["id"],
        "source_node_type": "pump",
        "target_node_id": nodes[1]["id"],
        "target_node_type": "tank",
        "type": "feeds",
    }
    return {"nodes": nodes, "relationships": [path]}


def transformer(chat: GraphChat | None = None, *, by_tool: bool, **more: Any) -> Any:
    """Return a transformer whose model answers in text, or by the call of a tool."""
    return llm.LLMGraphTransformer(llm=chat or GraphChat(), ignore_tool_usage=not by_tool, **more)


def texts(*more: str) -> list[Document]:
    told = [f"Pump {place} feeds tank {place + 1}." for place in range(NUMBER)]
    return [Document(text, metadata={"page": place}) for place, text in enumerate((*told, *more))]


def _meet(size: int = NUMBER) -> Any:
    barrier = threading.Barrier(size)

    def during(_: str) -> None:
        barrier.wait(PATIENCE_S)

    return during


def _outcome(made: Any, documents: Any, **more: Any) -> Any:
    try:
        return made.convert_to_graph_documents(documents, **more)
    except Exception as error:
        return type(error), str(error)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give a strict accelerator to which the fakes are thread-safe."""
    with Accelerator(strict=True, thread_safe_classes=(full_name(GraphChat),)) as made:
        yield made
        assert made.bypassed == {}
        assert soon_idle(made)


in_both_ways = pytest.mark.parametrize("by_tool", [True, False])


# The same graphs ---------------------------------------------------------------------------------


@in_both_ways
def test_calls_overlap_and_give_the_plain_graphs(by_tool: bool, accelerator: Accelerator) -> None:
    plain = transformer(by_tool=by_tool).convert_to_graph_documents(texts())
    made = accelerate(
        transformer(GraphChat(during=_meet()), by_tool=by_tool), accelerator=accelerator
    )
    assert made.convert_to_graph_documents(texts()) == plain
    assert [len(one.relationships) for one in plain] == [1] * NUMBER


@in_both_ways
def test_a_model_that_is_not_known_to_be_thread_safe_keeps_the_order(by_tool: bool) -> None:
    running = most = 0

    def during(_: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    chat = GraphChat(during=during)
    plain = transformer(by_tool=by_tool).convert_to_graph_documents(texts())
    with Accelerator(strict=True) as accelerator:
        made = accelerate(transformer(chat, by_tool=by_tool), accelerator=accelerator)
        assert made.convert_to_graph_documents(texts()) == plain
        assert f"in order: {full_name(GraphChat)} is not known" in explain(made)
    asked = [re.findall(r"Pump (\d+) feeds", text)[-1] for _, text in chat.seen]
    assert (asked, most) == (["0", "1", "2", "3", "4"], 1)


@in_both_ways
def test_coroutines_give_the_plain_graphs(by_tool: bool, accelerator: Accelerator) -> None:
    plain = transformer(by_tool=by_tool).convert_to_graph_documents(texts())
    made = accelerate(transformer(by_tool=by_tool), accelerator=accelerator)
    assert asyncio.run(made.aconvert_to_graph_documents(texts())) == plain


def test_upstream_is_what_is_known() -> None:
    assert composite_of(llm.LLMGraphTransformer.convert_to_graph_documents) is not None


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["", "no graph", "[1, 2]", '[{"head": 3}]', None], ids=repr)
@in_both_ways
def test_one_bad_answer_does_what_it_does_upstream(
    answer: str | None, by_tool: bool, accelerator: Accelerator
) -> None:
    def during(text: str) -> str | None:
        if "Pump 2 " not in text:
            return None
        if answer is None:
            raise RuntimeError("down")
        return answer

    plain = _outcome(transformer(GraphChat(during=during), by_tool=by_tool), texts())
    bad = transformer(GraphChat(during=during), by_tool=by_tool)
    assert _outcome(accelerate(bad, accelerator=accelerator), texts()) == plain
    assert (plain == (RuntimeError, "down")) is (answer is None)


@pytest.mark.parametrize("documents", [[], texts("")[-1:], None, [7], "text"], ids=repr)
def test_bad_documents_do_what_they_do_upstream(documents: Any, accelerator: Accelerator) -> None:
    plain = _outcome(transformer(by_tool=False), documents)
    made = accelerate(transformer(by_tool=False), accelerator=accelerator)
    assert _outcome(made, documents) == plain
