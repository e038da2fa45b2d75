"""Relation paths are computed as trees: answers are those of a mask, whatever was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chunk_prompts import answer
from fake_runner import error, finish, value
from tree_prompts import FUJI, LANE, RUNNERS, asked, engine_on, masked_answer, tree_of

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse import spans, tree_units
from rag_accel.engines.llm.local.reuse.tree_units import PromptTree
from rag_accel.engines.llm.local.text.tokens import DependencyInput
from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.dependency.positions import tree_positions
from rag_accel.kv.dependency.prompt import DepPrompt, LinearNode, TreeNode
from rag_accel.kv.dependency.tokens import node_keys, path_texts
from rag_accel.kv.dependency.tree import path_tree
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.segments import prompt_around

MOST = LocalOptions().max_tree_prompts
SOURCE = ChunkSource("model", "", (1,))


@pytest.fixture(params=RUNNERS)
def runner_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(runner_name: str) -> Iterator[LocalLLMEngine]:
    made = engine_on(runner_name)
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


def test_a_path_of_hundreds_of_tokens_is_computed(engine: LocalLLMEngine) -> None:
    work = asked("1", "Fuji -> holds -> lane", "Fuji -> holds -> " + "lane " * 300 + "keys")
    assert answer(engine, work).text == masked_answer(work)


def waiting(engine: LocalLLMEngine, count: int) -> list[EngineRequest]:
    """Submit prompts over paths that partly meet, and return them."""
    given = (FUJI, LANE, FUJI[:2] + LANE[1:], LANE + FUJI)
    works = [asked(str(at), *given[at % 4], question=f"\n\n{at}?") for at in range(count)]
    engine.submit(works)
    return works


def test_prompts_take_turns_and_all_are_answered(engine: LocalLLMEngine) -> None:
    works = waiting(engine, MOST + 5)
    outputs = finish(engine, *(str(work.id) for work in works))
    assert [value(outputs, str(work.id)).text for work in works] == list(map(masked_answer, works))


def test_those_that_are_cancelled_harm_nobody(engine: LocalLLMEngine) -> None:
    works = waiting(engine, MOST + 8)
    engine.step(StepBudget(threads=1, time_s=0.0))
    engine.cancel([work.id for work in works[::2]])
    left = works[1::2]
    outputs = finish(engine, *(str(work.id) for work in left))
    assert [value(outputs, str(work.id)).text for work in left] == list(map(masked_answer, left))
    assert not engine._reuse._prompts  # type: ignore[attr-defined]
    assert not engine._reuse._encodings  # type: ignore[attr-defined]


def test_all_cancelled_leave_no_lane(engine: LocalLLMEngine) -> None:
    for taken in range(4):
        works = waiting(engine, 6)
        for _ in range(taken):
            engine.step(StepBudget(threads=1, time_s=0.0))
        engine.cancel([work.id for work in works])
    engine._prefixes.clear()  # type: ignore[attr-defined]
    assert engine._pool.held_bytes == 0  # type: ignore[attr-defined]


def test_two_tenants_share_no_node(engine: LocalLLMEngine) -> None:
    answer(engine, asked("1", *FUJI, namespace="one"))
    found = answer(engine, asked("2", *FUJI, namespace="two"))
    assert found.use is not None
    assert found.use.from_chunks == 0
    again = answer(engine, asked("3", *FUJI, namespace="two"))
    assert again.use is not None
    assert again.use.from_chunks > 0


def test_a_forgotten_path_goes_with_all_that_has_seen_it(engine: LocalLLMEngine) -> None:
    answer(engine, asked("1", *FUJI))
    engine.forget(["Fuji -> is in -> metres"])
    work = asked("2", *FUJI)
    found = answer(engine, work)
    assert found.text == masked_answer(work)
    assert found.use is not None
    tree = tree_of(work).tree
    seen = [text.startswith("Fuji -> is in -> metres") for text in path_texts(tree)]
    gone = sum(len(tree.node_ids(node)) for node, is_gone in enumerate(seen) if is_gone)
    assert 0 < found.use.from_chunks == len(tree.ids) - gone


@pytest.mark.parametrize("policy", ["lru", "lookahead"])
@pytest.mark.cross_product(keep=4)
def test_a_store_too_small_for_all_changes_no_answer(runner_name: str, policy: str) -> None:
    engine = engine_on(runner_name, chunk_bytes=40_000, eviction=policy)
    works = [
        asked(str(at), *paths) for at, paths in enumerate((FUJI, LANE, FUJI + LANE, LANE, FUJI))
    ]
    assert [answer(engine, work).text for work in works] == list(map(masked_answer, works))
    assert 0 < engine.counts["chunk_memory_bytes"] <= 40_000
    engine.close()


def test_large_trees_are_encoded_piece_by_piece(runner_name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(tree_units.missing_subforests, "__defaults__", (20,))
    monkeypatch.setattr(spans, "MOST_ROWS", 20)
    engine = engine_on(runner_name)
    for at, paths in enumerate((FUJI + LANE, LANE + FUJI[1:])):
        work = asked(str(at), *paths)
        assert answer(engine, work).text == masked_answer(work)
    engine.close()


def test_a_tree_that_has_no_room_is_refused_and_harms_nobody(runner_name: str) -> None:
    engine = engine_on(runner_name)
    many = [f"Fuji -> holds -> lane number {at}" for at in range(400)]
    works = [asked("1", *FUJI), asked("2", *many), asked("3", *LANE)]
    engine.submit(works)
    outputs = finish(engine, "1", "2", "3")
    assert isinstance(error(outputs, "2"), EngineError)
    assert "longer than the model's context" in str(error(outputs, "2"))
    for work in (works[0], works[2]):
        assert value(outputs, str(work.id)).text == masked_answer(work)
    engine.close()


def test_nodes_outlive_the_engine_in_a_folder(runner_name: str, tmp_path: Path) -> None:
    for _ in range(2):
        engine = engine_on(runner_name, kv_folder=str(tmp_path / "kept"))
        work = asked("1", *FUJI, *LANE)
        found = answer(engine, work)
        assert found.text == masked_answer(work)
        engine.close()
    assert found.use is not None
    assert found.use.from_chunks == len(tree_of(work).tree.ids)


def test_prompts_of_nodes_are_computed_once_and_answered_again(engine: LocalLLMEngine) -> None:
    prompt = DepPrompt.chain("The guide.", [("Fuji", " is", " high"), ("Fuji", " holds")], "\nWhy?")
    kept = nodes("1", prompt, only_encoded=True)
    engine.submit([kept])
    assert value(finish(engine, "1"), "1") is None
    found = [answer(engine, nodes(str(at), prompt)) for at in (2, 3)]
    assert found[0].text == found[1].text
    assert all(one.use is not None and one.use.from_chunks > 0 for one in found)


def test_the_state_above_one_is_that_of_a_segment_with_tokens() -> None:
    tree = path_tree([("a", "silent", "b")], lambda text: [] if text == "silent" else [7])
    prompt = prompt_around((1,), tree, (2,), tree_positions(tree, begin=1))
    found = PromptTree(prompt, node_keys(tree, SOURCE))
    assert found.nodes() == [0, 2, 3]
    assert [found.parent_key(node) for node in found.nodes()] == [None, *found.keys[::2]]


def test_contexts_that_depend_on_each_other_are_refused(engine: LocalLLMEngine) -> None:
    first, second = (TreeNode(name, (("a", " b"),)) for name in ("first", "second"))
    prompt = DepPrompt((LinearNode("system", "s"), first, second, LinearNode("task", "t")))
    engine.submit([nodes("1", prompt)])
    found = error(finish(engine, "1"), "1")
    assert isinstance(found, ConfigError)
    assert "depends on another context" in str(found)


def nodes(id: str, prompt: DepPrompt, **fields: Any) -> EngineRequest:
    payload = DependencyInput(prompt=prompt, max_tokens=4, **fields)
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload)
