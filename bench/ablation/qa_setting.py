"""Prepare what all arms share: documents, uploads, index, models and the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.ablation.qa_answers import Answers
from bench.emulated.device import EmulatedDevice
from bench.emulated.table import DeviceTable
from rag_accel.config import Options
from rag_accel.engine_api import Document, Engine
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.engines.rerank.engine import PairScorer
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric
from rag_accel.errors import ConfigError
from rag_accel.workflows import SynthesisMode, Upload
from rag_accel_adapters.langchain.models import EMBEDDINGS
from rag_accel_demo.material import BATCH, Material

TOP_K = 16
TOP_N = 3
#: under load: fewer passages to rerank leave the device the busier, where order can matter
LOADED_TOP_K = 4
#: distinct uploads; requests take turns
NUM_UPLOADS = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """The workflow that a request runs."""

    mode: SynthesisMode
    upload: bool


LEADING = Variant("tree", upload=True)
LOADED = Variant("tree", upload=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One question, with what its user uploads."""

    question: str
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all arms use, the very same objects.

    Args:
        questions: what is asked, one a request.
        uploads: documents of one request each.
        index: what is searched, and joined by uploads.
        embeddings: LangChain embeddings of queries and chunks.
        scorer: reranks.
        device: generates, in modelled time.
        loaded_device: does so under load, in few places at once.
    """

    questions: tuple[str, ...]
    uploads: tuple[tuple[Document, ...], ...]
    index: DocumentIndex
    embeddings: Any
    scorer: PairScorer
    device: EmulatedDevice
    loaded_device: EmulatedDevice

    def request(self, number: int) -> Request:
        """Return a request; the same number gives the same one."""
        question = self.questions[number % len(self.questions)]
        return Request(question, self.uploads[number % len(self.uploads)])

    def forget(self, request: Request) -> None:
        """Take out of the index again what a request has uploaded."""
        self.index.delete(chunk.id for chunk in Upload()(request.documents))

    def make_embedder(self) -> Engine:
        """Return a new owned engine over the embeddings' own model."""
        adopted = EMBEDDINGS.adopt(self.embeddings, type(self.embeddings))
        if adopted is not None:
            return adopted.make(Options())
        return CallableEmbeddingEngine(self.embeddings.embed_documents)


@contextmanager
def open_setting(
    material: Material,
    scorer: PairScorer,
    table: DeviceTable,
    *,
    documents: int,
    upload_words: int,
    loaded_places: int,
) -> Iterator[Setting]:
    """Index documents of the demo and start the device.

    Args:
        material: documents, questions and embeddings.
        scorer: the reranker.
        table: the device.
        documents: how many are indexed; the uploads are made of others.
        upload_words: words that a request uploads, at least.
        loaded_places: sequences the device runs at once under load.

    Raises:
        ConfigError: if there are too few documents.
    """
    indexed, rest = material.documents[:documents], material.documents[documents:]
    uploads = _uploads(rest, upload_words)
    answers = Answers(tuple(one.text for one in indexed))
    few = replace(table, max_sequences=loaded_places)
    with (
        EmulatedDevice(table, respond=answers) as device,
        EmulatedDevice(few, respond=answers) as loaded,
    ):
        index = _indexed(indexed, material.embeddings.embed_documents)
        yield Setting(
            material.questions, uploads, index, material.embeddings, scorer, device, loaded
        )


def _uploads(documents: Sequence[Document], upload_words: int) -> tuple[tuple[Document, ...], ...]:
    texts: list[str] = []
    waiting = iter(documents)
    for _ in range(NUM_UPLOADS):
        words: list[str] = []
        while len(words) < upload_words:
            document = next(waiting, None)
            if document is None:
                raise ConfigError(
                    "too few documents to upload",
                    where="ablation",
                    found=len(documents),
                    valid=f"{NUM_UPLOADS} times {upload_words} words",
                )
            words += document.text.split()
        texts.append(" ".join(words))
    return tuple((Document(f"upload-{place}", text),) for place, text in enumerate(texts))


def _indexed(documents: Sequence[Document], embed: Callable[[list[str]], Any]) -> DocumentIndex:
    vectors = np.concatenate(
        [
            np.asarray(embed([one.text for one in documents[start : start + BATCH]]), np.float32)
            for start in range(0, len(documents), BATCH)
        ]
    )
    index = DocumentIndex(IndexSpec(vectors.shape[1], Metric.INNER_PRODUCT))
    index.add(documents, vectors)
    return index
