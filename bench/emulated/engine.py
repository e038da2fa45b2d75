"""An emulated device as an owned engine: decoding, and prefilling through handles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.emulated.batch import DeviceSequence, Update
from bench.emulated.device import EmulatedDevice
from bench.emulated.text import Script, count_tokens, shared_prefix_tokens
from rag_accel.engine_api import (
    KINDS,
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    Handle,
    LatencyModel,
    Message,
    PrimitiveKind,
)
from rag_accel.engines.bases import OutboxEngine
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import EngineError

_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.prefills) | {PrimitiveKind.DECODING}


@dataclass(frozen=True, slots=True)
class _Prefilled:
    messages: tuple[Message, ...]
    namespace: str


class _OutboxSink:
    """A sink whose updates arrive where the engine's worker waits."""

    def __init__(self, outbox: Outbox[Update]) -> None:
        self._outbox = outbox

    def deliver(self, updates: Sequence[Update]) -> None:
        self._outbox.put(updates)


class EmulatedEngine(OutboxEngine[DeviceSequence, Update]):
    """An engine for DECODING and PREFILLING on an emulated device (modelled, not measured).

    A payload always holds the whole prompt. A PREFILLING kind reads it and ends with a handle; work
    that names a handle of its own namespace reads only the tokens after their common prefix. A
    handle stays valid until released, however often it is resumed. ``close`` frees what this
    engine holds; the device is closed only if ``owns_device``.
    """

    def __init__(self, device: EmulatedDevice, *, owns_device: bool = False) -> None:
        table = device.table
        self._device = device
        self._owns_device = owns_device
        profile = EngineProfile(
            kinds=_KINDS,
            max_batch=table.max_sequences,
            latency=LatencyModel(table.base_ms / 1000, table.per_running_ms / 1000),
            max_threads=0,
            stepped=True,
            interruptible=True,
            pure=True,
            capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
        )
        super().__init__(profile, table.name)
        self._sink = _OutboxSink(self._outbox)
        self._live: dict[DeviceSequence, EngineRequest] = {}
        self._prefilled: dict[Handle, _Prefilled] = {}
        self._handle_numbers = itertools.count(1)

    def release(self, handles: Sequence[Handle]) -> None:
        """Forget prefilled prompts."""
        for handle in handles:
            self._prefilled.pop(handle, None)

    def close(self) -> None:
        """Cancel what runs, forget handles and close the device if it is ours."""
        self.cancel(list(self._jobs))
        self._prefilled.clear()
        self._closed = True
        if self._owns_device:
            self._device.close()

    def _job(self, request: EngineRequest) -> DeviceSequence:
        sequence = self._plan(request)
        self._live[sequence] = request
        return sequence

    def _plan(self, request: EngineRequest) -> DeviceSequence:
        payload = self._checked_payload(request, GenerationInput, self._jobs)
        cached = self._cached_tokens(request, payload)
        if KINDS[request.kind].prefills:
            script = Script((), count_tokens(payload.messages), "stop")
            return self._device.plan(script, self._sink, cached_tokens=cached, prefill_only=True)
        script = self._device.script(payload)
        return self._device.plan(script, self._sink, stream=request.stream, cached_tokens=cached)

    def _cached_tokens(self, request: EngineRequest, payload: GenerationInput) -> int:
        if request.handle is None:
            return 0
        prefilled = self._prefilled.get(request.handle)
        if prefilled is None or prefilled.namespace != request.namespace:
            raise self._refusal(
                "unknown handle", request.handle, "a handle of this namespace, not yet released"
            )
        return shared_prefix_tokens(prefilled.messages, payload.messages)

    def _refusal(self, what: str, found: object, valid: str) -> EngineError:
        return EngineError(what, where=f"emulated engine {self._where}", found=found, valid=valid)

    def _start(self, jobs: Sequence[DeviceSequence]) -> None:
        """Queue work; all of it joins the device's batch at the same step border."""
        self._device.submit(jobs)

    def _abort(self, jobs: Sequence[DeviceSequence]) -> None:
        """Free the places of work at once; its handles stay."""
        for sequence in jobs:
            del self._live[sequence]
        self._device.cancel(jobs)

    def _outputs_of(self, report: Update) -> Iterator[EngineOutput]:
        request = self._live.get(report.sequence)
        if request is None:
            return
        if report.delta and request.stream:
            yield EngineOutput(request.id, "partial", report.delta)
        if report.is_end:
            del self._jobs[request.id], self._live[report.sequence]
            yield self._end(request, report)

    def _end(self, request: EngineRequest, update: Update) -> EngineOutput:
        if update.error is not None:
            return EngineOutput(request.id, "error", error=update.error)
        if not KINDS[request.kind].prefills:
            return EngineOutput(request.id, "final", update.output)
        handle = Handle(f"prefill-{next(self._handle_numbers)}")
        self._prefilled[handle] = _Prefilled(request.payload.messages, request.namespace)
        return EngineOutput(request.id, "final", handle=handle)
