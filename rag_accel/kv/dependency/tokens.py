"""Prompts as tokens with a tree of relation paths, and the keys of its nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.encoded import EncodedNode, encode_prompt
from rag_accel.kv.dependency.lines import PathLines
from rag_accel.kv.dependency.paths import PATH_END
from rag_accel.kv.dependency.positions import PositionScheme, tree_positions
from rag_accel.kv.dependency.prompt import DepPrompt, LinearNode
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree, Encode, joined_trees, path_tree
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.segments import SegmentedPrompt, prompt_around

#: Returns the tokens of each text, those that it has alone.
EncodeAll = Callable[[Sequence[str]], Sequence[Sequence[int]]]

_RECIPE = "behind-path-1"


def tree_of_lines(
    lines: PathLines, encode: Encode, encode_all: EncodeAll | None = None
) -> DependencyTree:
    """Return the tree of the paths of a prompt.

    Args:
        lines: its paths.
        encode: returns the tokens of a text.
        encode_all: returns those of many, and is called once for all segments of the paths; None
            for ``encode``, segment by segment.
    """
    if encode_all is not None:
        names = list(dict.fromkeys([*chain.from_iterable(lines.paths), PATH_END]))
        encode = dict(zip(names, encode_all(names), strict=True)).__getitem__
    return path_tree(lines.paths, encode)


def prompt_of_lines(
    text: str, lines: PathLines, tree: DependencyTree, encode: Encode
) -> SegmentedPrompt | None:
    """Return a prompt whose head is all that stands before the tree of its paths.

    None where nothing stands behind them.
    """
    task = tuple(encode(text[lines.place(text).stop :]))
    if not task:
        return None
    head = tuple(encode(text[: lines.start])) if lines.start else ()
    return prompt_around(head, tree, task, tree_positions(tree, begin=len(head)))


def saves_tokens(text: str, lines: PathLines, tree: DependencyTree, encode: Encode) -> bool:
    """Tell whether the tree of a prompt's paths has no more tokens than their lines.

    The lines are tokenised only where the tree merges few tokens: segments that are tokenised alone
    cost about one token at each of their ends, at the most.

    Args:
        text: the whole prompt.
        lines: its paths.
        tree: of the same paths.
        encode: returns the tokens of a text.
    """
    leaves = np.flatnonzero(tree.exits == np.arange(1, len(tree) + 1))
    of_paths = int((tree.depths[leaves] + np.diff(tree.starts)[leaves]).sum())
    merged = of_paths - len(tree.ids)
    if merged >= sum(len(path) + 1 for path in lines.paths):
        return True
    place = lines.place(text)
    return len(tree.ids) <= len(encode(text[place.start : place.stop]))


def tree_prompt(
    prompt: DepPrompt, encode: Encode, scheme: PositionScheme = "shared"
) -> SegmentedPrompt:
    """Return the tokens of a prompt of nodes: a head, contexts behind it, and a task.

    The head is the text that all other nodes see, the task the text that sees all of them. What
    stands between sees the head and nothing else; text there is a path of one segment.

    Args:
        prompt: the prompt.
        encode: returns the tokens of a text.
        scheme: positions of the contexts.

    Raises:
        ConfigError: nodes depend on each other in another way, or the task has no tokens.
    """
    nodes = encode_prompt(prompt, encode, scheme).nodes
    linear = [isinstance(node, LinearNode) for node in prompt.nodes]
    first, last = 0, len(nodes)
    while first < last - 1 and linear[first] and len(nodes[first].sees) == first:
        first += 1
    while last > first and linear[last - 1] and len(nodes[last - 1].sees) == last - 1:
        last -= 1
    for node in nodes[first:last]:
        if node.sees != tuple(range(first)):
            raise ConfigError(
                "a node depends on another context",
                where=node.name,
                found=", ".join(nodes[place].name for place in node.sees) or "nothing",
                valid=", ".join(node.name for node in nodes[:first]) or "nothing",
                hint="let contexts depend on the text before them, and the task on all of them",
            )
    head, task = _ids(nodes[:first]), _ids(nodes[last:])
    if first == last or not task:
        raise ConfigError(
            "a prompt of relation paths needs paths, and a task behind them",
            found=", ".join(node.name for node in nodes),
            valid="text, trees of paths, and text that depends on them",
        )
    tree = joined_trees([node.tree for node in nodes[first:last]])
    return prompt_around(head, tree, task, tree_positions(tree, scheme, len(head)))


def _ids(nodes: Iterable[EncodedNode]) -> tuple[int, ...]:
    return tuple(id for node in nodes for id in node.tree.ids.tolist())


def node_keys(tree: DependencyTree, source: ChunkSource) -> tuple[bytes, ...]:
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
    return tuple(keys)


def path_texts(tree: DependencyTree) -> Iterator[str]:
    """Yield the text of each node's path from its root, itself included."""
    found: list[str] = []
    for text, parent in zip(tree.texts, tree.parents.tolist(), strict=True):
        found.append(text if parent == NO_NODE else found[parent] + text)
        yield found[-1]
