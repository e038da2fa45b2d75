"""Bad input to LlamaIndex programs: an error of ours with its name, or upstream's own unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_programs import TEXTS, EchoLLM, HashEmbedding, Parts, nodes_of, run_in_loop
from llama_index.core.query_engine import RetrieverQueryEngine
from pydantic import PrivateAttr

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator, ConfigError

QUESTION = "When was the bridge opened?"


class LongerQueries(HashEmbedding):
    """An embedding whose queries have one number more than its texts."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return [*self._get_text_embedding(query), 1.0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class GatedQueries(HashEmbedding):
    """An embedding whose queries wait at a gate."""

    _gate: threading.Event = PrivateAttr(default_factory=threading.Event)
    _asked: threading.Event = PrivateAttr(default_factory=threading.Event)

    @property
    def gate(self) -> threading.Event:
        return self._gate

    @property
    def asked(self) -> threading.Event:
        return self._asked

    def _get_query_embedding(self, query: str) -> list[float]:
        self._asked.set()
        self._gate.wait(10)
        return self._get_text_embedding(query)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the class and the text of its error."""
    try:
        response = call()
    except Exception as error:
        return type(error), str(error)
    return str(response), nodes_of(response)


@pytest.mark.parametrize("obj", [None, 3, EchoLLM, len, TEXTS])
def test_an_unsupported_object_is_refused_with_its_class(
    obj: Any, accelerator: Accelerator
) -> None:
    with pytest.raises(ConfigError, match="does not know this object") as caught:
        accelerate(obj, accelerator=accelerator)
    assert f"found {type(obj).__module__}.{type(obj).__qualname__}" in str(caught.value)


def _other_dimension(parts: Parts) -> RetrieverQueryEngine:
    return Parts(llm=parts.llm, embedding=LongerQueries()).engine()


@pytest.mark.parametrize("way", ["query", "aquery"])
def test_another_dimension_of_the_embedding_is_upstreams_error(
    way: str, accelerator: Accelerator
) -> None:
    def asked(engine: Any) -> Any:
        if way == "query":
            return outcome(lambda: engine.query(QUESTION))
        return outcome(lambda: run_in_loop(engine.aquery(QUESTION)))

    plain = asked(_other_dimension(Parts()))
    fast = accelerate(_other_dimension(Parts()), accelerator=accelerator)
    assert plain[0] is ValueError
    assert asked(fast) == plain
    assert soon_idle(accelerator)


@pytest.mark.parametrize("is_in_store_too", [True, False])
def test_a_node_deleted_while_its_index_is_in_use_is_missed_as_plainly(
    is_in_store_too: bool, accelerator: Accelerator
) -> None:
    def before_and_after(wrap: Callable[[Any], Any]) -> list[Any]:
        parts = Parts()
        index = parts.index()
        engine = wrap(index.as_query_engine(llm=parts.llm, similarity_top_k=len(TEXTS)))
        before = outcome(lambda: engine.query(QUESTION))
        (node_id,) = index.ref_doc_info["d2"].node_ids
        if is_in_store_too:
            index.delete_ref_doc("d2", delete_from_docstore=True)
        else:
            index.docstore.delete_document(node_id)
        after = [outcome(lambda: engine.query(QUESTION)) for _ in range(2)]
        return [before, *(_without_ids(one, node_id) for one in after)]

    plain = before_and_after(lambda engine: engine)
    assert plain[1] != plain[0]
    found = before_and_after(lambda engine: accelerate(engine, accelerator=accelerator))
    assert found == plain
    assert soon_idle(accelerator)


def _without_ids(result: Any, node_id: str) -> Any:
    """Return an outcome without the id of a node, which is made anew in each index."""
    text, rest = result
    return (text, rest.replace(node_id, "")) if isinstance(rest, str) else result


def test_a_node_deleted_while_eight_threads_ask_is_in_no_answer(accelerator: Accelerator) -> None:
    embedding = GatedQueries()
    embedding.gate.set()
    index = Parts(embedding=embedding).index()
    engine = index.as_query_engine(llm=EchoLLM(), similarity_top_k=2)
    before = outcome(lambda: engine.query(QUESTION))
    fast = accelerate(engine, accelerator=accelerator)
    embedding.gate.clear()
    embedding.asked.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(outcome, lambda: fast.query(QUESTION)) for _ in range(8)]
        assert embedding.asked.wait(10)
        index.delete_ref_doc(f"d{TEXTS.index(before[1][0][0])}")
        embedding.gate.set()
        found = [one.result() for one in asked]
    after = outcome(lambda: engine.query(QUESTION))
    assert after != before
    assert found == [after] * 8
