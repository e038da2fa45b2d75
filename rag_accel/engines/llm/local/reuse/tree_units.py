"""The tree of one prompt, and the subtrees of it that are computed together."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np

from rag_accel.engines.llm.local.batching.sequence import TreePlace
from rag_accel.kv.dependency.tokens import path_texts
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree, Integers
from rag_accel.kv.dependency.units import compute_units
from rag_accel.kv.dependency.visibility import visible_until
from rag_accel.kv.entry import LaneState, Purges
from rag_accel.kv.segments import SegmentedPrompt

#: The most tokens of subtrees that are encoded in one sequence: its rows are not cut, and a forward
#: is to stay short. A larger subtree is encoded from its root on, piece by piece.
MOST_ROWS = 512


@dataclass(frozen=True, slots=True)
class Subforest:
    """Subtrees of a prompt's tree that are computed in one sequence, behind the same nodes.

    Args:
        past: the nodes above them, the root first.
        nodes: theirs, each subtree in pre-order.
        place: where their tokens stand in that sequence.
        ids: the tokens, from the prompt's head on.
    """

    past: tuple[int, ...]
    nodes: tuple[int, ...]
    place: TreePlace
    ids: tuple[int, ...]


def missing_subforests(
    prompt: SegmentedPrompt,
    is_cached: Sequence[bool],
    is_awaited: Sequence[bool],
    most_rows: int = MOST_ROWS,
) -> Iterator[Subforest]:
    """Yield what can be computed now of a prompt's tree, nothing of which sees another part of it.

    Args:
        prompt: the prompt.
        is_cached: of each node; the parent of a cached one is cached.
        is_awaited: of each node whether it is computed already, elsewhere.
        most_rows: of one sequence.
    """
    tree = prompt.tree
    until = visible_until(tree)
    units = [unit for unit in compute_units(tree, is_cached) if not is_awaited[unit.node]]
    for past, siblings in groupby(units, key=lambda unit: unit.past):
        rows: list[range] = []
        size = 0
        for unit in siblings:
            nodes = range(unit.node, int(tree.exits[unit.node]))
            if _tokens(tree, nodes) > most_rows:
                nodes = range(unit.node, unit.node + 1)
            added = _tokens(tree, nodes)
            if rows and size + added > most_rows:
                yield _subforest(prompt, past, rows, until)
                rows, size = [], 0
            rows.append(nodes)
            size += added
        yield _subforest(prompt, past, rows, until)


def _tokens(tree: DependencyTree, nodes: range) -> int:
    return int(tree.starts[nodes.stop] - tree.starts[nodes.start])


def _subforest(
    prompt: SegmentedPrompt, past: tuple[int, ...], rows: Sequence[range], until: Integers
) -> Subforest:
    tree = prompt.tree
    ids = [*prompt.head, *(id for node in past for id in tree.node_ids(node).tolist())]
    start = len(ids)
    positions: list[int] = []
    ends: list[int] = []
    for nodes in rows:
        first, behind = int(tree.starts[nodes.start]), int(tree.starts[nodes.stop])
        moved = len(ids) - first
        ids += tree.ids[first:behind].tolist()
        positions += (tree.token_depths[first:behind] + len(prompt.head)).tolist()
        # Of a root without its subtree, nothing else is computed here.
        ends += [min(end, behind) + moved for end in until[first:behind].tolist()]
    place = TreePlace(range(start, len(ids)), positions, ends, max(positions, default=start) + 1)
    flat = tuple(node for nodes in rows for node in nodes)
    return Subforest(past, flat, place, tuple(ids))


def node_spans(
    prompt: SegmentedPrompt, nodes: Sequence[int], start: int
) -> Iterator[tuple[range, int]]:
    """Yield the slots of nodes one behind the other, and the position of each one's first token."""
    tree, base = prompt.tree, len(prompt.head)
    sizes = [int(tree.starts[node + 1] - tree.starts[node]) for node in nodes]
    for node, size, at in zip(nodes, sizes, accumulate(sizes, initial=start), strict=False):
        yield range(at, at + size), base + int(tree.depths[node])


@dataclass(slots=True, eq=False)
class PromptTree:
    """The nodes of one prompt's tree, as far as their states are there. Equal only to itself.

    Args:
        prompt: has a tree.
        keys: of each node in the store, a tuple.
        states: of its nodes, by key, as far as they are there.
        loading: keys of nodes that the store looks for now.
        is_inline: whether the tree is computed with the rest of the prompt.
    """

    prompt: SegmentedPrompt
    keys: tuple[bytes, ...]
    states: dict[bytes, LaneState] = field(default_factory=dict[bytes, LaneState])
    loading: set[bytes] = field(default_factory=set[bytes])
    is_inline: bool = False
    #: keys of nodes whose state is not there
    missing: set[bytes] = field(init=False)
    #: the text of each node's path, itself included
    texts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = tuple(path_texts(self.prompt.tree))
        self.missing = {self.keys[node] for node in self.nodes()}

    def nodes(self) -> list[int]:
        """Return the nodes that have tokens."""
        return np.flatnonzero(np.diff(self.prompt.tree.starts)).tolist()

    def parent_key(self, node: int) -> bytes | None:
        """Return the key of the next node above one that has tokens; None if there is none."""
        tree = self.prompt.tree
        above = int(tree.parents[node])
        while above != NO_NODE and tree.starts[above] == tree.starts[above + 1]:
            above = int(tree.parents[above])
        return None if above == NO_NODE else self.keys[above]

    def cached(self) -> list[bool]:
        """Return of each node whether nothing of it and of what is above it is missing."""
        found: list[bool] = []
        for key, parent in zip(self.keys, self.prompt.tree.parents.tolist(), strict=True):
            found.append(key not in self.missing and (parent == NO_NODE or found[parent]))
        return found

    def take(self, key: bytes, state: LaneState) -> None:
        """Take the state of a node that is missing; of another one, do nothing."""
        if key in self.missing:
            self.missing.discard(key)
            self.states[key] = state

    def place(self) -> TreePlace:
        """Return where the tree stands in the prompt."""
        prompt = self.prompt
        ends = (visible_until(prompt.tree) + prompt.slots.start).tolist()
        positions = prompt.positions
        return TreePlace(prompt.slots, positions.positions.tolist(), ends, positions.behind)

    def mark(self, purges: Purges) -> int:
        """Return what stands for the tree where prefixes of prompts are compared.

        Marks are equal where all that is behind the tree has seen the same: equal nodes, in the
        same order, at the same positions, and none that was purged since.

        Args:
            purges: so far.
        """
        placed = self.prompt.positions
        digest = hashlib.sha256(b"".join(self.keys))
        digest.update(repr(((*placed.positions.tolist(), placed.behind), purges)).encode())
        return -1 - int.from_bytes(digest.digest())  # no token is negative

    def num_reused(self, own: Container[bytes]) -> int:
        """Return the tokens of nodes that were not encoded for this prompt."""
        if self.is_inline:
            return 0
        sizes = np.diff(self.prompt.tree.starts).tolist()
        return sum(size for key, size in zip(self.keys, sizes, strict=True) if key not in own)
