"""Rows of a tree see their ancestors alone: each path gives what it gives alone behind the head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import fresh, ids_of, own_logits, paged_runner_for, part, runner_for, shared

from rag_accel.engines.llm.local.batching.rows import SequenceRows, Subtrees
from rag_accel.engines.llm.local.model import runner_choice
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.model.self_check import check_trees
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName
from rag_accel.engines.llm.local.paged import making
from rag_accel.errors import ConfigError

CLOSE = 1e-5
HEAD = ids_of(20, 1)
RUNNERS: dict[str, Callable[[Any], Any]] = {"torch": runner_for, "paged": paged_runner_for}
FAMILIES = ["llama", "llama3", "qwen2", "qwen3"]
#: Parents of the nodes of trees, in pre-order.
CHAIN, STAR, MIXED = (-1, 0, 1, 2), (-1, 0, 0, 0, 0), (-1, 0, 1, 1, 0, 4, 5, 4, -1, 8)


class RandomTree:
    """A tree of nodes with tokens of their own, in pre-order behind a head."""

    def __init__(self, parents: Sequence[int], seed: int, start: int) -> None:
        random = Random(seed)
        self.ids: list[int] = []
        self.paths: list[list[int]] = []
        self.positions: list[int] = []
        first: list[int] = []
        for number, parent in enumerate(parents):
            own = ids_of(random.randint(1, 5), 100 * seed + number)
            before = [] if parent < 0 else self.paths[parent]
            first.append(len(self.ids))
            self.positions += range(start + len(before), start + len(before) + len(own))
            self.ids += own
            self.paths.append([*before, *own])
        behind = [_behind(parents, number) for number in range(len(parents))]
        stops = [*first[1:], len(self.ids)]
        self.ends = [
            start + stops[behind[number] - 1]
            for number, (at, stop) in enumerate(zip(first, stops, strict=True))
            for _ in range(at, stop)
        ]
        #: of each node, the row of its last token
        self.last = [stop - 1 for stop in stops]

    def rows(self, lane: int, start: int) -> SequenceRows:
        """Return all rows of the tree, the last of each node asked for."""
        slots = range(start, start + len(self.ids))
        visible = Subtrees(self.ends)
        return SequenceRows(lane, self.ids, slots, self.positions, self.last, visible)


def _behind(parents: Sequence[int], node: int) -> int:
    """Return the first node behind a subtree."""
    at = node + 1
    while at < len(parents) and parents[at] >= node:
        at += 1
    return at


@pytest.fixture(params=RUNNERS)
def runner_of(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return RUNNERS[request.param]


def worst(found: torch.Tensor, tree: RandomTree, model: Any, head: Sequence[int] = HEAD) -> float:
    """Return by how much the logits of nodes differ from those of their paths alone."""
    expected = [own_logits(model, [*head, *path])[-1] for path in tree.paths]
    return float((found - torch.stack(expected)).abs().max())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.cross_product(keep=5)
def test_a_path_in_a_tree_is_that_path_alone(runner_of: Callable[[Any], Any], name: str) -> None:
    model, tree = shared(name), RandomTree(MIXED, 3, len(HEAD))
    runner = runner_of(model)
    lane = runner.pool.take(len(HEAD) + len(tree.ids))
    runner.run([part(lane, HEAD, 0, len(HEAD))])
    assert worst(runner.run([tree.rows(lane, len(HEAD))]), tree, model) <= CLOSE


def test_a_chain_longer_than_a_block_of_rows_is_causal_text(
    runner_of: Callable[[Any], Any],
) -> None:
    model, ids = shared("llama"), ids_of(300, 6)
    runner = runner_of(model)
    lane = runner.pool.take(len(HEAD) + len(ids))
    runner.run([part(lane, HEAD, 0, len(HEAD))])
    slots = range(len(HEAD), len(HEAD) + len(ids))
    visible = Subtrees([slots.stop] * len(ids))
    found = runner.run([SequenceRows(lane, ids, slots, slots, range(len(ids)), visible)])
    expected = own_logits(model, [*HEAD, *ids])[len(HEAD) :]
    assert float((found - expected).abs().max()) <= CLOSE


@pytest.mark.parametrize("parents", [CHAIN, STAR, MIXED], ids=["chain", "star", "mixed"])
def test_trees_of_several_sequences_beside_causal_rows(
    runner_of: Callable[[Any], Any], parents: Sequence[int]
) -> None:
    model = shared("qwen3")
    runner, trees = runner_of(model), [RandomTree(parents, seed, len(HEAD)) for seed in (4, 5)]
    lanes = [runner.pool.take(len(HEAD) + len(tree.ids)) for tree in trees]
    other = ids_of(33, 9)
    causal = runner.pool.take(len(other))
    runner.run([*(part(lane, HEAD, 0, len(HEAD)) for lane in lanes), part(causal, other, 0, 11)])
    rows = [tree.rows(lane, len(HEAD)) for tree, lane in zip(trees, lanes, strict=True)]
    sizes = [len(tree.last) for tree in trees]
    found = runner.run([rows[0], part(causal, other, 11, 33), rows[1]])
    first, middle, second = found.split([sizes[0], 22, sizes[1]])
    assert worst(first, trees[0], model) <= CLOSE
    assert worst(second, trees[1], model) <= CLOSE
    assert float((middle - own_logits(model, other)[11:]).abs().max()) <= CLOSE


def test_a_whole_prompt_with_a_tree_in_its_middle_is_one_item(
    runner_of: Callable[[Any], Any],
) -> None:
    model, tree, question = shared("llama"), RandomTree(MIXED, 6, len(HEAD)), ids_of(7, 8)
    runner = runner_of(model)
    head, size = len(HEAD), len(HEAD) + len(tree.ids) + len(question)
    begins = max(tree.positions) + 1
    positions = [*range(head), *tree.positions, *range(begins, begins + len(question))]
    ends = [size] * head + tree.ends + [size] * len(question)
    ids = [*HEAD, *tree.ids, *question]
    wanted = [head + at for at in tree.last]
    together, apart = (runner.pool.take(size) for _ in range(2))
    rows = SequenceRows(
        together,
        ids,
        range(size),
        positions,
        [*wanted, size - 1],
        Subtrees(ends, size - len(question)),
    )
    found = runner.run([rows])
    assert worst(found[:-1], tree, model) <= CLOSE
    runner.run([part(apart, HEAD, 0, head)])
    runner.run([tree.rows(apart, head)])
    behind = range(head + len(tree.ids), size)
    last = SequenceRows(apart, question, behind, positions[behind.start :], (len(question) - 1,))
    assert float((runner.run([last])[0] - found[-1]).abs().max()) <= CLOSE


def test_the_rest_of_a_lane_sees_the_whole_tree(runner_of: Callable[[Any], Any]) -> None:
    model, question = fresh("qwen3"), ids_of(6, 2)
    found: list[torch.Tensor] = []
    for seed in (6, 7):
        runner, tree = runner_of(model), RandomTree(STAR, seed, len(HEAD))
        lane = runner.pool.take(80)
        runner.run([part(lane, HEAD, 0, len(HEAD))])
        runner.run([tree.rows(lane, len(HEAD))])
        slots = range(len(HEAD) + len(tree.ids), len(HEAD) + len(tree.ids) + len(question))
        positions = range(60, 60 + len(question))
        found += runner.run([SequenceRows(lane, question, slots, positions, (5,))])
    assert float((found[0] - found[1]).abs().max()) > 100 * CLOSE


def test_rows_of_a_tree_are_proved_at_a_load(
    runner_of: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shared("qwen3")
    runner = runner_of(model)
    check_trees(model, runner)
    assert runner.pool.held_bytes == 0
    monkeypatch.setattr(Subtrees, "mask", lambda self, slots: np.tri(len(slots), dtype=bool))
    with pytest.raises(ConfigError, match="rows of a tree cannot be proved equal"):
        check_trees(model, runner)


@pytest.mark.parametrize("runner", ["auto", "paged"])
def test_an_operator_without_masks_is_named(
    runner: RunnerName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_choice, "LEAST_WEIGHTS", 0)
    monkeypatch.setattr(making, "MASK_INPUTS", ("of newer operators",))
    options = LocalOptions(kv_reuse="dependency", runner=runner, pool_bytes=1 << 26)
    if runner == "paged":
        with pytest.raises(ConfigError, match="no masks of rows"):
            load(shared("qwen3"), needs_tokenizer=False, options=options)
        return
    chosen = load(shared("qwen3"), needs_tokenizer=False, options=options).chosen
    assert chosen.name == "torch"
    assert "no masks of rows" in chosen.reason
