"""Unchanged programs over one server: texts in another order are loaded, not computed."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_openai")
pytest.importorskip("llama_index.llms.openai_like")

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

import langchain_rag_accel
import llama_index_rag_accel
from rag_accel import Accelerator
from rag_accel.engines.llm.local.prefill.fill_prompt import prompt_of
from rag_accel.engines.llm.remote.filling import fill_server
from vllm_rag_accel.prompt_texts import EDGE

SYSTEM = "Answer by the context and nothing else. Say that you do not know where it is silent."
RIVERS = [
    "The river Aare rises in the glaciers of the Bernese Alps and flows through Thun and Bern.",
    "The clock tower of Bern was built in the thirteenth century and served as its western gate.",
    "Lake Thun was formed after the last ice age; steamers have crossed it since the year 1835.",
]
CHEESES = [
    "Cheese from Gruyere ripens for months in caves whose air is cool and damp.",
    "Raclette is melted by the fire and scraped on potatoes that were boiled in their skins.",
    "The holes of an Emmental are made by bacteria that breathe out gas while it ripens.",
]
WINDS = [
    "The foehn falls from the Alps, dry and warm, and melts the snow of whole valleys in a day.",
    "The bise blows from the north-east over the plateau and covers the lakes' shores with ice.",
    "The joran comes down from the Jura in the evening and surprises those who sail on the lake.",
]
GRAPHS = [
    "A property graph keeps names and values on its nodes and edges, and labels on its nodes.",
    "A vector index finds the passages whose embeddings are nearest to that of the question.",
    "A reranker reads a question together with a passage and returns one score for the pair.",
]


class Ordered(LangChainRetriever):
    """Returns texts, the last one first where a query asks so."""

    texts: list[str]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        texts = self.texts[::-1] if "backwards" in query else self.texts
        return [Document(text) for text in texts]


class OrderedNodes(BaseRetriever):
    """Returns texts, the last one first where a query asks so."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        texts = GRAPHS[::-1] if "backwards" in query_bundle.query_str else GRAPHS
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in texts]


@pytest.fixture(scope="module")
def tokens(models: Path) -> Any:
    """Return what counts the tokens of texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    return lambda texts: sum(
        len(tokenizer.encode(text, add_special_tokens=False)) for text in texts
    )


def chain(server: str, texts: list[str], **options: Any) -> Any:
    model: Any = ChatOpenAI(
        model="tiny", base_url=server, api_key="none", max_tokens=4, temperature=0, **options
    )
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("user", "{context}\n\nQuestion: {question}")]
    )
    joined = RunnableLambda(lambda found: "\n\n".join(one.page_content for one in found))
    retriever = Ordered(texts=texts)
    return {"context": retriever | joined, "question": RunnablePassthrough()} | prompt | model


def said(answer: Any) -> dict[str, Any]:
    return answer.response_metadata["kv_reuse"]


def test_chain_loads_texts_in_both_orders(server: str, tokens: Any) -> None:
    """Sync, async and streamed answers of an unchanged chain load what the first one encoded."""
    plain = chain(server, RIVERS, stream_usage=True)
    with Accelerator(kv_reuse="full", strict=True) as accelerator:
        program = langchain_rag_accel.accelerate(plain, accelerator=accelerator)
        first = said(program.invoke("Where does the Aare rise?"))
        assert first["encoded_tokens"] >= tokens(RIVERS) - 2 * EDGE * len(RIVERS)
        second = said(program.invoke("What crosses the lake, backwards?"))
        assert (second["mode"], second["exact"]) == ("full", False)
        assert second["reused_tokens"] >= first["encoded_tokens"]

        async def ask() -> list[Any]:
            whole = await program.ainvoke("Who built the tower, backwards?")
            pieces = [piece async for piece in program.astream("What is the gate?")]
            await plain.last.root_async_client.close()  # its loop ends here
            return [whole, *pieces]

        whole, *pieces = asyncio.run(ask())
        # Loaded, or of vLLM's own cache, which has the same order of texts from before.
        assert said(whole)["cached_tokens"] >= tokens(RIVERS)
        streamed = pieces[0]
        for piece in pieces[1:]:
            streamed = streamed + piece
        assert (said(streamed)["mode"], said(streamed)["texts"]) == ("full", 3)
        assert said(streamed)["cached_tokens"] >= tokens(RIVERS)
        assert accelerator.bypassed == {}


def test_chain_computes_a_part_of_its_texts_again(server: str) -> None:
    plain = chain(server, WINDS)
    with Accelerator(kv_reuse="fused", strict=True) as accelerator:
        program = langchain_rag_accel.accelerate(plain, accelerator=accelerator)
        program.invoke("Which wind is dry?")
        answer = said(program.invoke("Which wind is cold, backwards?"))
    assert (answer["mode"], answer["exact"]) == ("fused", False)
    assert answer["reused_tokens"] > answer["recomputed_tokens"] > 0


def test_answers_without_the_option_are_those_of_the_program(server: str) -> None:
    plain = chain(server, RIVERS)
    with Accelerator(strict=True) as accelerator:
        fast = langchain_rag_accel.accelerate(plain, accelerator=accelerator)
        question = "What freezes in winter?"
        ours, theirs = fast.invoke(question), plain.invoke(question)
    assert ours.content == theirs.content
    assert ours.response_metadata.keys() == theirs.response_metadata.keys()
    assert "kv_reuse" not in ours.response_metadata


def test_first_question_after_a_fill_loads_all(server: str, tokens: Any) -> None:
    report = fill_server(server, CHEESES, prompt_of(SYSTEM))
    assert (report.sent, report.found, report.tokens) == (3, 0, tokens(CHEESES))
    assert fill_server(server, CHEESES, prompt_of(SYSTEM)).found == 3
    with Accelerator(kv_reuse="full", strict=True) as accelerator:
        program = langchain_rag_accel.accelerate(chain(server, CHEESES), accelerator=accelerator)
        found = said(program.invoke("Where does it ripen, backwards?"))
    assert found["encoded_tokens"] == 0
    assert found["reused_tokens"] >= tokens(CHEESES)


class Answers(BaseEventHandler):
    """Keeps what answers of models hold as they came."""

    found: list[Any] = []

    @classmethod
    def class_name(cls) -> str:
        return "Answers"

    def handle(self, event: Any, **kwargs: Any) -> None:
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            self.found.append(event.response.raw)


@pytest.fixture
def answers() -> Iterator[list[Any]]:
    """Yield the answers of a test's calls of LlamaIndex's models."""
    handlers, handler = get_dispatcher().event_handlers, Answers()
    handlers.append(handler)
    yield handler.found
    handlers.remove(handler)


def model_over(server: str, *, streaming: bool = False) -> OpenAILike:
    return OpenAILike(
        model="tiny",
        api_base=server,
        api_key="none",
        is_chat_model=True,
        max_tokens=4,
        temperature=0,
        context_window=4096,
        additional_kwargs={"stream_options": {"include_usage": True}} if streaming else {},
    )


def engine_over(model: OpenAILike, *, streaming: bool = False) -> Any:
    return RetrieverQueryEngine.from_args(OrderedNodes(), llm=model, streaming=streaming)


def test_query_engine_loads_texts_in_both_orders(
    server: str, tokens: Any, answers: list[Any]
) -> None:
    """Sync, async and streamed queries load what the first one encoded."""
    with Accelerator(kv_reuse="full", strict=True) as accelerator:
        model = model_over(server)
        fast = llama_index_rag_accel.accelerate(engine_over(model), accelerator=accelerator)

        async def ask() -> None:
            await fast.aquery("Where are labels, backwards?")
            await model._get_aclient().close()  # its loop ends here

        fast.query("What does a reranker return?")
        fast.query("What does an index find, backwards?")
        asyncio.run(ask())
        streaming = llama_index_rag_accel.accelerate(
            engine_over(model_over(server, streaming=True), streaming=True),
            accelerator=accelerator,
        )
        assert str(streaming.query("What has values?"))
        assert accelerator.bypassed == {}
    first, second, third, streamed = answers
    assert first.kv_transfer_params["rag_accel"]["encoded_tokens"] > 0
    assert second.kv_transfer_params["rag_accel"]["reused_tokens"] >= tokens(GRAPHS)
    for answer in (third, streamed):
        assert answer.usage.prompt_tokens_details.cached_tokens >= tokens(GRAPHS)
