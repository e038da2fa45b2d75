"""Run the workflow on an accelerator, alone and under load, and count what scheduling costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from bench.research.advanced.answers import NUM_QUERIES
from bench.research.advanced.workload import TOP_K, TOP_N, Request, Setting, Variant
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.engines.rerank.engine import RerankEngine
from rag_accel.graph import FrozenRAGraph
from rag_accel.server import Server
from rag_accel.workflows import advanced_document_qa

_DRIVER = "rag-accel-driver"
_CALLS = "rag-accel-call-"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one request cost.

    Args:
        scheduling_s: CPU seconds of the driver, of ``submit`` (checks, lowering, passes) and of
            the call threads: growth at branches, and small functions, cutting uploads included.
        cpu_s: CPU seconds of the whole process.
        device_s: modelled seconds in which the device was busy.
    """

    scheduling_s: float
    cpu_s: float
    device_s: float

    @property
    def share(self) -> float:
        """Return scheduling / CPU; modelled seconds would make it look smaller."""
        return self.scheduling_s / self.cpu_s


class Ours:
    """Requests on one accelerator, which ``opened`` closes."""

    def __init__(
        self, setting: Setting, accelerator: Accelerator, device: EmulatedDevice, top_k: int
    ) -> None:
        self.accelerator = accelerator
        self._top_k = top_k
        self._device = device
        self._graphs: dict[Variant, FrozenRAGraph] = {}
        self._meter = _Meter(frozenset())

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
        others = frozenset(threading.enumerate())
        with Accelerator(
            llm=EmulatedEngine(device),
            embedder=setting.make_embedder(),
            index=setting.index,
            reranker=RerankEngine(setting.scorer),
            options=Options.load(single_flight=False, **options),
        ) as accelerator:
            ours = cls(setting, accelerator, device, top_k)
            ours._meter = _Meter(others)
            yield ours

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

    def answer_counted(self, variant: Variant, request: Request) -> Spent:
        """Run one request while nothing else runs, and return what it cost."""
        busy_s = self._device.stats().busy_s
        cpu_s, scheduling_s = time.process_time(), self._meter.read()
        own_s = time.thread_time()
        handle = self._submit(variant, request)
        own_s = time.thread_time() - own_s
        handle.result()
        # The driver ends what the request left behind before it answers.
        _ = self.accelerator.is_idle
        return Spent(
            own_s + self._meter.read() - scheduling_s,
            time.process_time() - cpu_s,
            self._device.stats().busy_s - busy_s,
        )

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


class _Meter:
    """The CPU time of the driver's and the call threads that are not among ``others``."""

    def __init__(self, others: frozenset[threading.Thread]) -> None:
        self._others = others

    def read(self) -> float:
        """Return CPU seconds since these threads began."""
        return sum(_cpu_s(one) for one in threading.enumerate() if self._counts(one))

    def _counts(self, thread: threading.Thread) -> bool:
        is_scheduling = thread.name == _DRIVER or thread.name.startswith(_CALLS)
        return is_scheduling and thread not in self._others


def _cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None, "an enumerated thread has begun"
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
