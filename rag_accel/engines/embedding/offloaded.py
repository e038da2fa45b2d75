"""Embed in this process while that is enough, and in a helper process once many ask at once.

A transformer run from Python takes and gives back the interpreter lock around each of its hundred
and fifty operators. Beside threads that run Python, each time can cost a switch interval and more,
so an application with many user threads starves its own embedder (WindVE section 4 meets the same
problem with queues; here it is the lock). A helper process has an interpreter of its own, and it
works on while this process is busy with what it has just been given.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from rag_accel.engines.embedding.helper_process import Answer, HelperProcess
from rag_accel.machine import usable_cores

logger = logging.getLogger("rag_accel.embedding")

#: Works in one step that show that many callers wait: from then on a helper pays.
CROWD = 8
#: Works that keep the helper busy for the time that sending more of them takes.
ENOUGH = 16
#: Works in a row that met no other: after so many, nobody disturbs a computation here.
CALM = 64
#: Longest wait of a step for the helper, in seconds.
WAIT_S = 0.5

_GONE = (OSError, EOFError, ValueError)


class OffloadedEmbeddingEngine(EngineBase):
    """Be an embedding engine that moves to a helper process when it gets crowded.

    Vectors are the same within 1e-6 wherever they are computed; a work that fails in the helper is
    computed here, so its error is the model's own. Without a helper everything runs here. The
    helper computes on its own number of threads: ``StepBudget.threads`` is for work done here.

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
        self._sent: dict[WorkId, EngineRequest] = {}
        self._alone = 0
        self._step_cost = 0.0
        self._profile = replace(local.profile, stepped=True, interruptible=True)

    @property
    def profile(self) -> EngineProfile:
        """Return the local engine's profile; its steps may wait, and can be interrupted."""
        return self._profile

    @property
    def step_cost(self) -> float:
        """Return the tokens that the last step embedded in this process."""
        return self._step_cost

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work, for the helper where it can, else for the local engine."""
        if self._helper is None and len(work) >= self._crowd:
            self._helper = self._start_helper()
        self._alone = self._alone + 1 if len(work) == 1 and not self._sent else 0
        fit = [one for one in work if self._is_offloaded and _is_plain(one.payload)]
        chosen = {one.id for one in fit}
        self._take([one for one in work if one.id not in chosen])
        if fit and self._helper is not None:
            self._sent.update((one.id, one) for one in fit)
            try:
                self._helper.send(fit)
            except _GONE as error:
                self._fall_back(self._helper, error)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Compute what is here, or wait for the helper's next answer."""
        self._step_cost = 0.0
        if self._local.num_unfinished:
            outputs = self._local.step(budget)
            self._step_cost = self._local.step_cost
            return outputs
        if not self._sent or self._helper is None:
            return ()
        wait_s = WAIT_S if budget.time_s is None else min(WAIT_S, budget.time_s)
        try:
            answer = self._helper.wait(wait_s)
        except _GONE as error:
            self._fall_back(self._helper, error)
            return ()
        return () if answer is None else self._settle(answer)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work wherever it is."""
        sent = [work for work in ids if self._sent.pop(work, None) is not None]
        if sent and self._helper is not None:
            try:
                self._helper.cancel(sent)
            except _GONE as error:
                self._fall_back(self._helper, error)
        self._local.cancel(ids)

    def interrupt(self) -> None:
        """End a step that waits for the helper, if the helper is about to run out of work.

        While it has enough, its next answer ends the step soon, and newcomers are then sent in
        fewer, larger messages.
        """
        helper = self._helper
        if helper is not None and len(self._sent) < ENOUGH:
            helper.interrupt()

    def close(self) -> None:
        """Stop the helper and forget all work."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None
        self._sent.clear()
        self._local.close()

    @property
    def _is_offloaded(self) -> bool:
        return self._helper is not None and self._helper.is_ready and self._alone < CALM

    def _take(self, works: Sequence[EngineRequest]) -> None:
        if works:
            self._local.submit(works)

    def _settle(self, answer: Answer) -> list[EngineOutput]:
        self._take([self._sent.pop(work) for work in answer.failed if work in self._sent])
        return [
            EngineOutput(work, "final", vectors)
            for work, vectors in answer.vectors.items()
            if self._sent.pop(work, None) is not None
        ]

    def _fall_back(self, helper: HelperProcess, error: BaseException) -> None:
        logger.warning("the embedding helper is gone, embedding goes on here: %s", error)
        helper.fail()
        works = list(self._sent.values())
        self._sent.clear()
        self._take(works)


def offloaded_sentence_transformer(
    model: Any,
    query_kwargs: Mapping[str, Any],
    document_kwargs: Mapping[str, Any],
    *,
    reproducible: bool = False,
    allowed: bool = True,
    crowd: int = CROWD,
) -> Engine:
    """Return an engine over ``model`` that offloads where that can help: on the CPU, on POSIX.

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
    if not allowed or local.profile.max_threads == 0 or os.name != "posix":
        return local
    start = partial(
        HelperProcess,
        model,
        query_kwargs,
        document_kwargs,
        threads=max(1, min(local.profile.max_threads, usable_cores())),
        reproducible=reproducible,
    )
    return OffloadedEmbeddingEngine(local, start, crowd=crowd)


def _is_plain(payload: object) -> bool:
    return (
        isinstance(payload, TextBatch)
        and bool(payload.texts)
        and all(isinstance(text, str) for text in payload.texts)
    )
