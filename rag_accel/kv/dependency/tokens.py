"""A prompt as tokens: a head, a tree of relation paths that is computed behind it, and the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rag_accel.kv.dependency.positions import TreePositions
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree
from rag_accel.kv.keys import ChunkSource

_RECIPE = "behind-path-1"


@dataclass(frozen=True, eq=False)
class TreePrompt:
    """The tokens of a prompt with one tree in it.

    Args:
        head: the tokens before the tree, which all of its tokens see.
        tree: of paths; tokens see their own path alone.
        task: the tokens behind the tree, which see all of it; at least one.
        positions: of the tree's tokens, and of the task's first.
    """

    head: tuple[int, ...]
    tree: DependencyTree
    task: tuple[int, ...]
    positions: TreePositions

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Return the tokens of the whole prompt."""
        return (*self.head, *self.tree.ids.tolist(), *self.task)

    @property
    def slots(self) -> range:
        """Return the places of the tree in the prompt."""
        return range(len(self.head), len(self.head) + len(self.tree.ids))

    @property
    def before_texts(self) -> tuple[int, ...]:
        """Return the tokens that are computed as in any prompt that begins alike."""
        return self.head


def node_keys(tree: DependencyTree, source: ChunkSource) -> list[bytes]:
    """Return the key of each node: of everything that its keys and values depend on.

    Those are the tokens from the head to its own, each node's by itself (DepCache section 4.2.1).

    Args:
        tree: of paths.
        source: of what stands before them; its recipe is replaced.
    """
    root = ChunkSource(source.model, source.namespace, source.head, _RECIPE).key(())
    keys: list[bytes] = []
    for node, parent in enumerate(tree.parents.tolist()):
        above = root if parent == NO_NODE else keys[parent]
        keys.append(hashlib.sha256(above + tree.node_ids(node).astype("<i4").tobytes()).digest())
    return keys


def path_texts(tree: DependencyTree) -> Iterator[str]:
    """Yield the text of each node's path from its root, itself included."""
    found: list[str] = []
    for text, parent in zip(tree.texts, tree.parents.tolist(), strict=True):
        found.append(text if parent == NO_NODE else found[parent] + text)
        yield found[-1]
