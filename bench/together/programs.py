"""Four programs as users write them, plainly and with every mechanism on.

Plain and accelerated are the same objects of the frameworks; accelerated ones are wrapped by
``accelerate``. A ``RAGraph`` has no plain form: its opponent is the function one would write, over
sentence-transformers, a matrix of vectors, a graph of this library and ``generate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document as ChainDocument
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_huggingface import ChatHuggingFace, HuggingFaceEmbeddings, HuggingFacePipeline
from langgraph.graph import END as LAST
from langgraph.graph import START as FIRST
from langgraph.graph import StateGraph
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.huggingface import HuggingFaceLLM

import langchain_rag_accel
import llama_index_rag_accel
from bench.embedding.reranking import LateInteraction
from bench.graph.pruning import FAN_OUT, MAX_PATHS, PathQuery, candidates
from bench.together.material import QUESTION, SYSTEM, Asked, Material
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Document
from rag_accel.engines import (
    DocumentIndex,
    IndexSpec,
    LocalLLM,
    RerankEngine,
    SentenceTransformerEngine,
)
from rag_accel.engines.retrieval.vectors.vectors import load_faiss
from rag_accel.graph import END, START, RAGraph
from rag_accel.requests.prompts import as_text

#: documents found, those kept by the reranker, and paths of the graph
FOUND, KEPT, FACTS, HOPS = 6, 3, 4, 1
LCEL, AGENT, QUERY_ENGINE, RAGRAPH = "LCEL chain", "LangGraph agent", "query engine", "RAGraph"
#: those of frameworks
PROGRAMS = (LCEL, AGENT, QUERY_ENGINE)

Ask = Callable[[Asked], str]
Program = tuple[Ask, Ask]
"""Answers a question plainly, and accelerated."""


@dataclass(frozen=True, slots=True)
class Written:
    """A program as its user wrote it, of objects of its framework alone.

    Args:
        program: which any integration accelerates unchanged.
        answer: asks the program, or the accelerated one, by the same code.
        verbs: the integration's module.
    """

    program: Any
    answer: Callable[[Any, Asked], str]
    verbs: Any

    @property
    def plain(self) -> Ask:
        """Return what asks it as it is."""
        return partial(self.answer, self.program)

    def accelerated(self, accelerator: Accelerator, is_prepared: bool = False) -> Ask:
        """Return what asks it through an accelerator; prepared, all its members are there."""
        fast = self.verbs.accelerate(self.program, accelerator=accelerator)
        if is_prepared:
            self.verbs.prepare(fast)
        return partial(self.answer, fast)


@dataclass(frozen=True, slots=True)
class Arm:
    """A program, called as a chain is."""

    ask: Callable[[Any], str]

    def invoke(self, asked: Any) -> str:
        """Return the answer."""
        return self.ask(asked)


def programs(material: Material, accelerator: Accelerator, tokens: int) -> Mapping[str, Program]:
    """Return all programs.

    Args:
        material: what they are made of; each framework's objects hold the same language model.
        accelerator: runs the accelerated ones; the engines of the ``RAGraph`` are added to it.
        tokens: most tokens of an answer.
    """
    written = written_programs(material, tokens).items()
    ours = {name: (one.plain, one.accelerated(accelerator)) for name, one in written}
    return {**ours, RAGRAPH: _ragraph(material, accelerator, tokens)}


def written_programs(material: Material, tokens: int) -> Mapping[str, Written]:
    """Return the programs of frameworks, as users write them."""
    pipeline, store = _pipeline(material, tokens), _store(material)
    made = _lcel(material, pipeline, store), _agent(material, pipeline, store)
    return dict(zip(PROGRAMS, (*made, _query_engine(material, tokens)), strict=True))


# LangChain and LangGraph -------------------------------------------------------------------------

_PROMPT = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", QUESTION)])


def _pipeline(material: Material, tokens: int) -> HuggingFacePipeline:
    from transformers import pipeline

    made = pipeline(
        "text-generation",
        model=material.model,
        tokenizer=material.tokenizer,
        max_new_tokens=tokens,
        do_sample=False,
        return_full_text=False,
    )
    return HuggingFacePipeline(pipeline=made)


def _store(material: Material) -> FAISS:
    index = load_faiss().IndexFlatIP(material.vectors.shape[1])
    index.add(material.vectors)
    names = [str(number) for number in range(len(material.texts))]
    documents = {name: ChainDocument(material.texts[int(name)], id=name) for name in names}
    embeddings = HuggingFaceEmbeddings(
        model_name=material.embedder, encode_kwargs={"normalize_embeddings": True}
    )
    return FAISS(embeddings, index, InMemoryDocstore(documents), dict(enumerate(names)))


def _joined(documents: Sequence[ChainDocument]) -> str:
    return "\n\n".join(one.page_content for one in documents)


def _lcel(material: Material, pipeline: HuggingFacePipeline, store: FAISS) -> Written:
    chat = ChatHuggingFace(llm=pipeline, model_id=material.folder)
    retriever = store.as_retriever(search_kwargs={"k": KEPT})
    context = retriever | _joined
    chain = (
        {"context": context, "question": RunnablePassthrough()} | _PROMPT | chat | StrOutputParser()
    )
    return Written(chain, lambda chain, asked: chain.invoke(asked.text), langchain_rag_accel)


class _State(TypedDict):
    question: str
    query: str
    passages: list[str]
    answer: str
    turns: int


def _agent(material: Material, pipeline: HuggingFacePipeline, store: FAISS) -> Written:
    """Return a loop: search, answer, and once more with the answer as the query."""
    chat = ChatHuggingFace(llm=pipeline, model_id=material.folder)

    def search(state: _State) -> Any:
        found = store.similarity_search(state["query"], k=KEPT)
        known = dict.fromkeys([*(one.page_content for one in found), *state["passages"]])
        return {"passages": list(known)[:KEPT]}

    def answer(state: _State) -> Any:
        context = "\n\n".join(state["passages"])
        messages = _PROMPT.invoke({"context": context, "question": state["question"]})
        said = str(chat.invoke(messages).content)
        return {"answer": said, "query": f"{state['question']} {said}", "turns": state["turns"] + 1}

    def again(state: _State) -> str:
        return "search" if state["turns"] < 2 else LAST

    made: Any = StateGraph(_State)
    made.add_node("search", search)
    made.add_node("answer", answer)
    made.add_edge(FIRST, "search")
    made.add_edge("search", "answer")
    made.add_conditional_edges("answer", again, ["search", LAST])

    def ask(graph: Any, asked: Asked) -> str:
        state = {"question": asked.text, "query": asked.text, "passages": [], "turns": 0}
        return graph.invoke(state)["answer"]

    return Written(made.compile(), ask, langchain_rag_accel)


# LlamaIndex --------------------------------------------------------------------------------------


def _query_engine(material: Material, tokens: int) -> Written:
    embedding = HuggingFaceEmbedding(model_name=material.embedder, device="cpu")
    nodes = [
        TextNode(id_=str(number), text=text, embedding=vector)
        for number, (text, vector) in enumerate(
            zip(material.texts, material.vectors.tolist(), strict=True)
        )
    ]
    llm = HuggingFaceLLM(
        model=material.model,
        tokenizer=material.tokenizer,
        context_window=material.model.config.max_position_embeddings,
        max_new_tokens=tokens,
        is_chat_model=True,
        generate_kwargs={"do_sample": False},
    )
    index = VectorStoreIndex(nodes, embed_model=embedding)
    engine = index.as_query_engine(llm=llm, similarity_top_k=KEPT)
    return Written(
        engine, lambda engine, asked: str(engine.query(asked.text)), llama_index_rag_accel
    )


# A RAGraph and the function it stands for --------------------------------------------------------


def workflow(tokens: int) -> RAGraph:
    """Return the graph: two retrievals, a reranking of the documents, an answer of all of it."""
    graph = RAGraph(("input", "entities"))
    graph.add_retrieval("search", top_k=FOUND, output="found")
    graph.add_graph_retrieval(
        "facts",
        keywords="entities",
        seeds=1,
        hops=HOPS,
        top_k=FACTS,
        fan_out=FAN_OUT,
        max_paths=MAX_PATHS,
    )
    graph.add_rerank("best", documents="found", top_n=KEPT, output="docs")
    prompt = filled(context="{docs}\n\n{facts}", question="{input}")
    graph.add_generation("answer", prompt, system=SYSTEM, max_tokens=tokens)
    graph.add_edge(START, "search").add_edge("search", "best").add_edge(START, "facts")
    return graph.add_edge(["best", "facts"], "answer").add_edge("answer", END)


def filled(context: str, question: str) -> str:
    """Return a prompt, or a template of one."""
    return QUESTION.replace("{context}", context).replace("{question}", question)


def _ragraph(material: Material, accelerator: Accelerator, tokens: int) -> Program:
    index = DocumentIndex(IndexSpec(material.vectors.shape[1]))
    documents = [Document(str(place), text) for place, text in enumerate(material.texts)]
    index.add(documents, material.vectors)
    for name, engine in {
        "llm": LocalLLM(material.model, material.tokenizer),
        "embedder": SentenceTransformerEngine(material.encoder),
        "index": index,
        "reranker": RerankEngine(),
        "graph": material.graph,
    }.items():
        accelerator.add_engine(name, engine)
    compiled = accelerator.compile(workflow(tokens))

    def ask(asked: Asked) -> str:
        return compiled.run(input=asked.text, entities=[asked.entity])

    return partial(plain_answer, material, tokens), ask


def plain_answer(material: Material, tokens: int, asked: Asked) -> str:
    """Return the answer of the function that the graph stands for."""
    (vector,) = material.embed([asked.text])
    near: list[int] = np.argsort(-(material.vectors @ vector), kind="stable")[:FOUND].tolist()
    found = [Document(str(place), material.texts[place]) for place in near]
    ranked = LateInteraction(material.encoder, [[one.text for one in found]])
    best = [found[place] for place, _ in ranked.invoke(f"0 {asked.text}")[:KEPT]]
    paths = candidates(material.graph, PathQuery(asked.text, (asked.entity,)), HOPS)
    order = np.argsort(-(material.embed(paths) @ vector), kind="stable")[:FACTS].tolist()
    facts = [Document(str(place), paths[place]) for place in order]
    context = f"{as_text(best)}\n\n{as_text(facts)}"
    return generated(material, filled(context, asked.text), tokens)


def generated(material: Material, prompt: str, tokens: int) -> str:
    """Return the answer to a prompt by ``generate``."""
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    given = material.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = material.model.generate(**given, max_new_tokens=tokens, do_sample=False)
    size = given["input_ids"].shape[1]
    return material.tokenizer.decode(made[0, size:], skip_special_tokens=True)
