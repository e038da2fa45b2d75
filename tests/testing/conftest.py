"""Share work and engines among the tests of the kit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.testing import EngineContract, FakeEngine


@pytest.fixture
def make_text_request() -> Callable[[int], EngineRequest]:
    """Return a maker of embedding work."""

    def make(number: int) -> EngineRequest:
        payload = TextBatch((f"text {number}",))
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload)

    return make


@pytest.fixture
def hanging_engine() -> Iterator[FakeEngine]:
    """Give an engine every step of which hangs until the test is over."""
    release = threading.Event()

    class Hanging(FakeEngine):
        def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
            release.wait()
            return []

    yield Hanging()
    release.set()


class _ContractOfAny(EngineContract):
    """Run single rules, with embeddings, against whatever engine a test makes."""

    timeout_s = 0.2

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make

    def make_engine(self) -> Engine:
        return self._make()

    def make_request(self, number: int) -> EngineRequest:
        payload = TextBatch((f"text {number}",))
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload)

    def make_bad_request(self) -> EngineRequest:
        return replace(self.make_request(99), request_id="bad")


@pytest.fixture
def run_rule() -> Callable[[str, Callable[[], Engine]], None]:
    """Return a function that runs one rule of the contract against a maker of engines."""
    return lambda rule, make: getattr(_ContractOfAny(make), rule)()
