"""Texts are encoded behind those they were retrieved with, and used where any of these is."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from chunk_prompts import A, B, C, answer, asked, make, tokens
from fake_runner import FakeRunner, finish, tokenizer, value
from kept_engines import engine_over
from tiny_chat import model

from rag_accel.engine_api import EngineOutput, EngineRequest, StepBudget, WorkId
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.kv.neighbours import MOST_NEIGHBOURS
from rag_accel.kv.segments import SegmentedPrompt

D, E = "The third of them has no name at all.", "Nobody has said which of the lanes is free."
OTHERS = tuple(
    f"Lane {number} holds what {number + 1} sequences have in common." for number in range(40)
)


def engine_of(**options: Any) -> LocalLLMEngine:
    """Return an engine of a real model whose states can be compared."""
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    chosen = {"kv_reuse": "full", "reuse_always": True, **options}
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, options=LocalOptions(**chosen))


def prompt_of(engine: Any, work: EngineRequest) -> SegmentedPrompt:
    found = engine._reader._of_messages().segmented(
        work.payload.messages, work.payload.chunk_spans, 8
    )
    assert found is not None
    return found


def states(engine: Any, text: str) -> list[Any]:
    """Return the kept states of a text."""
    store = engine._reuse._store
    own = store.digests([text], "")
    return [
        store.peek(key) for key in store.kept if own <= store._labels[key] - store.peek(key).seen
    ]


def computed(engine: Any, ids: tuple[int, ...], slots: range) -> Any:
    """Return the state of some places of a prompt that is computed as a whole."""
    runner = engine._running._runner
    lane = runner.pool.take(len(ids))
    runner.run([SequenceRows(lane, ids, range(len(ids)), range(len(ids)))])
    return runner.pool.read(lane, slots)


def assert_close(one: Any, other: Any) -> None:
    assert one.position == other.position
    torch.testing.assert_close(one.keys, other.keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.values, other.values, atol=1e-5, rtol=1e-5)


def test_texts_of_one_prompt_see_those_before_them_and_nothing_else() -> None:
    engine = engine_of()
    work = asked("one", A, B, C)
    answer(engine, work)
    prompt = prompt_of(engine, work)
    ids = list(prompt.head)
    for text, segment in zip((A, B, C), prompt.chunks, strict=True):
        (state,) = states(engine, text)
        slots = range(len(ids), len(ids) + len(segment.ids))
        ids += segment.ids
        assert_close(state, computed(engine, tuple(ids), slots))


def test_a_new_text_is_encoded_behind_the_kept_ones_before_it() -> None:
    engine = engine_of()
    answer(engine, asked("one", A, B, C))
    answer(engine, asked("two", A, B, C, D, E))
    seen = engine._reuse._store.digests([A, B, C], "")  # type: ignore[attr-defined]
    (state,), (last,) = states(engine, D), states(engine, E)
    assert state.seen == seen
    assert last.seen == seen | engine._reuse._store.digests([D], "")  # type: ignore[attr-defined]


def test_a_state_is_used_where_a_text_that_it_has_seen_stands_anywhere() -> None:
    engine = make(FakeRunner())
    answer(engine, asked("one", A, B, C))
    done = answer(engine, asked("two", C, D, A))
    assert done.use is not None
    assert (done.use.from_chunks, done.use.preprocessed) == (
        tokens(A) + tokens(C),
        tokens(C) + tokens(D),
    )


def test_without_any_of_them_the_text_is_encoded_alone_once() -> None:
    engine = engine_of()
    answer(engine, asked("one", A, B))
    uses = [answer(engine, asked(id, D, B)).use for id in ("two", "three")]
    assert [use.from_chunks for use in uses if use] == [0, tokens(D) + tokens(B)]
    assert sorted(len(state.seen) for state in states(engine, B)) == [0, 1]


def test_by_the_recipe_alone_texts_see_the_head_only() -> None:
    engine = engine_of(kv_recipe="alone")
    work = asked("one", A, B)
    answer(engine, work)
    prompt = prompt_of(engine, work)
    (state,) = states(engine, B)
    ids = (*prompt.head, *prompt.chunks[1].ids)
    assert_close(state, computed(engine, ids, range(len(prompt.head), len(ids))))


def test_a_forgotten_text_takes_all_that_has_seen_it_along() -> None:
    engine = engine_of()
    answer(engine, asked("one", A, B))
    answer(engine, asked("two", B, A, C))  # C behind B, which has seen A
    engine.forget([A])
    assert [len(states(engine, text)) for text in (A, B, C)] == [0, 0, 0]


def test_a_state_says_of_few_texts_only_that_it_has_seen_them() -> None:
    engine = make(FakeRunner())
    for start in range(0, 20, 5):
        answer(engine, asked(str(start), *OTHERS[start : start + 20]))
    seen = [len(state.seen) for text in OTHERS for state in states(engine, text)]
    assert max(seen) > 3
    assert max(seen) < MOST_NEIGHBOURS


def test_prompts_share_the_encoding_of_those_texts_that_they_may_use() -> None:
    engine = make(FakeRunner())
    engine.submit([asked("one", A, B, C), asked("two", B, C, D), asked("three", D, C)])
    outputs = finish(engine, "one", "two", "three")
    reused = [value(outputs, id).use.from_chunks for id in ("one", "two", "three")]
    # C has seen A and B, of which the third prompt has none, and B has seen A alone.
    assert reused == [0, tokens(C), tokens(D)]


@pytest.mark.parametrize("steps", range(4))
def test_a_prompt_that_ends_leaves_what_others_wait_for(steps: int) -> None:
    engine = make(FakeRunner(), step_tokens=20, prefix_lanes=0, chunk_bytes=0)
    engine.submit([asked("one", A, B, C), asked("two", B, A)])
    for _ in range(steps):
        engine.interrupt()
        engine.step(StepBudget())
    engine.cancel([WorkId("one")])
    assert value(finish(engine, "two"), "two").completion_tokens == 6
    assert engine.held_bytes == 0


def test_the_next_engine_knows_what_kept_states_have_seen(tmp_path: Path) -> None:
    first = engine_over(tmp_path / "kept", reuse_always=True)
    answer(first, asked("one", A, B, C))
    first.close()
    engine = engine_over(tmp_path / "kept", reuse_always=True)
    done = [answer(engine, asked(id, *texts)) for id, texts in (("one", (C, A)), ("two", (D, B)))]
    engine.close()
    uses = [one.use for one in done]
    assert [use.from_chunks for use in uses if use] == [tokens(C) + tokens(A), 0]


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_those_of_their_own_prompts_whatever_came_before(seed: int) -> None:
    random = Random(seed)
    engine = make(FakeRunner(), chunk_bytes=random.choice((60, 120, 1 << 20)))
    texts = (A, B, C, D, E)
    for turn in range(12):
        works = [
            asked(f"{turn}-{at}", *random.sample(texts, random.randint(1, 5))) for at in range(3)
        ]
        engine.submit(works)
        outputs: list[EngineOutput] = []
        for _ in range(random.randint(0, 2)):
            engine.interrupt()
            outputs += engine.step(StepBudget())
        engine.cancel([works[0].id])
        ended = {output.id for output in outputs if output.kind == "final"}
        outputs += finish(engine, *(str(work.id) for work in works[1:] if work.id not in ended))
        for work in works[1:]:
            whole = answer(make(FakeRunner(), kv_reuse="exact"), work)
            assert value(outputs, str(work.id)).text == whole.text
    assert not engine._reuse._prompts  # type: ignore[attr-defined]
    assert not engine._reuse._encoded  # type: ignore[attr-defined]
