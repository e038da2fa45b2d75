"""Relation paths are computed as trees: answers are those of a mask, whatever was kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chunk_prompts import answer
from fake_runner import finish, value
from tree_prompts import FUJI, LANE, RUNNERS, asked, engine_on, masked_answer, tree_of

from rag_accel.engines.llm.local.engine import LocalLLMEngine


@pytest.fixture(params=RUNNERS)
def engine(request: pytest.FixtureRequest) -> Iterator[LocalLLMEngine]:
    made = engine_on(request.param)
    yield made
    made.close()


def test_an_answer_is_that_of_the_mask(engine: LocalLLMEngine) -> None:
    work = asked("1", *FUJI, *LANE)
    assert answer(engine, work).text == masked_answer(work)


def test_paths_that_were_seen_are_not_computed_again(engine: LocalLLMEngine) -> None:
    answer(engine, asked("1", *FUJI, *LANE))
    again = asked("2", *LANE, *FUJI, question="\n\nWhich guide?")
    found = answer(engine, again)
    assert found.text == masked_answer(again)
    assert found.use is not None
    prompt = tree_of(again)
    assert found.use.from_chunks == len(prompt.tree.ids)
    assert found.use.computed == len(prompt.task)


def test_a_part_that_is_missing_is_computed_behind_what_is_there(engine: LocalLLMEngine) -> None:
    answer(engine, asked("1", FUJI[0], LANE[0], LANE[2]))
    for at, paths in enumerate(((*FUJI, LANE[1]), (*LANE, *FUJI), (FUJI[1], FUJI[2], LANE[0]))):
        work = asked(f"part {at}", *paths)
        assert answer(engine, work).text == masked_answer(work), paths


def test_sixteen_at_once_answer_as_each_alone(engine: LocalLLMEngine) -> None:
    works = [
        asked(
            str(at), *(FUJI, LANE, FUJI[:2] + LANE[1:], LANE + FUJI)[at % 4], question=f"\n\n{at}?"
        )
        for at in range(16)
    ]
    engine.submit(works)
    outputs = finish(engine, *(str(work.id) for work in works))
    for work in works:
        assert value(outputs, str(work.id)).text == masked_answer(work)


def test_lines_that_share_nothing_stay_as_they_are(engine: LocalLLMEngine) -> None:
    work = asked("1", FUJI[0], LANE[0])
    plain = engine_on("torch", kv_reuse="exact")
    found = answer(engine, work)
    assert found.text == answer(plain, work).text
    assert found.use is not None
    assert found.use.is_exact
    plain.close()
