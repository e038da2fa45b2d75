"""A fake but deterministic result for every payload of ``engine_api``.

Equal payloads give equal results in any process; nothing is looked up, learned or drawn.
"""

from __future__ import annotations

import hashlib
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import (
    Document,
    GenerationInput,
    GenerationOutput,
    IngestBatch,
    RerankBatch,
    ScoredDocument,
    SearchQuery,
    TextBatch,
)

DIM = 8
"""Dimension of the fake vectors."""


@singledispatch
def compute(payload: Any) -> Any:
    """Return the result of a payload, of the type ``engine_api`` promises; others come back as is.

    Texts are turned into unit vectors of dimension ``DIM`` that depend on the text alone; a search
    finds ``k`` made-up documents that depend on the query alone; reranking counts shared words; an
    ingestion returns its documents' ids; a generation repeats the last message.
    """
    return payload


def vector_of(text: str) -> NDArray[np.float32]:
    """Return the unit vector of a text: ``[DIM], float32``."""
    data = text.encode(errors="surrogatepass")
    numbers = np.frombuffer(_digest(data, DIM * 2), dtype="<i2").astype(np.float32)
    return numbers / max(float(np.linalg.norm(numbers)), 1.0)


@compute.register
def _(payload: TextBatch) -> NDArray[np.float32]:
    vectors = [vector_of(text) for text in payload.texts]
    return np.stack(vectors) if vectors else np.zeros((0, DIM), np.float32)


@compute.register
def _(payload: SearchQuery) -> tuple[ScoredDocument, ...]:
    vector = np.ascontiguousarray(payload.vector, dtype="<f4")
    narrowed = repr(sorted(payload.where.items())) if payload.where else ""
    name = _digest(vector.tobytes() + narrowed.encode(), 4).hex()
    return tuple(
        ScoredDocument(Document(f"{name}-{rank}", f"text {rank} near {name}"), 1.0 / (1 + rank))
        for rank in range(payload.k)
    )


@compute.register
def _(payload: RerankBatch) -> tuple[ScoredDocument, ...]:
    words = set(payload.query.lower().split())
    scored = [
        ScoredDocument(document, float(len(words & set(document.text.lower().split()))))
        for document in payload.documents
    ]
    scored.sort(key=lambda hit: -hit.score)
    return tuple(scored[: payload.top_n])


@compute.register
def _(payload: IngestBatch) -> tuple[str, ...]:
    return tuple(document.id for document in payload.documents)


@compute.register
def _(payload: GenerationInput) -> GenerationOutput:
    last = payload.messages[-1].content if payload.messages else ""
    text = f"reply to: {last}"
    read = sum(len(message.content.split()) for message in payload.messages)
    return GenerationOutput(text, prompt_tokens=read, completion_tokens=len(text.split()))


def _digest(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()
