"""Tokens behind a tree are taken over from a prompt with the same tree, and from no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from chunk_prompts import answer
from fake_runner import finish, value
from tree_prompts import FUJI, LANE, QUESTION, RUNNERS, asked, engine_on, masked_answer, tree_of

from rag_accel.engine_api import EngineRequest, PromptUse
from rag_accel.engines.llm.local.engine import LocalLLMEngine

TEXT = "\n\nThe guide holds the keys of Mount Fuji.\n\n"
#: the same paths in another order: as many tokens behind the same head
TURNED = (*FUJI[::-1], *LANE)


@pytest.fixture(params=RUNNERS)
def engine(request: pytest.FixtureRequest) -> Iterator[LocalLLMEngine]:
    made = engine_on(request.param)
    yield made
    made.close()


def used(engine: LocalLLMEngine, work: EngineRequest) -> PromptUse:
    """Return how a prompt was computed, whose answer is that of a mask."""
    found = answer(engine, work)
    assert found.text == masked_answer(work)
    assert found.use is not None
    assert found.use.computed + found.use.from_prefix + found.use.from_chunks == len(
        tree_of(work).ids
    )
    return found.use


def same_task(one: EngineRequest, other: EngineRequest) -> int:
    """Return how many tokens behind the tree begin both prompts' tasks."""
    tasks = zip(tree_of(one).task, tree_of(other).task, strict=False)
    return next(at for at, (mine, its) in enumerate(tasks) if mine != its)


@pytest.mark.parametrize("times", [2, 3])
def test_of_an_equal_prompt_one_token_is_computed(engine: LocalLLMEngine, times: int) -> None:
    uses = [used(engine, asked(str(at), *FUJI, *LANE)) for at in range(times)]
    prompt = tree_of(asked("same", *FUJI, *LANE))
    assert uses[-1].computed == 1
    assert uses[-1].from_chunks == uses[-1].approximate == len(prompt.tree.ids)
    assert uses[-1].from_prefix == len(prompt.head) + len(prompt.task) - 1


def test_a_text_behind_the_tree_is_not_computed_again(engine: LocalLLMEngine) -> None:
    first = asked("1", *FUJI, *LANE, question=f"{TEXT}Who is it?")
    second = asked("2", *FUJI, *LANE, question=f"{TEXT}Which lane?")
    used(engine, first)
    again = used(engine, second)
    assert again.computed == len(tree_of(second).task) - same_task(first, second)


@pytest.mark.parametrize("paths", [TURNED, FUJI, (*FUJI, *LANE[:2])])
def test_another_tree_has_a_task_of_its_own(engine: LocalLLMEngine, paths: Sequence[str]) -> None:
    used(engine, asked("1", *FUJI, *LANE))
    work = asked("2", *paths)
    assert used(engine, work).computed >= len(tree_of(work).task)


def test_a_flat_prompt_takes_nothing_of_a_tree_nor_a_tree_of_it(engine: LocalLLMEngine) -> None:
    work = asked("tree", *FUJI, *LANE)
    flat = EngineRequest(
        work.id, "flat", work.kind, type(work.payload)(work.payload.messages, max_tokens=6)
    )
    plain = engine_on("torch", kv_reuse="exact")
    alone = answer(plain, flat).text
    plain.close()
    for _ in range(2):
        assert answer(engine, flat).text == alone
        used(engine, work)


def test_a_tenant_takes_no_other_ones_task(engine: LocalLLMEngine) -> None:
    used(engine, asked("1", *FUJI, namespace="one"))
    found = used(engine, asked("2", *FUJI, namespace="two"))
    assert found.from_prefix == found.from_chunks == 0


def test_a_task_that_has_seen_a_forgotten_path_is_computed(engine: LocalLLMEngine) -> None:
    for at in "12":
        used(engine, asked(at, *FUJI, *LANE))
    engine.forget([FUJI[1]])
    work = asked("3", *FUJI, *LANE)
    found = used(engine, work)
    assert found.computed > len(tree_of(work).task)
    assert found.from_chunks < found.approximate


def test_equal_prompts_at_once_share_their_tasks(engine: LocalLLMEngine) -> None:
    """All but the first wait for its rows; one is cancelled and the others are answered."""
    answer(engine, asked("seen", *FUJI, *LANE, question="\n\nWhy?"))
    works = [asked(str(at), *FUJI, *LANE, question=TEXT + QUESTION) for at in range(6)]
    engine.submit(works)
    engine.cancel([works[1].id])
    left = [works[0], *works[2:]]
    outputs = finish(engine, *(str(work.id) for work in left))
    found = [value(outputs, str(work.id)) for work in left]
    assert {one.text for one in found} == {masked_answer(works[0])}
    uses = [one.use for one in found]
    assert min(use.computed for use in uses if use is not None) == 1


def test_tasks_that_were_given_up_are_computed_again() -> None:
    made = engine_on("torch", prefix_lanes=0)
    used(made, asked("1", *FUJI, *LANE))
    found = used(made, asked("2", *FUJI, *LANE))
    assert found.computed == len(tree_of(asked("3", *FUJI, *LANE)).ids) - found.from_chunks
    made.close()
