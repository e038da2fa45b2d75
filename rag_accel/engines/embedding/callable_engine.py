"""The user's own embedding functions, batched across requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import LatencyModel
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.embedding.encoder_engine import (
    KEPT_BYTES,
    EmbeddingEngine,
    embedding_profile,
)
from rag_accel.engines.embedding.prepared_texts import PreparedTexts
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import VectorCache, always_same
from rag_accel.engines.torch_threads import on_threads

EmbedTexts = Callable[[list[str]], Sequence[Any]]

_CALLS_PER_STEP = 4


class CallableEmbeddingEngine(EmbeddingEngine):
    """An embedding engine made of functions from a list of texts to a sequence of vectors.

    A call gets texts of one role and of as many requests as are waiting, at most ``max_batch``.
    When a call raises or returns a wrong number of vectors, each request's part of it is tried
    alone, so that only the request at fault ends in ``error``.

    Args:
        embed_queries: called on this engine's thread for texts of role ``query``.
        embed_documents: the same for role ``document``; by default ``embed_queries``, and then
            both roles share calls.
        dimension: components of a vector; by default learned from the first call.
        max_batch: texts per call.
        max_threads: torch threads a call can use; 0 if it computes elsewhere.
        pure: whether a text always gets the same vector, so that equal requests may share a run.
        latency: first guess of a step's time.
        clock: measures ``StepBudget.time_s``.
        kept_bytes: most memory for vectors of texts that are likely to come again, where ``pure``.
    """

    def __init__(
        self,
        embed_queries: EmbedTexts,
        embed_documents: EmbedTexts | None = None,
        *,
        dimension: int | None = None,
        max_batch: int = 64,
        max_threads: int = 1,
        pure: bool = False,
        latency: LatencyModel | None = None,
        clock: Clock | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        super().__init__(
            _Functions(embed_queries, embed_documents or embed_queries, dimension),
            embedding_profile(
                max_batch,
                max_threads,
                latency or LatencyModel(),
                pure=pure,
                # A user's function may cost money or have effects: never on a guess.
            ),
            # Every text counts as one: lengths matter to the function only.
            BatchLimits(batch=max_batch, padding=0, step=_CALLS_PER_STEP * max_batch),
            clock=clock,
            kept=VectorCache(kept_bytes, always_same) if pure else None,
        )


class _Functions:
    def __init__(
        self, embed_queries: EmbedTexts, embed_documents: EmbedTexts, dimension: int | None
    ) -> None:
        self._functions: dict[Role, EmbedTexts] = {
            "query": embed_queries,
            "document": embed_documents,
        }
        self._dimension = dimension

    def same_batch(self, role: Role) -> Role:
        shared = self._functions["query"] is self._functions["document"]
        return "query" if shared else role

    def dimension(self, role: Role) -> int | None:
        return self._dimension

    def estimate(self, text: str) -> int:
        return 1

    def prepare(self, texts: Sequence[str], role: Role) -> PreparedTexts:
        return _EmbeddingCall(self._functions[role], texts)


class _EmbeddingCall:
    overlaps = False

    def __init__(self, function: EmbedTexts, texts: Sequence[str]) -> None:
        self._function = function
        self._texts = texts
        self.lengths: Sequence[int] = [1] * len(texts)

    def start(self, rows: Sequence[int], threads: int) -> Callable[[], Sequence[Any]]:
        return on_threads(threads, partial(self._function, [self._texts[row] for row in rows]))
