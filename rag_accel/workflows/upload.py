"""Uploads: documents cut into chunks, and their ingestion into an index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.workflows.steps import require_count

Ingest = Callable[[Sequence[Document]], Any]
"""Take chunks so that later searches find them; its result is dropped. May be async."""


class Index(Protocol):
    """A store of chunks, such as a ``DocumentIndex``."""

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
    """Return a function that embeds chunks and adds them to an index.

    Args:
        index: such as the ``DocumentIndex`` that the accelerator searches.
        embed: returns ``vectors: [len(texts), dim], float32``, as the embedder of the queries does.
    """
    return _IndexIngest(index, embed)


def _document(uploaded: object) -> Document:
    if isinstance(uploaded, Document):
        return uploaded
    if isinstance(uploaded, str):
        digest = hashlib.blake2b(uploaded.encode(errors="surrogatepass"), digest_size=8)
        return Document(f"upload-{digest.hexdigest()}", uploaded)
    raise DocumentError(
        "this cannot be uploaded", found=type(uploaded).__name__, valid="a Document or a text"
    )
