"""Texts of recognised embeddings objects share an engine's steps with those of other callers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from langchain_huggingface import HuggingFaceEmbeddings
from li_programs import TEXTS, EchoLLM, recording, run_in_loop
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

import langchain_rag_accel
from llama_index_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel_adapters.llama_index.models import EMBEDDINGS

pytest.importorskip("llama_index.embeddings.huggingface")


pytestmark = pytest.mark.usefixtures("uncompiled")

QUESTIONS = [f"When did the bridge number {number} open?" for number in range(16)]


def _engines(accelerator: Accelerator) -> list[Any]:
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return [engine for name, engine in engines.items() if name.startswith("embedding#")]


def _index(embedding: Any) -> VectorStoreIndex:
    documents = [Document(text=text, id_=str(at)) for at, text in enumerate(TEXTS)]
    return VectorStoreIndex.from_documents(documents, embed_model=embedding)


async def _ask(engine: Any) -> list[Any]:
    return await asyncio.gather(*map(engine.aquery, QUESTIONS))


def test_sixteen_concurrent_queries_embed_in_one_step(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    plain = _index(minilm).as_query_engine(llm=EchoLLM())
    engine = accelerate(plain, accelerator=accelerator)
    expected, found = run_in_loop(_ask(plain)), run_in_loop(_ask(engine))
    (own,) = _engines(accelerator)
    assert own["items"] == 16
    assert own["steps"] <= 2  # the first may begin before the others have asked
    assert [str(one) for one in found] == [str(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [n.node_id for n in one.source_nodes] == [n.node_id for n in other.source_nodes]
        assert np.allclose(
            [n.score for n in one.source_nodes], [n.score for n in other.source_nodes]
        )


def test_vectors_are_those_of_the_plain_object(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    fast = accelerate(minilm, accelerator=accelerator)
    assert np.allclose(fast.get_query_embedding("a"), minilm.get_query_embedding("a"), atol=1e-6)
    assert np.allclose(fast.get_text_embedding("b"), minilm.get_text_embedding("b"), atol=1e-6)
    expected = minilm.get_text_embedding_batch(TEXTS)
    assert np.allclose(fast.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    found = run_in_loop(fast.aget_text_embedding_batch(TEXTS))
    assert np.allclose(found, expected, atol=1e-6)
    assert type(found[0]) is list
    assert type(found[0][0]) is float


@pytest.mark.usefixtures("two_torch_threads")
def test_a_model_that_two_frameworks_share_has_one_engine(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    theirs = HuggingFaceEmbeddings.model_construct(
        model_name="packaged", encode_kwargs={"normalize_embeddings": True}
    )
    theirs._client = minilm._model
    fast = langchain_rag_accel.accelerate(theirs, accelerator=accelerator)
    engine = accelerate(_index(minilm).as_retriever(), accelerator=accelerator)

    async def both() -> Any:
        return await asyncio.gather(
            *map(fast.aembed_query, TEXTS), *map(engine.aretrieve, QUESTIONS)
        )

    run_in_loop(both())
    (own,) = _engines(accelerator)
    assert own["items"] == len(QUESTIONS) + len(TEXTS)
    assert own["steps"] <= 2


def test_an_object_that_embeds_in_processes_is_borrowed(minilm: HuggingFaceEmbedding) -> None:
    assert EMBEDDINGS.adopt(minilm, HuggingFaceEmbedding) is not None
    other = HuggingFaceEmbedding.model_construct(**minilm.__dict__)
    private = {**(minilm.__pydantic_private__ or {}), "_parallel_process": True}
    object.__setattr__(other, "__pydantic_private__", private)
    assert EMBEDDINGS.adopt(other, HuggingFaceEmbedding) is None


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_events_and_spans_are_those_of_the_plain_object(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator, is_async: bool
) -> None:
    def ask(one: HuggingFaceEmbedding) -> None:
        if is_async:
            run_in_loop(one.aget_query_embedding("a"))
            run_in_loop(one.aget_text_embedding("a"))
            run_in_loop(one.aget_text_embedding_batch(["b", "c"]))
        else:
            one.get_query_embedding("a")
            one.get_text_embedding("a")
            one.get_text_embedding_batch(["b", "c"])

    with recording() as expected:
        ask(minilm)
    with recording() as found:
        ask(accelerate(minilm, accelerator=accelerator))
    assert found == expected


def test_cancelled_and_late_queries_tell_the_loops_handler_nothing(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    """Neither an error nor the text of a question."""
    plain = _index(minilm).as_query_engine(llm=EchoLLM())
    engine, secret = accelerate(plain, accelerator=accelerator), "my account number is 4711"
    told: list[Any] = []

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what))
        late = [
            asyncio.create_task(asyncio.wait_for(engine.aquery(f"{secret}, {at}?"), 0.001))
            for at in range(10)
        ]
        left = [asyncio.create_task(engine.aquery(f"{secret}, {at}?")) for at in range(10, 20)]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in left:
            task.cancel()
        found = await asyncio.gather(*late, *left, return_exceptions=True)
        await engine.aquery("the last one")  # all that was left behind has been dealt with
        return found

    found = asyncio.run(main())
    assert told == []
    assert all(isinstance(one, TimeoutError) for one in found[:10])
    assert all(isinstance(one, asyncio.CancelledError) for one in found[10:])


async def test_an_embedding_whose_work_is_cancelled_is_cancelled(
    minilm: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    """As a loop that ends does it: every task, also the one behind the future that is shown."""
    fast = accelerate(minilm, accelerator=accelerator)
    before = asyncio.all_tasks()
    asking = asyncio.create_task(fast.aget_query_embedding("a"))
    await asyncio.sleep(0)
    (work,) = asyncio.all_tasks() - before - {asking}
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
