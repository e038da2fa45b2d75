"""A staged server, the simplest that serves RAG: one queue and one thread a stage.

What waits at a stage, at most ``MAX_BATCH``, is embedded or searched together; FAISS shares the
clusters of a query among all cores (parallel mode 1). A model of this process answers in its own
stage, one prompt after the other; a server is asked at once, on the loop, and batches by itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from bench.workflows import plain
from bench.workflows.parts import TOP_K, Parts, Request
from bench.workflows.plain import note, numbered
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.system.processor import usable_cores
from rag_accel.workflows import prompts
from rag_accel.workflows.steps import Questions, joined

MAX_BATCH = 16


class Stage:
    """A queue and the thread that empties it."""

    def __init__(self, work: Callable[[list[Any]], Sequence[Any]], at_once: int) -> None:
        self._work, self._at_once = work, at_once
        self._waiting: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def __call__(self, item: Any) -> Any:
        """Queue an item and wait for what becomes of it."""
        future: Future[Any] = Future()
        self._waiting.put((item, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the thread, after what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        with thread_count(usable_cores()):
            while (first := self._waiting.get()) is not None:
                batch = [first]
                while len(batch) < self._at_once and not self._waiting.empty():
                    if (other := self._waiting.get()) is None:
                        return
                    batch.append(other)
                self._answer(batch)

    def _answer(self, batch: list[tuple[Any, Future[Any]]]) -> None:
        try:
            results = self._work([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class Staged:
    """The stages of all programs.

    Args:
        parts: the models and the corpus.
        is_local: whether the language model computes in this process.
        is_coded: whether to search FAISS's 8-bit lists with refinement.
    """

    def __init__(self, parts: Parts, is_local: bool, is_coded: bool) -> None:
        self._parts = parts
        self._index = parts.corpus.coded() if is_coded else parts.corpus.faiss(parallel_mode=1)
        self._embedding = Stage(self._embed, MAX_BATCH)
        self._searching = Stage(self._search, MAX_BATCH)
        self._generating = Stage(lambda asked: [parts.chat.invoke(one) for one in asked], 1)
        self._generate = self._generating if is_local else parts.chat.ainvoke

    async def search(self, query: str) -> list[str]:
        """Return the texts nearest to a query."""
        return await self._searching((await self._embedding([query]))[0])

    async def upload(self, chunks: list[str], question: str) -> list[str]:
        """Return the chunks nearest to a question; no other request sees them."""
        vectors = await self._embedding([*chunks, question])
        scores = vectors[:-1] @ vectors[-1]
        return [chunks[place] for place in np.argsort(-scores, kind="stable")[:TOP_K]]

    async def ask(self, template: str, **values: str) -> str:
        """Return what the model says to a filled template."""
        return str((await self._generate([("human", template.format(**values))])).content)

    def close(self) -> None:
        """End all threads."""
        for stage in (self._embedding, self._searching, self._generating):
            stage.close()

    def _embed(self, asked: list[list[str]]) -> list[Any]:
        texts = [text for each in asked for text in each]
        vectors = np.asarray(self._parts.embeddings.embed_documents(texts), np.float32)
        return np.split(vectors, np.cumsum([len(each) for each in asked])[:-1])

    def _search(self, vectors: list[Any]) -> list[list[str]]:
        found = self._index.search(np.stack(vectors), TOP_K)[1].tolist()
        return [[self._parts.corpus.text(place) for place in places] for places in found]


async def _one_shot(stages: Staged, request: Request) -> str:
    docs = numbered(await stages.search(request.question))
    return await stages.ask(prompts.ANSWER, docs=docs, input=request.question)


async def _hyde(stages: Staged, request: Request) -> str:
    passage = await stages.ask(prompts.HYPOTHESIS, input=request.question)
    docs = numbered(await stages.search(passage))
    return await stages.ask(prompts.ANSWER, docs=docs, input=request.question)


async def _recomp(stages: Staged, request: Request) -> str:
    docs, question = numbered(await stages.search(request.question)), request.question
    summary = await stages.ask(prompts.COMPRESS, docs=docs, input=question)
    return await stages.ask(prompts.ANSWER_FROM_SUMMARY, summary=summary, input=question)


async def _multistep(stages: Staged, request: Request) -> str:
    plan = await stages.ask(plain.DECOMPOSE, input=request.question)
    notes: list[str] = []
    for question in Questions(plain.PARTS)(plan, request.question):
        docs = numbered(await stages.search(question))
        reply = await stages.ask(prompts.ANSWER_STEP, docs=docs, question=question)
        notes.append(note(question, reply))
    values = {"notes": "\n".join(notes), "input": request.question}
    return await stages.ask(prompts.ANSWER_FROM_NOTES, **values)


async def _iterative(stages: Staged, request: Request) -> str:
    query, answer = request.question, ""
    for _ in range(plain.ROUNDS):
        docs = numbered(await stages.search(query))
        answer = await stages.ask(prompts.ANSWER, docs=docs, input=request.question)
        query = joined(request.question, answer)
    return answer


async def _stuff(stages: Staged, request: Request) -> str:
    docs = await stages.upload(plain.SPLITTER.split_text(request.document), request.question)
    return await stages.ask(prompts.ANSWER, docs=numbered(docs), input=request.question)


async def _tree(stages: Staged, request: Request) -> str:
    docs = await stages.upload(plain.SPLITTER.split_text(request.document), request.question)
    question = request.question
    leaves = [
        stages.ask(prompts.ANSWER_PASSAGE, passage=numbered([one]), input=question) for one in docs
    ]
    partials = "\n\n".join(await asyncio.gather(*leaves))
    return await stages.ask(prompts.COMBINE, partials=partials, input=question)


async def _refine(stages: Staged, request: Request) -> str:
    chunks = plain.SENTENCES.split_text(request.document)
    first, *others = await stages.upload(chunks, request.question)
    values = {"passage": numbered([first]), "input": request.question}
    answer = await stages.ask(prompts.ANSWER_PASSAGE, **values)
    for one in others:
        values["passage"] = numbered([one])
        answer = await stages.ask(prompts.REFINE, answer=answer, **values)
    return answer


PROGRAMS: Mapping[str, Callable[[Staged, Request], Awaitable[str]]] = {
    "one_shot": _one_shot,
    "hyde": _hyde,
    "recomp": _recomp,
    "multistep": _multistep,
    "iterative": _iterative,
    "stuff": _stuff,
    "tree": _tree,
    "refine": _refine,
}
