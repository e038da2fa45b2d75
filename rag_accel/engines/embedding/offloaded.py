"""Embed in this process while that is enough, and in a helper process once many ask at once.

A transformer run from Python takes and gives back the interpreter lock around each of its hundred
and fifty operators. Beside threads that run Python, each time can cost a switch interval and more,
so an application with many user threads starves its own embedder (WindVE section 4 meets the same
problem with queues; here it is the lock). A helper process has an interpreter of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rag_accel.engine_api import (
    Engine,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.engine import EmbeddingEngine, SentenceTransformerEngine
from rag_accel.engines.embedding.helper_process import HelperProcess

logger = logging.getLogger("rag_accel.embedding")

#: Works in one step that show that many callers wait: from then on a helper pays.
CROWD = 8
#: Texts one helper call takes at most, so that newcomers join soon.
MAX_TEXTS = 128


class OffloadedEmbeddingEngine(EngineBase):
    """Be an embedding engine that moves to a helper process when it gets crowded.

    Vectors are the same within 1e-6 wherever they are computed; a work that fails in the helper is
    computed here, so its error is the model's own. Without a helper everything runs here.

    Args:
        local: computes in this process.
        start_helper: starts the helper; called at most once.
        crowd: works in one step from which on the helper is wanted; 1 wants it at once.
    """

    def __init__(
        self,
        local: EmbeddingEngine,
        start_helper: Callable[[], HelperProcess],
        *,
        crowd: int = CROWD,
    ) -> None:
        self._local = local
        self._start_helper = start_helper
        self._crowd = crowd
        self._helper: HelperProcess | None = None
        self._waiting: dict[WorkId, EngineRequest] = {}

    @property
    def profile(self) -> EngineProfile:
        """Return the local engine's profile."""
        return self._local.profile

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work, for the helper where it can, else for the local engine."""
        if self._helper is None and len(work) >= self._crowd:
            self._helper = self._start_helper()
        for request in work:
            if _is_plain(request.payload):
                self._waiting[request.id] = request
            else:
                self._local.submit([request])

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Advance: one helper call if the helper is ready, and the local engine's work."""
        outputs: list[EngineOutput] = []
        if self._waiting:
            works = self._take()
            if self._helper is not None and self._helper.is_ready:
                outputs += self._ask(self._helper, works, budget)
            else:
                self._local.submit(works)
        return [*outputs, *self._local.step(budget)]

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work wherever it waits."""
        for work in ids:
            self._waiting.pop(work, None)
        self._local.cancel(ids)

    def close(self) -> None:
        """Stop the helper and forget all work."""
        if self._helper is not None:
            self._helper.close()
        self._waiting.clear()
        self._local.close()

    def _take(self) -> list[EngineRequest]:
        taken: list[EngineRequest] = []
        texts = 0
        for request in list(self._waiting.values()):
            texts += len(request.payload.texts)
            if taken and texts > MAX_TEXTS:
                break
            taken.append(self._waiting.pop(request.id))
        return taken

    def _ask(
        self, helper: HelperProcess, works: list[EngineRequest], budget: StepBudget
    ) -> list[EngineOutput]:
        try:
            vectors, failed = helper.embed([one.payload for one in works], budget.threads)
        except (OSError, EOFError, ValueError) as error:
            logger.warning("the embedding helper is gone, embedding goes on here: %s", error)
            self._local.submit(works)
            return []
        self._local.submit([works[place] for place in failed])
        return [EngineOutput(works[place].id, "final", value) for place, value in vectors.items()]


def offloaded_sentence_transformer(
    model: Any,
    query_kwargs: Mapping[str, Any],
    document_kwargs: Mapping[str, Any],
    *,
    reproducible: bool = False,
    allowed: bool = True,
    crowd: int = CROWD,
) -> Engine:
    """Return an engine over ``model`` that offloads where that can help: on the CPU.

    Args:
        model: a ``SentenceTransformer``.
        query_kwargs, document_kwargs: arguments of ``encode`` by role.
        reproducible: see ``SentenceTransformerEngine``.
        allowed: whether a helper process may be started at all.
        crowd: see ``OffloadedEmbeddingEngine``.
    """
    local = SentenceTransformerEngine(
        model,
        query_kwargs=query_kwargs,
        document_kwargs=document_kwargs,
        reproducible=reproducible,
    )
    if not allowed or local.profile.max_threads == 0:
        return local
    start = partial(
        HelperProcess,
        model,
        query_kwargs,
        document_kwargs,
        max_threads=local.profile.max_threads,
        reproducible=reproducible,
    )
    return OffloadedEmbeddingEngine(local, start, crowd=crowd)


def _is_plain(payload: object) -> bool:
    return (
        isinstance(payload, TextBatch)
        and bool(payload.texts)
        and all(isinstance(text, str) for text in payload.texts)
    )
