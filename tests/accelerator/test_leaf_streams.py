"""A single call of an owned engine streams what the engine makes, in threads and on loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest
from accel_harness import Gate, become_idle, opened, reply

from rag_accel import Accelerator
from rag_accel.accelerator import Work
from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, PrimitiveKind
from rag_accel.testing import FakeEngine, compute

Stream = Callable[[Accelerator, Work], tuple[list[str], Any]]


def work_of(acc: Accelerator, engine: FakeEngine, prompt: str = "a question", **how: Any) -> Work:
    """Join an engine and return a completion for it."""
    name = acc.own(engine, "llm", lambda: engine)
    payload = GenerationInput((Message("user", prompt),))
    return Work(name, PrimitiveKind.DECODING, payload, **how)


def in_thread(acc: Accelerator, work: Work) -> tuple[list[str], Any]:
    *pieces, value = acc.leaves.stream(acc.anonymous(), work)
    return pieces, value


def on_loop(acc: Accelerator, work: Work) -> tuple[list[str], Any]:
    async def collect() -> list[Any]:
        return [piece async for piece in acc.leaves.astream(acc.anonymous(), work)]

    *pieces, value = asyncio.run(collect())
    return pieces, value


both = pytest.mark.parametrize("stream", [in_thread, on_loop])


@both
def test_pieces_come_first_and_the_value_last(stream: Stream) -> None:
    engine = FakeEngine(steps=4)
    with opened() as acc:
        pieces, value = stream(acc, work_of(acc, engine))
    assert len(pieces) > 1
    assert "".join(pieces) == value.text == reply("a question")
    assert isinstance(value, GenerationOutput)


def test_a_piece_comes_before_the_end() -> None:
    gate, steps = Gate(), 0

    def third_waits(payload: Any) -> Any:
        nonlocal steps
        steps += 1
        return gate(payload) if steps == 3 else compute(payload)

    engine = FakeEngine(steps=4, compute=third_waits)
    with opened() as acc, gate:
        pieces = acc.leaves.stream(acc.anonymous(), work_of(acc, engine))
        first = next(pieces)
        assert reply("a question").startswith(first)
        gate.open()
        *_, value = pieces
        assert value.text == reply("a question")


@both
def test_an_error_of_the_engine_is_raised_after_the_pieces(stream: Stream) -> None:
    def broken(payload: Any) -> Any:
        raise ValueError("no text")

    engine = FakeEngine(steps=4, compute=broken)
    with opened() as acc, pytest.raises(ValueError, match="no text"):
        stream(acc, work_of(acc, engine))


def test_closing_the_iterator_cancels_the_work() -> None:
    gate, steps = Gate(), 0

    def second_waits(payload: Any) -> Any:
        nonlocal steps
        steps += 1
        return gate(payload) if steps == 2 else compute(payload)

    engine = FakeEngine(steps=50, compute=second_waits)
    with opened() as acc, gate:
        work = work_of(acc, engine, "word " * 50)
        pieces = cast("Generator[Any]", acc.leaves.stream(acc.anonymous(), work))
        next(pieces)
        gate.wait_until_entered()
        pieces.close()
        gate.open()
        become_idle(acc)
    assert any(call.method == "cancel" and call.ids for call in engine.calls)
    assert len(engine.batches) < 50


async def test_cancelling_the_task_cancels_the_work() -> None:
    gate = Gate()
    engine = FakeEngine(steps=2, compute=gate)
    with opened() as acc, gate:

        async def take() -> None:
            async for _ in acc.leaves.astream(acc.anonymous(), work_of(acc, engine)):
                pass

        task = asyncio.create_task(take())
        await asyncio.to_thread(gate.wait_until_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await asyncio.to_thread(become_idle, acc)
    assert any(call.method == "cancel" and call.ids for call in engine.calls)


def test_equal_streams_are_not_shared() -> None:
    engine = FakeEngine(steps=3)
    with opened() as acc:
        work = work_of(acc, engine, share="same")
        first = acc.leaves.stream(acc.anonymous(), work)
        begun = next(first)
        second, value = in_thread(acc, work)
        *rest, _ = first
    assert "".join([begun, *rest]) == "".join(second) == value.text


def test_an_engine_learns_who_asks_and_since_when() -> None:
    engine = FakeEngine(steps=1)
    with opened(deadline_s=60.0) as acc:
        identity = acc.open_request("program")
        list(acc.leaves.stream(identity, work_of(acc, engine)))
        acc.close_request(identity)
    ((asked,),) = engine.served
    assert asked.stream
    assert asked.depth == 1
    assert asked.arrived_at == identity.arrived_at
    assert asked.deadline == identity.deadline is not None
