"""The emulated device as an owned engine: contract, handles, streams, cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from device_harness import generate
from llm_harness import QUESTION, finish, work

from bench.emulated.batch import BatchCounters
from bench.emulated.device import EmulatedDevice
from bench.emulated.engine import EmulatedEngine
from bench.emulated.table import H100_LIKE_1B
from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    Handle,
    Message,
    PrimitiveKind,
    TextBatch,
    WorkId,
)
from rag_accel.errors import ConfigError, EngineError
from rag_accel.testing.conformance import EngineContract

# A device whose first step outlasts every test.
ENDLESS = replace(H100_LIKE_1B, name="endless", base_ms=3_600_000.0)
SYSTEM = Message("system", " ".join(["rule"] * 300))
DECODING, PREFILLING = PrimitiveKind.DECODING, PrimitiveKind.PREFILLING


def prefill(engine: Engine, id: str, *messages: Message, **fields: Any) -> Handle:
    engine.submit([work(id, *messages, kind=PREFILLING, **fields)])
    (output,) = finish(engine, id)
    assert output.handle is not None
    return output.handle


class TestContract(EngineContract):
    def make_engine(self) -> Engine:
        device = EmulatedDevice(replace(H100_LIKE_1B, base_ms=0.5))
        return EmulatedEngine(device, owns_device=True)

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", Message("user", f"question {number}"))

    def make_bad_request(self) -> EngineRequest:
        return work("bad", max_tokens=-1)

    def make_waiting_request(self) -> EngineRequest:
        return work("waiting", max_tokens=100_000)


class TestContractOfPrefilling(TestContract):
    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", Message("user", f"question {number}"), kind=PREFILLING)


@pytest.fixture
def engine(device: EmulatedDevice) -> Iterator[EmulatedEngine]:
    made = EmulatedEngine(device)
    yield made
    made.close()


@pytest.fixture
def endless() -> Iterator[EmulatedEngine]:
    made = EmulatedEngine(EmulatedDevice(ENDLESS), owns_device=True)
    yield made
    made.close()


def test_the_engine_and_other_callers_get_the_same_text(
    engine: EmulatedEngine, device: EmulatedDevice
) -> None:
    engine.submit([work("a")])
    (output,) = finish(engine, "a")
    assert output.value == generate(device, work("a").payload)


@pytest.mark.parametrize(
    "kind", [PREFILLING, PrimitiveKind.PARTIAL_PREFILLING, PrimitiveKind.FULL_PREFILLING]
)
def test_a_handle_saves_the_prefill_of_the_common_prefix(
    engine: EmulatedEngine, device: EmulatedDevice, kind: PrimitiveKind
) -> None:
    engine.submit([work("p", SYSTEM, kind=kind)])
    (output,) = finish(engine, "p")
    device.batch.counters = BatchCounters()
    engine.submit([work("d", SYSTEM, QUESTION, handle=output.handle)])
    finish(engine, "d")
    assert device.batch.counters.prefill_tokens == 3


def test_a_released_handle_is_refused_by_name(engine: EmulatedEngine) -> None:
    handle = prefill(engine, "p", SYSTEM)
    engine.release([handle])
    engine.submit([work("d", SYSTEM, handle=handle)])
    (output,) = finish(engine, "d")
    assert output.kind == "error"
    assert handle in str(output.error)


def test_a_handle_is_unknown_in_another_namespace(engine: EmulatedEngine) -> None:
    handle = prefill(engine, "p", SYSTEM, namespace="tenant a")
    engine.submit([work("d", SYSTEM, handle=handle, namespace="tenant b")])
    (output,) = finish(engine, "d")
    assert isinstance(output.error, EngineError)


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (work("bad", kind=PrimitiveKind.SEARCHING), EngineError, "SEARCHING"),
        (replace(work("bad"), payload=TextBatch(("x",))), EngineError, "TextBatch"),
        (work("bad", max_tokens=0), ConfigError, "max_tokens"),
        (work("bad", handle=Handle("prefill-99")), EngineError, "prefill-99"),
    ],
)
def test_bad_work_ends_alone_with_a_named_error(
    engine: EmulatedEngine, bad: EngineRequest, kind: type[Exception], text: str
) -> None:
    engine.submit([work("good"), bad])
    outputs = {output.id: output for output in finish(engine, "good", "bad")}
    assert outputs[WorkId("good")].kind == "final"
    assert isinstance(outputs[WorkId("bad")].error, kind)
    assert text in str(outputs[WorkId("bad")].error)
