"""Run the workflow on an accelerator, alone and under load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.ablation.qa_answers import NUM_QUERIES
from bench.ablation.qa_setting import TOP_K, TOP_N, Request, Setting, Variant
from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.engines.rerank.engine import RerankEngine
from rag_accel.graph import FrozenRAGraph
from rag_accel.server import Server
from rag_accel.workflows import advanced_document_qa


class Ours:
    """Requests on one accelerator, which ``opened`` closes."""

    def __init__(self, accelerator: Accelerator, top_k: int) -> None:
        self.accelerator = accelerator
        self._top_k = top_k
        self._graphs: dict[Variant, FrozenRAGraph] = {}

    @classmethod
    @contextmanager
    def opened(
        cls, setting: Setting, device: EmulatedDevice, *, top_k: int = TOP_K, **options: Any
    ) -> Iterator[Ours]:
        """Make an accelerator with every pass that the options leave on; share nothing.

        Args:
            setting: what all arms share.
            device: generates.
            top_k: passages to find for each query.
            options: of the accelerator.
        """
        with Accelerator(
            llm=EmulatedEngine(device),
            embedder=setting.make_embedder(),
            index=setting.index,
            reranker=RerankEngine(setting.scorer),
            options=Options.load(single_flight=False, **options),
        ) as accelerator:
            yield cls(accelerator, top_k)

    def graph(self, variant: Variant) -> FrozenRAGraph:
        """Return the library's workflow."""
        if variant not in self._graphs:
            self._graphs[variant] = advanced_document_qa(
                variant.upload,
                num_queries=NUM_QUERIES,
                top_k=self._top_k,
                top_n=TOP_N,
                synthesis=variant.mode,
            ).freeze()
        return self._graphs[variant]

    def answer(self, variant: Variant, request: Request) -> str:
        """Run one request and wait."""
        return str(self._submit(variant, request).result())

    def under_load(
        self, variant: Variant, questions: Sequence[str], starts_s: Sequence[float]
    ) -> tuple[list[str], list[float]]:
        """Start each request at its time, whatever became of others; without uploads.

        Returns:
            answers, and latencies in seconds from the time at which each was due, in the order of
            the questions: who is started late has waited.
        """
        graph = self.graph(variant)
        with Server(accelerator=self.accelerator) as server:
            begun = time.perf_counter()
            ids: list[Any] = []
            late_s: list[float] = []
            for question, start_s in zip(questions, starts_s, strict=True):
                due = begun + start_s
                time.sleep(max(0.0, due - time.perf_counter()))
                late_s.append(time.perf_counter() - due)
                ids.append(server.add_request(question, graph))
            results = [server.wait(one) for one in ids]
        latencies_s = [late + one.latency_s for late, one in zip(late_s, results, strict=True)]
        return [str(one.unwrap()) for one in results], latencies_s

    def _submit(self, variant: Variant, request: Request) -> Any:
        inputs: dict[str, Any] = {"input": request.question}
        if variant.upload:
            inputs["documents"] = request.documents
        return self.accelerator.submit(self.graph(variant), **inputs)
