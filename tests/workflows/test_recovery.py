"""Workflows whose stages fail for a while give the undisturbed answer where they may retry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from idle_accelerators import soon_idle
from workflow_harness import WORKFLOWS

from rag_accel import Accelerator, RAGraph, Retry, workflows
from rag_accel.engine_api import EngineRequest
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import StageName
from rag_accel.testing import FakeEngine, Faults

ATTEMPTS = 2
AT_ONCE = Retry(ATTEMPTS, backoff_s=0.0)


class Flaky:
    """Let the first attempts of each piece of work of one stage fail with a dropped connection.

    Thread-safe: engines call it on their own threads.
    """

    def __init__(self, stage: str, failures: int) -> None:
        self._stage, self._failures = stage, failures
        self._lock = threading.Lock()
        self._begun: dict[str, int] = {}
        self.raised = 0

    def begin(self, request: EngineRequest) -> None:
        """Count an attempt."""
        node = request.id.partition("/")[2]
        is_own = node.startswith((f"{self._stage}.", f"{self._stage}#"))
        if is_own and ".fallback." not in node:
            with self._lock:
                self._begun[request.id] = self._begun.get(request.id, 0) + 1
                self.raised += self._begun[request.id] <= self._failures

    def fault(self, request: EngineRequest) -> Exception | None:
        """Return the error of this attempt."""
        with self._lock:
            begun = self._begun.get(request.id, self._failures + 1)
        return ConnectionResetError("the peer went away") if begun <= self._failures else None


class FlakyEngine(FakeEngine):
    """An engine that counts the attempts of its work."""

    def __init__(self, flaky: Flaky, **parts: Any) -> None:
        super().__init__(faults=Faults(item=flaky.fault), **parts)
        self._flaky = flaky

    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            self._flaky.begin(request)
        super().submit(work)


def engines(flaky: Flaky) -> dict[str, Any]:
    return {
        "llm": FlakyEngine(flaky, steps=2),
        "embedder": FlakyEngine(flaky),
        "index": FlakyEngine(flaky),
        "reranker": FlakyEngine(flaky),
        "engines": {"spare": FakeEngine()},
    }


def answer(graph: RAGraph | FrozenRAGraph, flaky: Flaky) -> Any:
    frozen = graph.freeze()
    given = {"documents": ["About: why"]} if "documents" in frozen.inputs else {}
    with Accelerator(**engines(flaky)) as accelerator:
        found = accelerator.run(graph, input="What is it?", **given)
        assert soon_idle(accelerator)
    return found


def stages_of(make: Callable[[], RAGraph]) -> list[str]:
    return [stage.name for stage in make().freeze().stages if stage.engine is not None]


each_stage = pytest.mark.parametrize(
    ("make", "stage"),
    [
        pytest.param(make, stage, id=f"{name}-{stage}")
        for name, make in WORKFLOWS.items()
        for stage in stages_of(make)
    ],
)


@each_stage
def test_each_stage_may_fail_at_each_attempt_but_the_last(
    make: Callable[[], RAGraph], stage: str
) -> None:
    undisturbed = answer(make(), Flaky("nothing", 0))
    for failures in range(1, ATTEMPTS + 1):
        flaky = Flaky(stage, failures)
        assert answer(make().with_retry(AT_ONCE), flaky) == undisturbed
        is_reached = flaky.raised > 0
        if is_reached:
            with pytest.raises(ConnectionResetError):
                answer(make(), Flaky(stage, failures))


@each_stage
def test_each_stage_may_be_replaced_by_an_engine_like_its_own(
    make: Callable[[], RAGraph], stage: str
) -> None:
    undisturbed = answer(make(), Flaky("nothing", 0))
    graph = make().freeze()
    instead: Any = replace(graph.by_name[StageName(stage)], fallback="spare")  # type: ignore[type-var]
    flaky = Flaky(stage, 1000)
    assert answer(graph.edit(replace=[instead]), flaky) == undisturbed


def test_one_failure_more_than_attempts_ends_the_request_with_the_original_error() -> None:
    flaky = Flaky("answer", ATTEMPTS + 1)
    with pytest.raises(ConnectionResetError, match="the peer went away"):
        answer(workflows.one_shot().with_retry(AT_ONCE), flaky)
    assert flaky.raised == ATTEMPTS + 1


def test_a_borrowed_engine_is_called_again() -> None:
    calls: list[str] = []

    def llm(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) <= ATTEMPTS:
            raise TimeoutError("too slow")
        return "because"

    with Accelerator(llm=llm, index=lambda query, k: ["fact"]) as accelerator:
        graph = workflows.one_shot().with_retry(AT_ONCE)
        assert accelerator.run(graph, input="why") == "because"
    assert len(calls) == ATTEMPTS + 1
    assert len(set(calls)) == 1
