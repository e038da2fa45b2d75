"""DepCache as its paper prints it computes trees in pre-order, and moves what it has kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from fake_runner import tokenizer
from tiny_chat import model
from tiny_models import paged_runner_for
from tree_prompts import logits_of, torch_runner

from bench.baselines.depcache import DepCache
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.paths import Segments
from rag_accel.kv.dependency.positions import tree_positions
from rag_accel.kv.dependency.tree import path_tree
from rag_accel.kv.dependency.visibility import dense_mask
from rag_accel.kv.segments import SegmentedPrompt, prompt_around

FUJI: tuple[Segments, ...] = (
    ("Fuji", " is in", " documents"),
    ("Fuji", " is in", " metres", " which", " guide"),
    ("Fuji", " holds", " lane"),
)
LANE: tuple[Segments, ...] = (("lane", " holds", " keys"), ("lane", " holds", " values"))
ROOM = 1 << 24
TOKENS = 4


def encode(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def prompt_of(
    paths: tuple[Segments, ...], head: str = "Answer by the documents."
) -> SegmentedPrompt:
    tree = path_tree(paths, encode)
    before = tuple(encode(head)) if head else ()
    positions = tree_positions(tree, "preorder", len(before))
    return prompt_around(before, tree, tuple(encode("How high is Mount Fuji?")), positions)


def tokens_of(paths: tuple[Segments, ...]) -> int:
    return len(path_tree(paths, encode).ids)


@pytest.fixture(scope="module", params=[torch_runner, paged_runner_for], ids=["torch", "paged"])
def runner(request: Any) -> Any:
    made: Callable[[Any], Any] = request.param
    if made is paged_runner_for:
        pytest.importorskip("openvino")
    return made(model())


@torch.inference_mode()
def masked(prompt: SegmentedPrompt, tokens: list[int]) -> torch.Tensor:
    """Return the model's own logits of the tokens behind a prompt: ``[tokens, vocabulary]``."""
    ids = [*prompt.ids, *tokens[:-1]]
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril().numpy()
    head, behind = len(prompt.head), prompt.slots.stop
    mask[head:behind, :behind] = dense_mask(prompt.tree, past=head)
    return logits_of(model(), ids, range(len(ids)), mask)[len(prompt.ids) - 1 :]


@pytest.mark.parametrize("re_encodes", [True, False])
def test_a_new_tree_has_the_logits_of_a_mask_in_pre_order(runner: Any, re_encodes: bool) -> None:
    prompt = prompt_of((*FUJI, *LANE))
    found = DepCache(runner, ROOM, re_encodes=re_encodes).answer(prompt, TOKENS)
    expected = masked(prompt, list(found.tokens))
    torch.testing.assert_close(found.logits, expected, atol=2e-4, rtol=1e-4)
    assert list(found.tokens) == expected.argmax(-1).tolist()
    assert found.reused_tokens == 0


@pytest.mark.parametrize("re_encodes", [True, False])
def test_the_same_tree_again_is_not_computed_and_answers_the_same(
    runner: Any, re_encodes: bool
) -> None:
    cache, prompt = DepCache(runner, ROOM, re_encodes=re_encodes), prompt_of((*FUJI, *LANE))
    first, again = cache.answer(prompt, TOKENS), cache.answer(prompt, TOKENS)
    torch.testing.assert_close(again.logits, first.logits, atol=2e-4, rtol=1e-4)
    assert again.reused_tokens == len(prompt.tree.ids)


def test_without_a_head_re_encoding_moves_whole_trees_exactly(runner: Any) -> None:
    cache = DepCache(runner, ROOM)
    cache.answer(prompt_of((*FUJI, *LANE), head=""))
    moved = prompt_of((*LANE, *FUJI), head="")
    found = cache.answer(moved, TOKENS)
    assert found.reused_tokens == len(moved.tree.ids)
    torch.testing.assert_close(
        found.logits, masked(moved, list(found.tokens)), atol=2e-4, rtol=1e-4
    )


def test_without_re_encoding_moved_trees_have_the_rotation_of_their_old_places(
    runner: Any,
) -> None:
    cache = DepCache(runner, ROOM, re_encodes=False)
    cache.answer(prompt_of((*FUJI, *LANE), head=""))
    moved = prompt_of((*LANE, *FUJI), head="")
    found = cache.answer(moved, TOKENS)
    apart = found.logits - masked(moved, list(found.tokens))
    assert float(apart.abs().max()) > 1e-2


def test_a_sibling_that_was_pruned_leaves_its_mark_on_what_is_reused(runner: Any) -> None:
    cache = DepCache(runner, ROOM)
    cache.answer(prompt_of(FUJI))
    pruned = prompt_of(FUJI[1:])
    found = cache.answer(pruned, TOKENS)
    assert found.reused_tokens == len(pruned.tree.ids)
    apart = found.logits - masked(pruned, list(found.tokens))
    assert float(apart.abs().max()) > 1e-3


def test_what_is_missing_is_computed_behind_what_is_kept(runner: Any) -> None:
    cache = DepCache(runner, ROOM)
    cache.answer(prompt_of(FUJI[:1]))
    whole = prompt_of(FUJI)  # the kept path comes first: none of its nodes moves
    found = cache.answer(whole, TOKENS)
    assert found.reused_tokens == tokens_of(FUJI[:1])
    torch.testing.assert_close(
        found.logits, masked(whole, list(found.tokens)), atol=2e-4, rtol=1e-4
    )


def test_a_replayed_stream_keeps_what_the_same_answers_keep(runner: Any) -> None:
    asked, replayed = DepCache(runner, 1 << 14), DepCache(runner, 1 << 14)
    for paths in (FUJI, LANE, FUJI[:2], (*LANE, *FUJI[2:]), LANE[:1]):
        asked.answer(prompt_of(paths))
        replayed.replay(prompt_of(paths))
        assert replayed.kept == asked.kept
        assert all(state.nbytes for state in map(replayed.peek, replayed.kept) if state)
    whole = prompt_of((*FUJI, *LANE))
    found = replayed.answer(whole).reused_tokens
    assert found == asked.answer(whole).reused_tokens
    assert 0 < found < len(whole.tree.ids)


def test_a_prompt_that_has_no_room_is_refused_and_leaves_no_lane(runner: Any) -> None:
    before = runner.pool.held_bytes
    long = tuple(("Fuji", " holds" * 40, " lane" * number) for number in range(1, 60))
    with pytest.raises(ConfigError, match="no room"):
        DepCache(runner, ROOM).answer(prompt_of(long))
    assert runner.pool.held_bytes == before


def test_positions_by_depth_are_refused(runner: Any) -> None:
    prompt = prompt_of(FUJI)
    by_depth = prompt_around(
        prompt.head, prompt.tree, prompt.task, tree_positions(prompt.tree, "shared", 3)
    )
    with pytest.raises(ConfigError, match="pre-order"):
        DepCache(runner, ROOM).answer(by_depth)
