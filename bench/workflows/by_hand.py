"""The same programs by a careful user of the same framework: async, batched, side by side."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph
from llama_index.core import Document as LlamaDocument
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import QueryBundle

from bench.workflows import plain
from bench.workflows.parts import TOP_K, Parts, Request
from bench.workflows.plain import PARTS, State, note, numbered
from rag_accel.workflows import prompts
from rag_accel.workflows.steps import Questions


def one_shot(parts: Parts) -> Any:
    """Return the chain, for asynchronous calls: nothing in it can run beside anything else."""
    return plain.one_shot(replace(parts, chat=parts.async_chat))


def recomp(parts: Parts) -> Any:
    """Return the chain, for asynchronous calls."""
    return plain.recomp(replace(parts, chat=parts.async_chat))


def asking(parts: Parts, template: str) -> Any:
    """Return the chain of a prompt, the model and its text, for asynchronous calls."""
    return plain.asking(replace(parts, chat=parts.async_chat), template)


async def uploaded(parts: Parts, document: str, question: str) -> list[Any]:
    """Return the passages of a document; it and the question are embedded at the same time."""
    chunks = plain.SPLITTER.split_text(document)
    store, vector = await asyncio.gather(
        InMemoryVectorStore.afrom_texts(chunks, parts.embeddings),
        parts.embeddings.aembed_query(question),
    )
    return await store.asimilarity_search_by_vector(vector, k=TOP_K)


def stuff(parts: Parts) -> Any:
    """Return the chain over an asynchronous upload."""

    async def values(given: Request) -> dict[str, str]:
        docs = await uploaded(parts, given.document, given.question)
        return {"docs": numbered(docs), "input": given.question}

    return RunnableLambda(values) | asking(parts, prompts.ANSWER)


def multistep(parts: Parts) -> Any:
    """Return a graph that searches and answers all simpler questions at once."""
    retriever, plan = parts.retriever, asking(parts, plain.DECOMPOSE)
    step, combine = asking(parts, prompts.ANSWER_STEP), asking(parts, prompts.ANSWER_FROM_NOTES)

    async def decompose(state: State) -> State:
        written = await plan.ainvoke({"input": state["question"]})
        return {"questions": Questions(PARTS)(written, state["question"])}

    async def steps(state: State) -> State:
        questions = list(state["questions"])
        found = await retriever.abatch(questions)
        values = [
            {"docs": numbered(docs), "question": question}
            for docs, question in zip(found, questions, strict=True)
        ]
        return {"notes": list(map(note, questions, await step.abatch(values)))}

    async def answer(state: State) -> State:
        notes = "\n".join(state["notes"])
        return {"answer": await combine.ainvoke({"notes": notes, "input": state["question"]})}

    graph: Any = StateGraph(State)
    graph.add_sequence([decompose, steps, ("respond", answer)])
    return graph.add_edge(START, "decompose").add_edge("respond", END).compile()


def iterative(parts: Parts) -> Any:
    """Return the loop with asynchronous nodes: each round needs the one before."""
    retriever, chain = parts.retriever, asking(parts, prompts.ANSWER)

    async def search(state: State) -> State:
        return {"passages": await retriever.ainvoke(plain.probe(state))}

    async def answer(state: State) -> State:
        values = {"docs": numbered(state["passages"]), "input": state["question"]}
        return {"answer": await chain.ainvoke(values), "rounds": state.get("rounds", 0) + 1}

    return plain.rounds_of(search, answer)


def tree(parts: Parts) -> Any:
    """Return a graph that answers from all passages at once."""
    leaf, combine = asking(parts, prompts.ANSWER_PASSAGE), asking(parts, prompts.COMBINE)

    async def upload(state: State) -> State:
        return {"passages": await uploaded(parts, state["document"], state["question"])}

    async def leaves(state: State) -> State:
        return {"notes": await leaf.abatch(plain.leaf_values(state))}

    async def join(state: State) -> State:
        partials = "\n\n".join(state["notes"])
        return {"answer": await combine.ainvoke({"partials": partials, "input": state["question"]})}

    graph: Any = StateGraph(State)
    graph.add_sequence([upload, leaves, join]).add_edge(START, "upload").add_edge("join", END)
    return graph.compile()


def refine(parts: Parts) -> Any:
    """Return the function: it embeds the question and all chunks at the same time."""

    async def answer(request: Request) -> str:
        nodes = plain.SENTENCES.get_nodes_from_documents([LlamaDocument(text=request.document)])
        vectors, vector = await asyncio.gather(
            parts.embedding.aget_text_embedding_batch([one.text for one in nodes]),
            parts.embedding.aget_query_embedding(request.question),
        )
        for node, embedding in zip(nodes, vectors, strict=True):
            node.embedding = np.asarray(embedding).tolist()
        index = VectorStoreIndex(nodes, embed_model=parts.embedding)
        engine = plain.refining(index, parts)
        return str(await engine.aquery(QueryBundle(request.question, embedding=vector)))

    return answer
