"""The prefix tree over segments of relation paths, in pre-order (DepCache, Algorithm 1, phase 1).

    a r b, a r c, d  ->  0 a            entry 0, exit 6
                         1   r          entry 1, exit 6
                         2     b        entry 2, exit 4
                         3       end    ...
                         4     c
                         5       end
                         6 d
                         7   end

Differs: the paper inserts the tokens of whole paths; nodes are segments here, each tokenised alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.paths import PATH_END, checked_paths, checked_segments

Integers = NDArray[np.int32]

#: Returns the tokens of a text, without any that a tokeniser adds at its beginning or end.
Encode = Callable[[str], Sequence[int] | NDArray[np.integer]]

#: The parent of a root.
NO_NODE = -1
_MOST_ID = np.iinfo(np.int32).max
_SHOWN = 40


@dataclass(frozen=True, slots=True, eq=False)
class DependencyTree:
    """Segments in pre-order, each below the one it depends on; with many roots, a forest.

    The number of a node is its entry; ``exits`` is behind its last descendant. So node u is v
    itself or above it where ``u <= v < exits[u]``. All arrays are read-only.

    Args:
        texts: the segment of each node.
        parents: ``[nodes], int32``, -1 for a root.
        starts: ``[nodes + 1], int32``, the slot of the first token of each node, and of none.
        ids: ``[tokens], int32``.
    """

    texts: tuple[str, ...]
    parents: Integers
    starts: Integers
    ids: Integers
    #: ``[nodes], int32``, the number behind each node's last descendant
    exits: Integers = field(init=False, repr=False)
    #: ``[nodes], int32``, the tokens that stand before each node on its own path
    depths: Integers = field(init=False, repr=False)
    #: ``[tokens], int32``, the node of each token
    token_nodes: Integers = field(init=False, repr=False)
    #: ``[tokens], int32``, the tokens that stand before each token on its own path
    token_depths: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = np.diff(self.starts)
        exits, depths = _exits_and_depths(self.parents.tolist(), lengths.tolist())
        nodes = np.arange(len(self.texts), dtype=np.int32)
        token_nodes = np.repeat(nodes, lengths)
        within = np.arange(len(self.ids), dtype=np.int32) - self.starts[token_nodes]
        for name, values in (
            ("exits", exits),
            ("depths", depths),
            ("token_nodes", token_nodes),
            ("token_depths", depths[token_nodes] + within),
        ):
            object.__setattr__(self, name, values)
        for name in ("parents", "starts", "ids", "exits", "depths", "token_nodes", "token_depths"):
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def text(self) -> str:
        """Return the segments one after the other, as they stand in the sequence of tokens."""
        return "".join(self.texts)

    @property
    def roots(self) -> Integers:
        """Return the nodes without a parent, ascending."""
        return np.flatnonzero(self.parents == NO_NODE).astype(np.int32)

    def node_ids(self, node: int) -> Integers:
        """Return the tokens of one node."""
        return self.ids[self.starts[node] : self.starts[node + 1]]

    def token_range(self, node: int) -> range:
        """Return the slots of a node and its descendants."""
        return range(int(self.starts[node]), int(self.starts[self.exits[node]]))

    def ancestors(self, node: int) -> tuple[int, ...]:
        """Return the nodes above a node, the root first."""
        chain: list[int] = []
        above = int(self.parents[node])
        while above != NO_NODE:
            chain.append(above)
            above = int(self.parents[above])
        return tuple(reversed(chain))


class PrefixTree:
    """Nodes as they are inserted; of one parent, equal segments are one node."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._parents: list[int] = []
        self._children: list[dict[str, int]] = []
        self._roots: dict[str, int] = {}

    def insert(self, segments: Iterable[str], below: int = NO_NODE) -> int:
        """Insert a chain of segments below a node; return the node of the last one."""
        for text in segments:
            siblings = self._roots if below == NO_NODE else self._children[below]
            node = siblings.setdefault(text, len(self._texts))
            if node == len(self._texts):
                self._texts.append(text)
                self._parents.append(below)
                self._children.append({})
            below = node
        return below

    def finish(self, encode: Encode) -> DependencyTree:
        """Return the tree in pre-order, siblings in the order of their first appearance."""
        entry = [0] * len(self._texts)
        texts: list[str] = []
        parents: list[int] = []
        waiting = list(reversed(self._roots.values()))
        while waiting:
            node = waiting.pop()
            entry[node] = len(texts)
            above = self._parents[node]
            texts.append(self._texts[node])
            parents.append(NO_NODE if above == NO_NODE else entry[above])
            waiting.extend(reversed(self._children[node].values()))
        return _encoded(texts, parents, encode)


def path_tree(paths: Iterable[Iterable[str]], encode: Encode) -> DependencyTree:
    """Return the tree of relation paths: each common prefix once, each path with an end of its own.

    Args:
        paths: the segments of each; equal paths are one.
        encode: called once for each distinct segment.

    Raises:
        ConfigError: if there is no path, a path or a segment is empty or no text, or ``encode``
            returns anything but tokens.
    """
    tree = PrefixTree()
    for path in checked_paths(paths):
        tree.insert((PATH_END,), tree.insert(path))
    return tree.finish(encode)


def joined_trees(trees: Sequence[DependencyTree]) -> DependencyTree:
    """Return trees one behind the other; none of their nodes depends on one of another tree."""
    if len(trees) == 1:
        return trees[0]
    texts: list[str] = []
    parents: list[Integers] = []
    starts = [np.zeros(1, np.int32)]
    for tree in trees:
        moved = np.where(tree.parents == NO_NODE, NO_NODE, tree.parents + len(texts))
        parents.append(moved.astype(np.int32))
        starts.append(tree.starts[1:] + starts[-1][-1])
        texts += tree.texts
    ids = np.concatenate([tree.ids for tree in trees])
    return DependencyTree(tuple(texts), np.concatenate(parents), np.concatenate(starts), ids)


def chain_tree(segments: Iterable[str], encode: Encode) -> DependencyTree:
    """Return segments that each depend on all before them: ordinary causal text.

    Raises:
        ConfigError: as ``path_tree`` does.
    """
    texts = checked_segments(segments)
    return _encoded(texts, range(NO_NODE, len(texts) - 1), encode)


def encode_once(encode: Encode) -> Callable[[str], Integers]:
    """Return a function that encodes each distinct text once, and checks its tokens.

    Raises (the function): ConfigError if ``encode`` returns anything but non-negative integers of
    32 bits.
    """
    known: dict[str, Integers] = {}

    def remembered(text: str) -> Integers:
        ids = known.get(text)
        if ids is None:
            ids = known[text] = _checked_ids(text, encode(text))
        return ids

    return remembered


def _encoded(texts: Sequence[str], parents: Sequence[int], encode: Encode) -> DependencyTree:
    remembered = encode_once(encode)
    ids = [remembered(text) for text in texts]
    starts = np.zeros(len(ids) + 1, np.int32)
    np.cumsum([len(of_node) for of_node in ids], out=starts[1:])
    return DependencyTree(
        tuple(texts), np.asarray(parents, np.int32), starts, np.concatenate(ids, dtype=np.int32)
    )


def _checked_ids(text: str, ids: object) -> Integers:
    found = np.asarray(ids)
    if found.ndim == 1 and not found.size:
        return np.empty(0, np.int32)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.min() < 0 or found.max() > _MOST_ID:
        raise ConfigError(
            "a segment cannot be encoded",
            where=repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."),
            found=f"{type(ids).__name__} of {found.dtype}",
            valid=f"a list of tokens from 0 to {_MOST_ID}",
        )
    return found.astype(np.int32)


def _exits_and_depths(parents: list[int], lengths: list[int]) -> tuple[Integers, Integers]:
    exits = list(range(1, len(parents) + 1))
    depths = [0] * len(parents)
    for node, above in enumerate(parents):
        if above != NO_NODE:
            depths[node] = depths[above] + lengths[above]
    # Descendants have greater numbers, so each exit is complete before its parent reads it.
    for node in range(len(parents) - 1, -1, -1):
        above = parents[node]
        if above != NO_NODE and exits[above] < exits[node]:
            exits[above] = exits[node]
    return np.asarray(exits, np.int32), np.asarray(depths, np.int32)
