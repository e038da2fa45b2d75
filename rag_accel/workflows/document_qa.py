"""Question answering over uploaded documents (Teola section 7, Figures 2c and 2d).

What the graph cannot express, and how it is done instead:

- A Retrieval waits as a whole, so the question is embedded only when the upload has ended.
- A filter of a Retrieval is part of the graph, not of a request: uploads join the index that all
  requests search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts, steps
from rag_accel.workflows.history import started, with_history
from rag_accel.workflows.steps import require_count
from rag_accel.workflows.synthesis import Synthesis, SynthesisMode, add_synthesis

# Cut uploaded documents into chunks and hand them to an index.

Ingest = Callable[[Sequence[Document]], Any]
"""Take chunks so that later searches find them; what it returns is dropped. May be async."""


class Index(Protocol):
    """What chunks are added to, such as a ``DocumentIndex``."""

    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Take documents with one vector each."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """A function that cuts documents into chunks of ``chunk_words`` words.

    Chunks overlap by ``overlap_words``. A text that fits into one chunk stays as it is. A chunk's
    id is its document's with ``#1``, ``#2``, ... and its metadata the document's with ``document``
    and ``chunk``. A text without an id gets one from its content, so that uploading it again
    replaces it.

    Differs: Teola (section 7) counts tokens; words need no tokenizer.

    Raises:
        ConfigError: if the bounds leave no way forward.
    """

    chunk_words: int = 256
    overlap_words: int = 30
    __name__: ClassVar[str] = "chunks"

    def __post_init__(self) -> None:
        require_count("chunk_words", self.chunk_words)
        require_count("overlap_words", self.overlap_words, low=0)
        if self.overlap_words >= self.chunk_words:
            raise ConfigError(
                "chunks overlap wholly",
                where="overlap_words",
                found=self.overlap_words,
                valid=f"below chunk_words, {self.chunk_words}",
            )

    def __call__(self, documents: Sequence[Document | str]) -> tuple[Document, ...]:
        """Return the chunks of all documents in order.

        Raises:
            DocumentError: if something is neither a document nor a text.
        """
        if isinstance(documents, str | Document):
            documents = (documents,)
        return tuple(chunk for document in documents for chunk in self._chunks(_document(document)))

    def _chunks(self, document: Document) -> Iterator[Document]:
        for number, text in enumerate(self._texts(document.text), start=1):
            metadata = {**document.metadata, "document": document.id, "chunk": number}
            yield Document(f"{document.id}#{number}", text, metadata)

    def _texts(self, text: str) -> Iterator[str]:
        words = text.split()
        if len(words) <= self.chunk_words:
            if words:
                yield text
            return
        forward = self.chunk_words - self.overlap_words
        # The last chunk begins where the one before has not reached the end.
        for begin in range(0, len(words) - self.overlap_words, forward):
            yield " ".join(words[begin : begin + self.chunk_words])


@dataclass(frozen=True, slots=True)
class _IndexIngest:
    index: Index
    embed: Callable[[list[str]], Any]
    __name__: ClassVar[str] = "ingest"

    def __call__(self, chunks: Sequence[Document]) -> int:
        if chunks:
            self.index.add(chunks, self.embed([chunk.text for chunk in chunks]))
        return len(chunks)


def ingest_into(index: Index, embed: Callable[[list[str]], Any]) -> Ingest:
    """Return what embeds chunks and adds them to an index.

    Args:
        index: such as the ``DocumentIndex`` that the accelerator searches.
        embed: returns ``vectors: [len(texts), dim], float32``, as the embedder of the queries does.
    """
    return _IndexIngest(index, embed)


def _document(one: object) -> Document:
    if isinstance(one, Document):
        return one
    if isinstance(one, str):
        digest = hashlib.blake2b(one.encode(errors="surrogatepass"), digest_size=8)
        return Document(f"upload-{digest.hexdigest()}", one)
    raise DocumentError(
        "this cannot be uploaded", found=type(one).__name__, valid="a Document or a text"
    )


def naive_document_qa(
    ingest: Ingest | bool | None = None,
    *,
    upload: Upload | None = None,
    top_k: int = 3,
    synthesis: SynthesisMode | Synthesis = "tree",
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return document QA with naive RAG: upload, search, synthesise (Teola section 7, Figure 2c).

    With ``ingest`` a request brings a second input, ``documents``: a list of ``Document`` or text.

    Args:
        ingest: true lets ``embedder`` embed the chunks and ``index`` take them, in steps that all
            requests share; or a callable that takes them, see ``ingest_into``, for an index that is
            not ours. Without it nothing is uploaded.
        upload: how documents are cut; by default 256 words that overlap by 30.
        top_k: documents to find.
        synthesis: how the answer is made of them: ``stuff``, ``tree`` or ``refine``, or a
            ``Synthesis`` with prompts of your own.
        max_tokens: most tokens of each generation.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.
    """
    graph, _, before = _uploading(ingest, upload, history, index, embedder)
    graph.add_retrieval("search", top_k=top_k, output="docs", engine=index, embedder=embedder)
    graph.add_edge(before, "search")
    return add_synthesis(
        graph,
        "search",
        synthesis,
        width=top_k,
        llm=llm,
        max_tokens=max_tokens,
        history=history,
    )


def advanced_document_qa(
    ingest: Ingest | bool | None = None,
    *,
    upload: Upload | None = None,
    expand_prompt: str = prompts.EXPAND,
    num_queries: int = 3,
    top_k: int = 16,
    top_n: int = 3,
    synthesis: SynthesisMode | Synthesis = "refine",
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    expander: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
    reranker: str = "reranker",
) -> RAGraph:
    """Return document QA with advanced RAG (Teola section 7, Figure 2d).

    The question is expanded to several queries while the upload runs; each is searched on its own,
    what they find is reranked together, and the best of it is synthesised.

    With ``ingest`` a request brings a second input, ``documents``: a list of ``Document`` or text.

    Args:
        ingest: true lets ``embedder`` embed the chunks and ``index`` take them, in steps that all
            requests share; or a callable that takes them, see ``ingest_into``, for an index that is
            not ours. Without it nothing is uploaded.
        upload: how documents are cut; by default 256 words that overlap by 30.
        expand_prompt: of ``input``; the queries come one a line, or as a list in JSON. ``{count}``
            in it is replaced by ``num_queries``. Further queries are left out, and the question
            itself stands in for those that are missing. On an engine that gives its text piece by
            piece each query is searched as soon as it is written.
        num_queries: queries to search.
        top_k: documents to find for each query.
        top_n: documents that the reranker keeps of all.
        synthesis: how the answer is made of them, as in ``naive_document_qa``.
        max_tokens: most tokens of each generation.
        history: as in ``one_shot``.
        llm, index, embedder, reranker: names of engines.
        expander: the engine that expands the question; by default ``llm``.

    Raises:
        ConfigError: if ``num_queries`` or ``top_n`` is below 1.
    """
    steps.require_count("num_queries", num_queries)
    steps.require_count("top_n", top_n)
    graph, start, before = _uploading(ingest, upload, history, index, embedder)
    prompt = with_history(expand_prompt.replace("{count}", str(num_queries)), history)
    graph.add_generation("expand", prompt=prompt, output="expansion", engine=expander or llm)
    graph.add_function("queries", steps.Queries(num_queries), inputs=["expansion", "input"])
    graph.add_edge(start, "expand").add_edge("expand", "queries")
    searches = [f"search{number}" for number in range(1, num_queries + 1)]
    for place, search in enumerate(searches):
        query, found = f"query{place + 1}", f"found{place + 1}"
        graph.add_function(query, steps.Nth(place), inputs="queries")
        graph.add_retrieval(
            search, query=query, top_k=top_k, output=found, engine=index, embedder=embedder
        )
        graph.add_edge("queries", query).add_edge(query, search)
        if before != start:
            graph.add_edge(before, search)
    found = [f"found{number}" for number in range(1, num_queries + 1)]
    graph.add_function("merge", steps.merged, inputs=found, output="found")
    graph.add_rerank("rerank", documents="found", top_n=top_n, output="docs", engine=reranker)
    graph.add_edge(searches, "merge").add_edge("merge", "rerank")
    return add_synthesis(
        graph,
        "rerank",
        synthesis,
        width=top_n,
        llm=llm,
        max_tokens=max_tokens,
        history=history,
    )


def _uploading(
    ingest: Ingest | bool | None, upload: Upload | None, history: bool, index: str, embedder: str
) -> tuple[RAGraph, str, str]:
    """Return a graph that uploads, its first stage and that after which uploads can be found."""
    if ingest is None or ingest is False:
        graph, start = started(history)
        return graph, start, start
    graph, start = started(history, "documents")
    graph.add_function("chunk", upload or Upload(), inputs="documents", output="chunks")
    if ingest is True:
        graph.add_ingestion(
            "ingest", documents="chunks", output="ingested", engine=index, embedder=embedder
        )
    else:
        graph.add_function("ingest", ingest, inputs="chunks", output="ingested")
    graph.add_edge(start, "chunk").add_edge("chunk", "ingest")
    return graph, start, "ingest"
