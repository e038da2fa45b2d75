"""An engine as a member: a device that has too little memory, breaks, or is a GPU."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors
from llm_harness import eventually

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine, EngineMember, SentenceTransformerEngine
from rag_accel.engines.devices.group import DeviceGroup

TEXTS = [f"text {number}" for number in range(20)]


class OutOfMemoryError(RuntimeError):
    """What torch raises where a device has too little memory, by its name."""


class Device:
    """A function that computes plain vectors of as many texts as it has memory for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: list[int] = []
        self.error: Exception | None = None

    def __call__(self, texts: list[str]) -> Any:
        self.calls.append(len(texts))
        if self.error is not None:
            raise self.error
        if len(texts) > self.most:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return plain_vectors(texts, "query")


def member_of(device: Device) -> EngineMember:
    return EngineMember(CallableEmbeddingEngine(device), "cuda:0")


def request(id: str, *texts: str) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, TextBatch(texts))


def outcome(group: DeviceGroup) -> Any:
    for _ in range(100):
        for output in group.step(StepBudget(10.0, threads=2)):
            return output.value if output.kind == "final" else output.error
    raise AssertionError("nothing ended")


@pytest.mark.parametrize("most", [1, 3, 10])
def test_texts_that_are_too_many_for_the_memory_are_embedded_in_parts(most: int) -> None:
    device = Device(most)
    member = member_of(device)
    try:
        found = member.embed(TEXTS, "query", 0)
    finally:
        member.close()
    np.testing.assert_array_equal(found, plain_vectors(TEXTS, "query"))
    assert max(device.calls) == len(TEXTS)


def test_a_text_that_is_alone_too_much_is_an_error_here_and_computed_elsewhere() -> None:
    device = Device(100)
    group = DeviceGroup([member_of(device), FakeMember("other")], slo_s=60.0)
    try:
        device.most = 0
        group.submit([request("w", "a")])
        np.testing.assert_array_equal(outcome(group), plain_vectors(["a"], "query"))
    finally:
        group.close()


def test_a_device_that_is_gone_midway_leaves_and_others_go_on() -> None:
    device = Device(100)
    group = DeviceGroup([member_of(device), FakeMember("other")], slo_s=60.0)
    try:
        device.error = RuntimeError("CUDA error: unspecified launch failure")
        for number in range(5):
            group.submit([request(f"w{number}", *TEXTS)])
            np.testing.assert_array_equal(outcome(group), plain_vectors(TEXTS, "query"))
        # Its probe runs on a thread of its own.
        eventually(lambda: "has left" in group.describe_parts()[0])
        assert (
            "cuda:0: has left: 3 failed steps in a row, and a probe: " in group.describe_parts()[0]
        )
        assert "launch failure" in group.describe_parts()[0]
    finally:
        group.close()


def test_a_limit_below_the_time_of_one_text_keeps_nothing_from_being_embedded() -> None:
    group = DeviceGroup([FakeMember("first"), FakeMember("second")], slo_s=1e-9)
    try:
        group.submit([request("w", *TEXTS)])
        np.testing.assert_array_equal(outcome(group), plain_vectors(TEXTS, "query"))
    finally:
        group.close()


@pytest.mark.gpu
def test_a_gpu_and_the_cpu_compute_the_same_vectors(minilm: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_gpu = SentenceTransformerEngine(copy.deepcopy(minilm).to("cuda"), runtime="torch")
    on_cpu = SentenceTransformerEngine(copy.deepcopy(minilm).to("cpu"), runtime="torch")
    members = [EngineMember(on_gpu), EngineMember(on_cpu)]
    group = DeviceGroup(members, tolerance=1e-4, threads=2)
    try:
        assert members[0].max_threads == 0
        assert "near vectors" in group.describe_parts()[1] or "equal" in group.describe_parts()[1]
        group.submit([request("w", *TEXTS * 20)])
        found = outcome(group)
    finally:
        group.close()
    expected = minilm.to("cpu").encode(TEXTS * 20)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
