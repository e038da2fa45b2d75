"""An emulated device as an owned engine: decoding, and prefilling through handles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_accel.engine_api import (
    KINDS,
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    Handle,
    LatencyModel,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import ClosedError, EngineError
from rag_accel.testing.emulated.batch import DeviceSequence, Update
from rag_accel.testing.emulated.device import EmulatedDevice
from rag_accel.testing.emulated.text import Script, count_tokens, shared_prefix_tokens

_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.prefills) | {PrimitiveKind.DECODING}


@dataclass(frozen=True, slots=True)
class _Prefilled:
    messages: tuple[Message, ...]
    namespace: str


@dataclass(slots=True)
class _DeviceWork:
    request: EngineRequest


class _OutboxSink:
    """A sink whose updates arrive where the engine's worker waits."""

    def __init__(self, outbox: Outbox[Update]) -> None:
        self._outbox = outbox

    def deliver(self, updates: Sequence[Update]) -> bool:
        self._outbox.put(updates)
        return True


class EmulatedEngine(EngineBase):
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
        self._profile = EngineProfile(
            kinds=_KINDS,
            max_batch=table.max_sequences,
            latency=LatencyModel(table.base_ms / 1000, table.per_running_ms / 1000),
            max_threads=0,
            stepped=True,
            interruptible=True,
            pure=True,
            capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
        )
        self._outbox: Outbox[Update] = Outbox()
        self._sink = _OutboxSink(self._outbox)
        self._sequences: dict[WorkId, DeviceSequence] = {}
        self._live: dict[DeviceSequence, _DeviceWork] = {}
        self._rejected: list[EngineOutput] = []
        self._prefilled: dict[Handle, _Prefilled] = {}
        self._handle_numbers = itertools.count(1)
        self._closed = False

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Queue work; all of it joins the device's batch at the same step border."""
        if self._closed:
            raise ClosedError("the engine is closed", where=self._device.table.name)
        accepted: list[DeviceSequence] = []
        for request in work:
            try:
                sequence = self._plan(request)
            except Exception as exc:
                # One bad item, or a respond() that raises, must not reject its neighbours.
                self._rejected.append(EngineOutput(request.id, "error", error=exc))
            else:
                self._sequences[request.id] = sequence
                self._live[sequence] = _DeviceWork(request)
                accepted.append(sequence)
        if accepted:
            self._device.submit(accepted)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Wait up to ``budget.time_s`` for the device's next report, or until interrupted."""
        outputs, self._rejected = self._rejected, []
        if self._live:
            for update in self._outbox.take(0.0 if outputs else budget.time_s):
                outputs.extend(self._report(update))
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Free the places of work at once; its handles stay."""
        gone = set(ids)
        self._rejected = [output for output in self._rejected if output.id not in gone]
        found = [self._forget(id) for id in gone]
        self._device.cancel([sequence for sequence in found if sequence is not None])

    def release(self, handles: Sequence[Handle]) -> None:
        """Forget prefilled prompts."""
        for handle in handles:
            self._prefilled.pop(handle, None)

    def interrupt(self) -> None:
        """Make a waiting step return at once."""
        self._outbox.interrupt()

    def close(self) -> None:
        """Cancel what runs, forget handles and close the device if it is ours."""
        self.cancel(list(self._sequences))
        self._prefilled.clear()
        self._closed = True
        if self._owns_device:
            self._device.close()

    def _plan(self, request: EngineRequest) -> DeviceSequence:
        payload = self._checked_payload(request)
        cached = self._cached_tokens(request, payload)
        if KINDS[request.kind].prefills:
            script = Script((), count_tokens(payload.messages), "stop")
            return self._device.plan(script, self._sink, cached_tokens=cached, prefill_only=True)
        script = self._device.script(payload)
        return self._device.plan(script, self._sink, stream=request.stream, cached_tokens=cached)

    def _checked_payload(self, request: EngineRequest) -> GenerationInput:
        if request.kind not in _KINDS:
            raise self._refusal("kind not executed here", request.kind, ", ".join(sorted(_KINDS)))
        if not isinstance(request.payload, GenerationInput):
            found = type(request.payload).__name__
            raise self._refusal("payload of a wrong type", found, "GenerationInput")
        if request.id in self._sequences:
            raise self._refusal("id of unfinished work used again", request.id, "a fresh id")
        return request.payload

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
        where = f"emulated engine {self._device.table.name}"
        return EngineError(what, where=where, found=found, valid=valid)

    def _report(self, update: Update) -> Iterator[EngineOutput]:
        """Translate an update; nothing follows for work that was cancelled meanwhile."""
        work = self._live.get(update.sequence)
        if work is None:
            return
        id = work.request.id
        if update.delta and work.request.stream:
            yield EngineOutput(id, "partial", update.delta)
        if update.is_end:
            self._forget(id)
            yield self._end(work, update)

    def _end(self, work: _DeviceWork, update: Update) -> EngineOutput:
        request = work.request
        if update.error is not None:
            return EngineOutput(request.id, "error", error=update.error)
        if not KINDS[request.kind].prefills:
            return EngineOutput(request.id, "final", update.output)
        handle = Handle(f"prefill-{next(self._handle_numbers)}")
        self._prefilled[handle] = _Prefilled(request.payload.messages, request.namespace)
        return EngineOutput(request.id, "final", handle=handle)

    def _forget(self, id: WorkId) -> DeviceSequence | None:
        sequence = self._sequences.pop(id, None)
        if sequence is not None:
            del self._live[sequence]
        return sequence
