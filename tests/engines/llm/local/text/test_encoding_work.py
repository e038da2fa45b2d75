"""Texts are encoded as work of their own, behind texts that are encoded first where need be."""

from __future__ import annotations

import pytest
from fake_runner import FakeRunner, error, finish, tokenizer, value, work

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tokens import EncodingInput
from rag_accel.errors import EngineError
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.segments import Segment, SegmentedPrompt
from rag_accel.kv.store import ChunkStore

HEAD = tuple(range(10, 30))
FIRST, SECOND, THIRD = (
    Segment("chunk", tuple(range(at, at + 40)), len(HEAD), text=f"Text {at}.")
    for at in (50, 100, 150)
)
PROMPT = SegmentedPrompt((Segment("head", HEAD, 0), FIRST, Segment("glue", (5,), 60)))
SOURCE = ChunkSource("model", "", HEAD)
BEHIND = SOURCE.behind([SECOND.ids, THIRD.ids])


def encode(id: str, *neighbours: Segment) -> EngineRequest:
    payload = EncodingInput(prompt=PROMPT, neighbours=neighbours)
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload)


def made(runner: FakeRunner, **options: object) -> tuple[LocalLLMEngine, ChunkStore]:
    store = ChunkStore(1 << 20)
    settings = {"kv_reuse": "full", "prefix_lanes": 0, "step_tokens": 16, **options}
    engine = LocalLLMEngine(
        runner,
        tokenizer(),
        eos=(),
        options=LocalOptions(**settings),  # type: ignore[arg-type]
        kept=(store, "model"),
    )
    return engine, store


def test_a_text_is_encoded_alone() -> None:
    runner = FakeRunner()
    engine, store = made(runner)
    engine.submit([encode("one")])
    assert value(finish(engine, "one"), "one") is None
    assert store.find(SOURCE.key(FIRST.ids)) == FIRST.ids
    assert runner.computed == len(HEAD) + len(FIRST.ids)


def test_what_it_stands_behind_is_encoded_first_and_kept() -> None:
    engine, store = made(FakeRunner())
    engine.submit([encode("one", SECOND, THIRD)])
    finish(engine, "one")
    kept = [SOURCE.key(SECOND.ids), SOURCE.key(THIRD.ids), BEHIND.key(FIRST.ids)]
    assert [key in store for key in kept] == [True] * 3
    assert SOURCE.key(FIRST.ids) not in store


def test_of_neighbours_that_are_kept_nothing_is_computed() -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND, THIRD)])
    finish(engine, "one")
    before = runner.computed
    engine.submit([encode("two", THIRD, SECOND)])
    finish(engine, "two")
    assert runner.computed - before == len(HEAD) + len(FIRST.ids)
    (rows,) = [rows for forward in runner.forwards[-1:] for rows in forward]
    assert rows.slots[-1] + 1 == len(HEAD) + 3 * 40


def test_what_is_kept_already_ends_at_once() -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND)])
    finish(engine, "one")
    before = runner.computed
    engine.submit([encode("two", SECOND)])
    finish(engine, "two")
    assert runner.computed == before


def test_two_that_are_alike_are_encoded_once() -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND), encode("two", SECOND)])
    finish(engine, "one", "two")
    assert runner.computed <= 2 * (len(HEAD) + 40)


@pytest.mark.parametrize("steps", range(0, 10, 3))
def test_cancelled_work_frees_its_room(steps: int) -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND, THIRD)])
    for _ in range(steps):
        engine.step(StepBudget(0.0))
    engine.cancel([WorkId("one")])
    assert runner.pool.held_bytes == 0
    engine.submit([work("next")])
    finish(engine, "next")


def test_what_never_has_room_ends_with_an_error() -> None:
    engine, _ = made(FakeRunner(pool_size=len(HEAD) + 3 * 40 - 1))
    engine.submit([encode("one", SECOND, THIRD), encode("two", SECOND)])
    outputs = finish(engine, "one", "two")
    assert isinstance(error(outputs, "one"), EngineError)
    assert value(outputs, "two") is None


def test_what_has_room_one_after_the_other_is_encoded() -> None:
    engine, store = made(FakeRunner(pool_size=len(HEAD) + 3 * 40))
    engine.submit([encode("one", SECOND, THIRD), encode("two", THIRD, SECOND)])
    finish(engine, "one", "two")
    assert BEHIND.key(FIRST.ids) in store


def test_prompts_are_answered_beside_it() -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND), work("asked")])
    outputs = finish(engine, "one", "asked")
    assert value(outputs, "asked").completion_tokens == 8


def test_closing_forgets_it() -> None:
    runner = FakeRunner()
    engine, _ = made(runner)
    engine.submit([encode("one", SECOND)])
    engine.step(StepBudget(0.0))
    engine.close()
    assert runner.pool.held_bytes == 0
