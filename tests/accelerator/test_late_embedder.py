"""With ``on_full="raise"`` a new request is refused where its texts would end too late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import pytest
from accel_harness import PATIENCE_S, opened
from fake_members import FakeMember, plain_vectors

from rag_accel import END, START, Accelerator, BusyError, RAGraph
from rag_accel.accelerator import Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines import DocumentIndex, IndexSpec
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.scheduler.messages import EngineName
from rag_accel.testing import FakeEngine, ManualClock

CALLERS = 64
TOKEN_S = 0.01


def embed(acc: Accelerator, text: str, identity: Any = None) -> Any:
    """Embed a text as one caller."""
    work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch((text,)), 1)
    return acc.leaves.compute(identity or acc.anonymous(), work)


def searching() -> RAGraph:
    graph = RAGraph().add_retrieval("search", top_k=1)
    return graph.add_edge(START, "search").add_edge("search", END)


def answering() -> RAGraph:
    graph = RAGraph().add_generation("answer", prompt="{input}")
    return graph.add_edge(START, "answer").add_edge("answer", END)


@contextmanager
def slow_pair(**options: Any) -> Iterator[tuple[Accelerator, list[FakeMember]]]:
    """Open an accelerator over two members that take 10 ms a token, in virtual time; SLO 0.2 s."""
    clock = ManualClock()

    def vectors(texts: Sequence[str], role: str) -> Any:
        clock.advance(TOKEN_S * sum(len(text.split()) for text in texts))
        return plain_vectors(texts, role)

    members = [FakeMember(name, vectors=vectors) for name in ("one", "two")]
    refuses = options.get("on_full") == "raise"
    group = DeviceGroup(members, slo_s=0.2, refuses_late=refuses, clock=clock)
    index = DocumentIndex(IndexSpec(8))
    with opened(embedder=group, index=index, llm=FakeEngine(), **options) as acc:
        embed(acc, "a first request teaches four")  # five tokens
        for member in members:
            member.may_go.clear()
        try:
            yield acc, members
        finally:
            for member in members:
                member.may_go.set()


def fill(acc: Accelerator) -> list[Any]:
    """Submit searches until one is refused; return the handles of the others."""
    handles: list[Any] = []
    for _ in range(CALLERS):
        try:
            handles.append(acc.submit(searching(), input="a question of five words"))
        except BusyError:
            return handles
    raise AssertionError("none was refused")


async def _arun(acc: Accelerator) -> Any:
    return await acc.arun(searching(), input="x")


async def _astream(acc: Accelerator) -> Any:
    return [text async for text in acc.astream(searching(), input="x")]


async def _acompute(acc: Accelerator) -> Any:
    work = Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch(("x",)), 1)
    return await acc.leaves.acompute(acc.anonymous(), work)


ENTRIES = {
    "run": lambda acc: acc.run(searching(), input="x"),
    "stream": lambda acc: list(acc.stream(searching(), input="x")),
    "submit": lambda acc: acc.submit(searching(), input="x"),
    "leaf": lambda acc: embed(acc, "x"),
    "arun": lambda acc: asyncio.run(_arun(acc)),
    "astream": lambda acc: asyncio.run(_astream(acc)),
    "aleaf": lambda acc: asyncio.run(_acompute(acc)),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_way_in_is_refused(entry: str) -> None:
    with slow_pair(on_full="raise") as (acc, members):
        handles = fill(acc)
        with pytest.raises(BusyError, match="later than it should"):
            ENTRIES[entry](acc)
        for member in members:
            member.may_go.set()
        assert handles
        for handle in handles:
            handle.result(PATIENCE_S)
        assert acc.run(searching(), input="x") is not None  # there is time again


def test_a_request_without_texts_enters() -> None:
    with slow_pair(on_full="raise") as (acc, members):
        fill(acc)
        assert acc.run(answering(), input="x") == "reply to: x"
        for member in members:
            member.may_go.set()


def test_texts_of_an_admitted_request_enter_and_those_beyond_the_limit_are_counted() -> None:
    with slow_pair(on_full="raise") as (acc, members):
        identity = acc.anonymous()
        first, second = (
            Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch((text,)), 1)
            for text in ("word " * 10, "word " * 90)
        )
        handed = acc.leaves.submit(identity, [first])
        handles = fill(acc)
        late = acc.leaves.submit(identity, [second])
        for member in members:
            member.may_go.set()
        for one in (handed, late):
            assert one.value(0).shape == (1, 8)
        for handle in handles:
            handle.result(PATIENCE_S)
        snapshot: Any = acc.metrics.snapshot()
        assert snapshot["engines"]["embedder"]["texts_past_slo"] > 0


def test_who_waits_is_never_refused() -> None:
    with slow_pair() as (acc, members):
        handles = [acc.submit(searching(), input="five words it is then") for _ in range(CALLERS)]
        for member in members:
            member.may_go.set()
        for handle in handles:
            handle.result(PATIENCE_S)


class NeverSure(FakeEngine):
    """An engine that cannot say whether it would be late."""

    def retry_after_s(self, request: str, live: Set[str]) -> float:
        raise ArithmeticError("no prediction")


def test_an_engine_that_fails_to_predict_refuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with opened(llm=NeverSure(), on_full="raise") as acc:
        assert acc.run(answering(), input="x") == "reply to: x"
    assert "failed to say whether a request would be late" in caplog.text
