"""Serve the requests of a trace in three ways, over one emulated device and one set of vectors.

- ``LangChainSystem`` (``langchain_system``): LangChain's prompts, chat model, parser and FAISS
  store, all awaited; the store searches in the loop's default executor, one thread a call.
- ``StagedSystem``: a simple serving baseline of ours: one retrieval thread puts what waits, at most
  ``MAX_BATCH`` searches, into one FAISS call on all cores; the model is called asynchronously,
  without LangChain. It searches any FAISS index, so also FAISS's own 8-bit lists with refine.
- ``RagAccelSystem``: the ``Server`` with the workflows as graphs.

Vectors of queries come from a table in all three: embedding is measured elsewhere.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.corpus import Floats
from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from bench.research.mixed.index_files import LargeIndex
from bench.research.mixed.programs import PROGRAMS, TOP_K, Answer, graphs
from bench.research.mixed.trace import Request
from rag_accel.engine_api import Document, GenerationInput, Message
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.engines.retrieval import RetrievalEngine
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.requests.prompts import as_text
from rag_accel.server import Server
from rag_accel.system.processor import usable_cores

MOST_LIVE = 1_000_000
"""Past its limit a system's queue grows with the window: the baselines turn nobody away either."""

MAX_BATCH = 16
"""Without a bound a grown queue makes every batch slow, and all in it wait for the last."""

QueryVectors = Mapping[str, Floats]


class System(Protocol):
    """A system that serves requests.

    Attributes:
        name: how results name it.
    """

    name: str

    async def serve(self, request: Request) -> Answer:
        """Serve one request; cancelling the task ends it."""
        ...

    def close(self) -> None:
        """Stop all threads."""
        ...


class StagedSystem:
    """A system that searches what waits in batched FAISS calls and generates asynchronously.

    Args:
        name: how results name it.
        index: gives the texts.
        faiss_index: what is searched; its ``parallel_mode`` should be 1.
        vectors: of all queries.
        device: generates.
    """

    def __init__(
        self,
        name: str,
        index: LargeIndex,
        faiss_index: Any,
        vectors: QueryVectors,
        device: EmulatedDevice,
    ) -> None:
        self.name = name
        self._index = index
        self._faiss_index = faiss_index
        self._vectors = vectors
        self._device = device
        self._waiting: queue.SimpleQueue[tuple[Floats, asyncio.Future[list[int]]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def serve(self, request: Request) -> Answer:
        """Run the request's program."""
        return await PROGRAMS[request.workflow](self, request.question)

    async def search(self, query: str) -> Sequence[Document]:
        """Queue a search and wait for it."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.put((self._vectors[query], future))
        return [Document(str(label), self._index.text(label)) for label in await future]

    async def generate(self, template: str, values: Mapping[str, str]) -> str:
        """Fill the template and ask the device."""
        prompt = template.format(**{name: as_text(value) for name, value in values.items()})
        output = await self._device.agenerate(GenerationInput((Message("user", prompt),)))
        return output.text

    def close(self) -> None:
        """Stop the retrieval thread."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        with thread_count(usable_cores()):
            self._search_all_that_waits()

    def _search_all_that_waits(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while len(batch) < MAX_BATCH and not self._waiting.empty():
                other = self._waiting.get()
                if other is None:
                    return
                batch.append(other)
            queries = np.stack([vector for vector, _ in batch])
            labels = self._faiss_index.search(queries, TOP_K)[1].tolist()
            loop = batch[0][1].get_loop()
            loop.call_soon_threadsafe(_deliver, [future for _, future in batch], labels)


class RagAccelSystem:
    """The workflows as graphs on a ``Server``; nothing is shared among equal calls."""

    def __init__(self, index: LargeIndex, vectors: QueryVectors, device: EmulatedDevice) -> None:
        self.name = "ours"
        self._graphs = {workflow: graph.freeze() for workflow, graph in graphs().items()}
        engine = RetrievalEngine(index.documents)
        engine.make_codes()  # as the lists of others, before the first request
        self._server = Server(
            llm=EmulatedEngine(device),
            embedder=CallableEmbeddingEngine(
                lambda texts: [vectors[text] for text in texts],
                dimension=index.size.dimension,
                max_threads=0,
                pure=True,
            ),
            index=engine,
            single_flight=False,
            max_requests=MOST_LIVE,
        )

    async def serve(self, request: Request) -> Answer:
        """Start the request and wait for its result."""
        graph = self._graphs[request.workflow]
        served = self._server.add_request(
            request.question, graph, program=request.workflow, outputs=("answer", "docs")
        )
        try:
            found = await self._server.aresult(served)
        except asyncio.CancelledError:
            self._server.cancel(served)
            raise
        return Answer(found["answer"], tuple(one.document.id for one in found["docs"]))

    def close(self) -> None:
        """Stop the server."""
        self._server.close()


def _deliver(futures: Sequence[asyncio.Future[list[int]]], labels: Sequence[list[int]]) -> None:
    for future, found in zip(futures, labels, strict=True):
        if not future.done():
            future.set_result([label for label in found if label >= 0])
