"""The first token of a LangChain chain and a LlamaIndex engine whose model is swapped for ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from llama_index.core import QueryBundle, get_response_synthesizer
from llama_index.core.base.base_retriever import BaseRetriever as BaseNodeRetriever
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode

import langchain_rag_accel
import llama_index_rag_accel
from bench.kv.first_token import PLAIN, WAYS, First, FirstTokens, ours
from bench.local_llm.chains import PlainModel
from bench.measure import rotate
from langchain_rag_accel import ChatRagAccel
from llama_index_rag_accel import RagAccelLLM
from rag_accel.accelerator import Accelerator
from rag_accel.fidelity.prompts import BETWEEN, SYSTEM

PROMPT = ChatPromptTemplate.from_messages(
    [("system", SYSTEM), ("human", "{context}\n\n{question}")]
)

Ask = Callable[[str], str]
"""Answers a query; of ``turn: ...``, the texts are found in that turn's order."""


def ordered(texts: Sequence[str], query: str) -> list[tuple[str, str]]:
    """Return the id and the text of each, in the order that a query's number stands for."""
    numbered = [(str(at), text) for at, text in enumerate(texts)]
    return Random(int(query.partition(":")[0])).sample(numbered, len(numbered))


# LangChain --------------------------------------------------------------------------------------


class Documents(BaseRetriever):
    """All texts, in an order that the query says."""

    texts: Sequence[str]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(id=id, page_content=text) for id, text in ordered(self.texts, query)]


def langchain_arms(folder: str, texts: Sequence[str], accelerator: Accelerator) -> dict[str, Ask]:
    """Return a chain over langchain_huggingface's pipeline, and over each way of ours."""
    plain = PlainModel(folder, 1)
    pipeline = plain.pipeline.bind(pipeline_kwargs={"max_new_tokens": 1})
    arms: dict[str, Ask] = {
        PLAIN: (
            _chain(texts) | RunnableLambda(plain.rendered) | pipeline | StrOutputParser()
        ).invoke
    }
    for way in WAYS:
        model = ChatRagAccel(model=folder, max_tokens=1, kv_reuse=way, accelerator=accelerator)
        chain = _chain(texts) | model | StrOutputParser()
        arms[ours(way)] = langchain_rag_accel.accelerate(chain, accelerator=accelerator).invoke
    return arms


def _chain(texts: Sequence[str]) -> Any:
    context = Documents(texts=texts) | _joined
    return {"context": context, "question": RunnablePassthrough()} | PROMPT


def _joined(documents: list[Document]) -> str:
    return BETWEEN.join(one.page_content for one in documents)


# LlamaIndex -------------------------------------------------------------------------------------


class Nodes(BaseNodeRetriever):
    """All texts, in an order that the query says."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self._texts = texts

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=TextNode(id_=id, text=text), score=1.0)
            for id, text in ordered(self._texts, query_bundle.query_str)
        ]


def llama_index_arms(folder: str, texts: Sequence[str], accelerator: Accelerator) -> dict[str, Ask]:
    """Return a query engine over LlamaIndex's HuggingFaceLLM, and over each way of ours."""
    arms = {PLAIN: _asking(_query_engine(_hugging_face(folder), texts))}
    for way in WAYS:
        llm = RagAccelLLM(folder, max_tokens=1, kv_reuse=way, accelerator=accelerator)
        engine = _query_engine(llm, texts)
        arms[ours(way)] = _asking(llama_index_rag_accel.accelerate(engine, accelerator=accelerator))
    return arms


def _query_engine(llm: Any, texts: Sequence[str]) -> Any:
    return RetrieverQueryEngine(Nodes(texts), get_response_synthesizer(llm=llm))


def _asking(engine: Any) -> Ask:
    return lambda query: str(engine.query(query))


def _hugging_face(folder: str) -> Any:
    from llama_index.llms.huggingface import HuggingFaceLLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return HuggingFaceLLM(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        context_window=model.config.max_position_embeddings,
        max_new_tokens=1,
        is_chat_model=True,
        generate_kwargs={"do_sample": False},
    )


# Both -------------------------------------------------------------------------------------------


def measure(workload: str, arms: Mapping[str, Ask], turns: int) -> FirstTokens:
    """Ask in turn; a turn before all others, which does not count, encodes the texts."""
    found = rotate({name: _timed(ask) for name, ask in arms.items()}, turns + 1)
    return FirstTokens(workload, {name: each[1:] for name, each in found.items()})


def _timed(ask: Ask) -> Callable[[int], First]:
    def first(turn: int) -> First:
        query = f"{turn}: What do all of these passages say?"
        started = time.perf_counter()
        answer = ask(query)
        return First(time.perf_counter() - started, answer)

    return first
