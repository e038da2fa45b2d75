"""DepCache as its paper prints it: trees of paths by pre-order positions, whose nodes are kept.

- A tree's tokens have the positions in which they stand, in pre-order, and see their own path and
  the prompt's head (sections 3.1 and 4).
- A node is kept under its path, whatever stood next to it, with the keys that it had there
  (section 4.2.1). What is missing of a tree is computed behind what is kept of it.
- Re-encoding rotates kept keys to the places that they have in another prompt (section 4.1, GKVR).
  Without it, keys keep the rotation of the places where they were computed.
- The least valuable leaves go first, by the policy LACR as printed (section 4.2.2).

Reuse is not exact: a kept node has seen positions that its siblings have shifted. It is written on
packed rows of a model, apart from the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from bench.baselines.eviction import LACRPolicy
from rag_accel.engine_api import ChunkSpan, Message
from rag_accel.engines.llm.local.batching.rows import LanePool, Runner, SequenceRows
from rag_accel.engines.llm.local.reuse.tree_units import (
    PromptTree,
    Subforest,
    missing_subforests,
)
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.errors import ConfigError, EngineError
from rag_accel.kv.dependency.positions import tree_positions
from rag_accel.kv.dependency.tokens import node_keys
from rag_accel.kv.entry import KeyValues, LaneState
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.segments import SegmentedPrompt, prompt_around
from rag_accel.kv.store import ChunkStore

#: Rows of a forward, about: what the engine takes for a prompt that is alone.
_MOST_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Answered:
    """The greedy answer to a prompt.

    Args:
        tokens: of the answer.
        logits: ``[tokens, vocabulary]``, float32, those that each token was chosen by.
        reused_tokens: of the tree, those that were kept.
    """

    tokens: tuple[int, ...]
    logits: torch.Tensor
    reused_tokens: int


def preorder_prompt(
    prompting: Prompting, messages: Sequence[Message], spans: Sequence[ChunkSpan]
) -> SegmentedPrompt:
    """Return the prompt that the engine computes as a tree, but with positions in pre-order.

    Args:
        prompting: of the model's tokenizer.
        messages: of the prompt.
        spans: where its paths stand.

    Raises:
        EngineError: no two of its paths begin alike.
    """
    prompt = prompting.tree(messages, spans)
    if prompt is None:
        raise EngineError("a prompt has no tree", where="DepCache", valid="paths that share")
    positions = tree_positions(prompt.tree, "preorder", len(prompt.head))
    return prompt_around(prompt.head, prompt.tree, prompt.task, positions)


class DepCache:
    """Prompts with trees in pre-order, and the nodes kept of earlier ones.

    Args:
        runner: of a model whose keys can be moved; its pool is used by nothing else meanwhile.
        limit_bytes: most bytes of all nodes that are kept.
        re_encodes: whether kept keys are rotated to their new places.
    """

    def __init__(self, runner: Runner, limit_bytes: int, *, re_encodes: bool = True) -> None:
        self._runner = runner
        self._re_encodes = re_encodes
        self._store = ChunkStore(limit_bytes, LACRPolicy(), admits_all=True)
        self._heads: dict[tuple[int, ...], LaneState] = {}

    @property
    def kept(self) -> list[bytes]:
        """Return the keys of the nodes that are kept."""
        return self._store.kept

    def peek(self, key: bytes) -> LaneState | None:
        """Return the state of a node, without counting it as used."""
        return self._store.peek(key)

    @torch.inference_mode()
    def answer(self, prompt: SegmentedPrompt, most: int = 1) -> Answered:
        """Return the greedy answer of so many tokens; whatever ends an answer does not end it.

        Raises:
            ConfigError: the prompt's positions are not in pre-order, or it does not fit.
        """
        found = self._begun(prompt)
        reused = len(prompt.tree.ids) - _tokens(found, found.missing)
        while found.missing:
            self._compute(found)
        size = len(prompt.ids)
        with _lane(self._runner.pool, size + most) as lane:
            self._put(lane, found, found.nodes())
            places = range(size - len(prompt.task), size)
            logits = [self._rows(lane, prompt.task, places)]
            tokens = [int(logits[0].argmax())]
            for at in range(size, size + most - 1):
                logits.append(self._rows(lane, tokens[-1:], range(at, at + 1)))
                tokens.append(int(logits[-1].argmax()))
        return Answered(tuple(tokens), torch.cat(logits), reused)

    @torch.inference_mode()
    def replay(self, prompt: SegmentedPrompt) -> None:
        """Keep what an answer to a prompt keeps, but with states that nothing was computed for.

        For the time of later answers, which depends on what is kept and not on its content.
        """
        found = self._begun(prompt)
        head = self._head(prompt.head or prompt.task)
        assert isinstance(head, KeyValues)
        layers, heads, _, dim = head.keys.shape
        for node in found.nodes():
            if found.keys[node] in found.missing:
                tokens = int(prompt.tree.starts[node + 1] - prompt.tree.starts[node])
                keys, values = (head.keys.new_ones(layers, heads, tokens, dim) for _ in range(2))
                self._keep(found, node, KeyValues(keys, values, _position(prompt, node)))

    def _begun(self, prompt: SegmentedPrompt) -> PromptTree:
        """Return the tree of a prompt with the states that are kept of it."""
        start = len(prompt.head)
        in_order = np.arange(start, start + len(prompt.tree.ids))
        if not np.array_equal(prompt.positions.positions, in_order):
            raise ConfigError("positions of a tree are not in pre-order", where="DepCache")
        keys = node_keys(prompt.tree, ChunkSource("", "", prompt.head))
        found = PromptTree(prompt, keys)
        self._store.began([found.keys])
        for key in reversed(found.keys):  # children first, so that none outlives its parent
            if key in found.missing and (state := self._store.find(key)) is not None:
                found.take(key, state)
        return found

    def _compute(self, found: PromptTree) -> None:
        """Compute and keep what can be computed now of what is missing."""
        is_awaited = [False] * len(found.prompt.tree)
        parts = list(missing_subforests(found.prompt, found.cached(), is_awaited))
        for group in _groups(parts):
            with ExitStack() as stack:
                lanes = [
                    stack.enter_context(_lane(self._runner.pool, len(part.ids))) for part in group
                ]
                for lane, part in zip(lanes, group, strict=True):
                    self._put(lane, found, part.past)
                self._runner.run(
                    [_part_rows(*one, found.prompt) for one in zip(lanes, group, strict=True)]
                )
                for lane, part in zip(lanes, group, strict=True):
                    self._take(lane, found, part)

    def _take(self, lane: int, found: PromptTree, part: Subforest) -> None:
        """Keep the nodes that were computed in a lane."""
        starts, at = found.prompt.tree.starts, part.place.slots.start
        for node in part.nodes:
            size = int(starts[node + 1] - starts[node])
            if size:
                state = self._runner.pool.read(
                    lane, range(at, at + size), _position(found.prompt, node)
                )
                self._keep(found, node, state)
            at += size

    def _keep(self, found: PromptTree, node: int, state: LaneState) -> None:
        found.take(found.keys[node], state)
        self._store.put(found.keys[node], state, parent=found.parent_key(node))

    def _put(self, lane: int, found: PromptTree, nodes: Sequence[int]) -> None:
        """Put the head, and nodes behind it, into a lane."""
        prompt, pool = found.prompt, self._runner.pool
        if prompt.head:
            pool.write(lane, 0, self._head(prompt.head))
        states: list[LaneState] = []
        positions: list[int] = []
        for node in nodes:
            state = found.states.get(found.keys[node])
            if state is not None:
                positions.append(_position(prompt, node))
                states.append(self._at(state, positions[-1]))
        if states:
            pool.place(lane, len(prompt.head), states, positions)

    def _at(self, state: LaneState, position: int) -> LaneState:
        """Return a state that a pool rotates as re-encoding does, or leaves as it is."""
        assert isinstance(state, KeyValues)
        return state if self._re_encodes else replace(state, position=position)

    def _head(self, ids: tuple[int, ...]) -> LaneState:
        """Return the state of a prompt's beginning, computed once."""
        if ids not in self._heads:
            with _lane(self._runner.pool, len(ids)) as lane:
                self._rows(lane, ids, range(len(ids)))
                self._heads[ids] = self._runner.pool.read(lane, range(len(ids)))
        return self._heads[ids]

    def _rows(self, lane: int, ids: Sequence[int], places: range) -> torch.Tensor:
        """Compute rows that see all before them; return the logits of the last one."""
        return self._runner.run([SequenceRows(lane, ids, places, places, (len(ids) - 1,))])


def _part_rows(lane: int, part: Subforest, prompt: SegmentedPrompt) -> SequenceRows:
    slots, starts, head = part.place.slots, prompt.tree.starts, len(prompt.head)
    positions = [
        head + at for node in part.nodes for at in range(int(starts[node]), int(starts[node + 1]))
    ]
    visible = part.place.visible(slots)
    return SequenceRows(lane, part.ids[slots.start :], slots, positions, (), visible)


def _groups(parts: Sequence[Subforest]) -> Iterator[list[Subforest]]:
    """Yield the parts of each forward."""
    group: list[Subforest] = []
    for part in parts:
        if group and sum(len(one.place.slots) for one in (*group, part)) > _MOST_ROWS:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _position(prompt: SegmentedPrompt, node: int) -> int:
    return len(prompt.head) + int(prompt.tree.starts[node])


def _tokens(found: PromptTree, keys: set[bytes]) -> int:
    sizes = np.diff(found.prompt.tree.starts).tolist()
    return sum(size for key, size in zip(found.keys, sizes, strict=True) if key in keys)


@contextmanager
def _lane(pool: LanePool, tokens: int) -> Iterator[int]:
    lane = pool.take(tokens)
    if lane is None:
        raise ConfigError("the pool has no room", where="DepCache", found=f"{tokens} tokens")
    try:
        yield lane
    finally:
        pool.free(lane)
