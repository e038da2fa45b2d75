"""The work of each kind of primitive.

One row of ``WORK`` describes a kind: what an engine is asked, what a callable is called with
instead, how its answer is checked, and what is stored of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import (
    KINDS,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    HybridQuery,
    IngestBatch,
    LinkQuery,
    PrimitiveKind,
    RerankBatch,
    SearchQuery,
    TextBatch,
)
from rag_accel.errors import EngineError, EngineOutputError
from rag_accel.graph.primitives import Primitive
from rag_accel.requests.engines import (
    documents_from,
    kept_documents,
    plain_documents,
    scored,
)
from rag_accel.requests.graph_work import expand_batch, link_query, prune_batch
from rag_accel.requests.prompts import as_text, generation_input
from rag_accel.requests.values import Readable

#: roles of embeddings of any number of texts
TEXT_LISTS = frozenset({"document", "path"})


def _texts(primitive: Primitive, values: Readable) -> TextBatch:
    """Return the text of a query, or those of paths, or of documents to be found later."""
    value = values.read(primitive.inputs[0])
    role = primitive.attribute("role")
    if role == "path":
        return TextBatch(value.texts(), "document", keep=True)
    if role != "document":
        return TextBatch((as_text(value),), "query")
    documents = kept_documents(value, primitive.stage)
    return TextBatch(tuple(document.text for document in documents), "document")


def _search(primitive: Primitive, values: Readable) -> SearchQuery | LinkQuery:
    link = primitive.attribute("link")
    if link is not None:
        return link_query(link, values.read(primitive.inputs[0]), primitive.attribute("top_k"))
    where = dict(primitive.attribute("where", ())) or None
    top_k = primitive.attribute("top_k", 5)
    vector, *text = (values.read(name) for name in primitive.inputs)
    if not text:
        return SearchQuery(vector, top_k, where)
    return HybridQuery(vector, top_k, where, text=as_text(text[0]))


def _generation(primitive: Primitive, values: Readable) -> GenerationInput:
    if KINDS[primitive.kind].prefills or primitive.attribute("prompt") is not None:
        return generation_input(primitive, values.read)
    begun: GenerationInput = values.read(primitive.inputs[0])
    stop, max_tokens = primitive.attribute("stop", ()), primitive.attribute("max_tokens")
    return replace(begun, stop=stop, max_tokens=max_tokens)


def _ingestion(primitive: Primitive, values: Readable) -> IngestBatch:
    vectors, documents = (values.read(name) for name in primitive.inputs)
    kept = kept_documents(documents, primitive.stage)
    return IngestBatch(kept, vectors if kept else [])


def _ranking(primitive: Primitive, values: Readable) -> RerankBatch:
    query, documents = (values.read(name) for name in primitive.inputs)
    return RerankBatch(as_text(query), plain_documents(documents), primitive.attribute("top_n"))


def _checked_search(primitive: Primitive, values: Readable, value: Any) -> Any:
    return documents_from(value, primitive.stage)


def _checked_scores(primitive: Primitive, values: Readable, value: Any) -> Any:
    batch = _ranking(primitive, values)
    return scored(batch.documents, value, batch.top_n)


def _checked_embedding(primitive: Primitive, values: Readable, value: Any) -> NDArray[np.float32]:
    """Return what a borrowed embedder returned as vectors: ``[len(texts), dim], float32``."""
    vectors = _as_vectors(value)
    if np.issubdtype(vectors.dtype, np.number):
        vectors = vectors.astype(np.float32, copy=False)
    problem = _vectors_problem(_texts(primitive, values), vectors)
    if problem is not None:
        raise _vectors_refused(problem, primitive.stage)
    return vectors


def _stored_vectors(primitive: Primitive, value: Any) -> Any:
    vectors = np.asarray(value)
    return vectors if primitive.attribute("role") in TEXT_LISTS else vectors[0]


def _stored_text(primitive: Primitive, value: Any) -> Any:
    return value.text if isinstance(value, GenerationOutput) else value


def _prompt_argument(prompt: GenerationInput) -> tuple[Any, ...]:
    return ("\n\n".join(message.content for message in prompt.messages),)


@dataclass(frozen=True, slots=True)
class KindWork:
    """The handlers of one kind of primitive.

    Args:
        payload: returns what an owned engine is asked.
        arguments: returns what a callable is called with instead.
        checked: returns what a callable returned in the shape an engine would give.
        stored: returns what later stages read.
        problem: says what is wrong with an engine's output, if anything is.
    """

    payload: Callable[[Primitive, Readable], Any] = _generation
    arguments: Callable[[Any], tuple[Any, ...]] = _prompt_argument
    checked: Callable[[Primitive, Readable, Any], Any] = lambda primitive, values, value: value
    stored: Callable[[Primitive, Any], Any] = _stored_text
    problem: Callable[[Any, Any], str | None] | None = None


_COMPLETION = KindWork()
#: What passes and the user's code do has no payload of its own.
_NO_ENGINE = KindWork()

#: Every kind has its row.
WORK: Mapping[PrimitiveKind, KindWork] = {
    PrimitiveKind.EMBEDDING: KindWork(
        payload=_texts,
        arguments=lambda batch: (list(batch.texts),),
        checked=_checked_embedding,
        stored=_stored_vectors,
        problem=lambda batch, value: _vectors_problem(batch, _as_vectors(value)),
    ),
    PrimitiveKind.SEARCHING: KindWork(
        payload=_search,
        arguments=lambda query: (query.vector, query.k),
        checked=_checked_search,
    ),
    PrimitiveKind.RERANKING: KindWork(
        payload=_ranking,
        arguments=lambda batch: (batch.query, [document.text for document in batch.documents]),
        checked=_checked_scores,
    ),
    PrimitiveKind.INGESTION: KindWork(payload=_ingestion),
    PrimitiveKind.EXPANDING: KindWork(payload=expand_batch),
    PrimitiveKind.PRUNING: KindWork(
        payload=prune_batch,
        arguments=lambda batch: (as_text(batch.query), batch.k),
        checked=_checked_search,
    ),
    PrimitiveKind.PREFILLING: _COMPLETION,
    PrimitiveKind.PARTIAL_PREFILLING: _COMPLETION,
    PrimitiveKind.FULL_PREFILLING: _COMPLETION,
    PrimitiveKind.DECODING: _COMPLETION,
    PrimitiveKind.PARTIAL_DECODING: _NO_ENGINE,
    PrimitiveKind.CONDITION: _NO_ENGINE,
    PrimitiveKind.AGGREGATE: _NO_ENGINE,
    PrimitiveKind.FUNCTION: _NO_ENGINE,
}


def work_of(kind: PrimitiveKind) -> KindWork:
    """Return the row of a kind.

    Raises:
        EngineError: if the kind has none: its work would be asked for in the wrong words.
    """
    work = WORK.get(kind)
    if work is None:
        raise EngineError(
            "nothing says how this kind of primitive is done",
            found=str(kind),
            valid=", ".join(WORK),
            hint="a kind needs a row in rag_accel.requests.kinds.WORK",
        )
    return work


def payload(primitive: Primitive, values: Readable) -> Any:
    """Return the payload of a primitive's kind.

    Raises:
        GraphError: if a value it reads was not written.
    """
    return work_of(primitive.kind).payload(primitive, values)


def checked(primitive: Primitive, values: Readable, value: Any) -> Any:
    """Return what a borrowed call returned in the shape an owned engine would give.

    Raises:
        EngineOutputError: if it cannot be that.
    """
    return work_of(primitive.kind).checked(primitive, values, value)


def stored(primitive: Primitive, value: Any) -> Any:
    """Return a primitive's result as the value that later stages read."""
    return work_of(primitive.kind).stored(primitive, value)


def check_output(request: EngineRequest, output: EngineOutput) -> EngineOutput:
    """Return the output, or an ``error`` in its place if it cannot be right."""
    check = work_of(request.kind).problem
    if output.kind != "final" or check is None:
        return output
    problem = check(request.payload, output.value)
    if problem is None:
        return output
    return replace(output, kind="error", value=None, error=_vectors_refused(problem, request.id))


def _as_vectors(value: Any) -> NDArray[Any]:
    """Return a value as an array; one of objects if its rows differ in length."""
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.asarray(value, dtype=object)


def _vectors_refused(problem: str, where: str) -> EngineOutputError:
    return EngineOutputError(
        "an embedding engine returned vectors that cannot be right",
        where=where,
        found=problem,
        valid="one finite float vector per text, all of one dimension",
        hint="check the model files and the texts sent to it",
    )


def _vectors_problem(payload: TextBatch, vectors: NDArray[Any]) -> str | None:
    """Return a problem of vectors for these texts, such as NaN or a wrong shape; None if right."""
    if vectors.ndim != 2 or vectors.shape[0] != len(payload.texts):
        return f"shape {vectors.shape} for {len(payload.texts)} texts"
    if not np.issubdtype(vectors.dtype, np.floating):
        return f"dtype {vectors.dtype}"
    bad = ~np.isfinite(vectors).all(axis=1)
    return f"NaN or infinity in text {int(bad.argmax())}" if bad.any() else None
