"""A prompt of nodes as numbers: tokens, positions, and the mask of the whole as a reference.

An engine computes part by part. The mask here is for tests and for prompts small enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.layouts import lay_out
from rag_accel.kv.dependency.positions import PositionScheme, tree_positions
from rag_accel.kv.dependency.prompt import DepPrompt, LinearNode
from rag_accel.kv.dependency.tree import (
    DependencyTree,
    Encode,
    Integers,
    chain_tree,
    encode_once,
)
from rag_accel.kv.dependency.visibility import MOST_DENSE_ROWS, dense_mask


@dataclass(frozen=True, slots=True, eq=False)
class EncodedNode:
    """The numbers of one node of a prompt.

    Args:
        name: of the node.
        tree: its segments; text is a chain of one.
        slots: the places of its tokens in the prompt.
        positions: ``[tokens], int32``.
        behind: the position right behind it.
        sees: the places of the nodes that it sees as a whole, in ``EncodedPrompt.nodes``.
    """

    name: str
    tree: DependencyTree
    slots: range
    positions: Integers
    behind: int
    sees: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompt:
    """The nodes of a prompt in order, each behind all that it sees."""

    nodes: tuple[EncodedNode, ...]

    def __len__(self) -> int:
        return self.nodes[-1].slots.stop

    @property
    def ids(self) -> Integers:
        """Return the tokens: ``[tokens], int32``."""
        return np.concatenate([node.tree.ids for node in self.nodes])

    @property
    def positions(self) -> Integers:
        """Return the position of each token: ``[tokens], int32``."""
        return np.concatenate([node.positions for node in self.nodes])

    def mask(self, most_rows: int = MOST_DENSE_ROWS) -> NDArray[np.bool_]:
        """Return ``[tokens, tokens], bool``: whether a row sees a slot.

        Raises:
            ConfigError: if there are more rows than ``most_rows``.
        """
        if len(self) > most_rows:
            raise ConfigError(
                "a mask is too large",
                found=f"{len(self)} rows",
                valid=f"at most {most_rows}",
                hint="compute node by node",
            )
        whole = np.zeros((len(self), len(self)), np.bool_)
        for node in self.nodes:
            rows = slice(node.slots.start, node.slots.stop)
            whole[rows, rows] = dense_mask(node.tree, most_rows=most_rows)
            for other in node.sees:
                seen = self.nodes[other].slots
                whole[rows, seen.start : seen.stop] = True
        return whole


def encode_prompt(
    prompt: DepPrompt, encode: Encode, scheme: PositionScheme = "shared"
) -> EncodedPrompt:
    """Return a prompt as tokens with positions.

    Under ``shared`` a node begins behind the nodes that it sees, so nodes that do not see each
    other have the same positions; else it begins behind all nodes before it.

    Args:
        prompt: the prompt.
        encode: called once for each distinct text, whichever nodes have it.
        scheme: the positions, as of ``tree_positions``.

    Raises:
        ConfigError: if ``encode`` returns anything but tokens, or there is no such scheme.
    """
    remembered = encode_once(encode)
    places = {node.name: place for place, node in enumerate(prompt.nodes)}
    encoded: list[EncodedNode] = []
    start = 0
    for node in prompt.nodes:
        if isinstance(node, LinearNode):
            tree = chain_tree((node.text,), remembered)
        else:
            tree = lay_out(node.paths, node.layout, remembered)
        sees = tuple(places[name] for name in prompt.visible[node.name])
        before = [encoded[place] for place in sees] if scheme == "shared" else encoded
        begin = max((other.behind for other in before), default=0)
        placed = tree_positions(tree, scheme, begin)
        slots = range(start, start + len(tree.ids))
        encoded.append(EncodedNode(node.name, tree, slots, placed.positions, placed.behind, sees))
        start = slots.stop
    return EncodedPrompt(tuple(encoded))
