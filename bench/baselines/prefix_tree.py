"""A prefix cache of texts' attention state, and prompts ordered so that most of it is used.

A prompt takes over the longest beginning that is kept; behind it all is computed, and kept. Texts
that some prompt had at its beginning form a tree; the leaf used longest ago goes first.

``ReuseOrdered`` is the same cache with prompts whose texts may change places: first comes the
longest path of the tree, in tokens, that consists of the prompt's texts alone; then the others, in
their order. That is what ContextPilot does for a prefix cache. It is another prompt: answers may
change with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.baselines.prefix_chained import SizedText


@dataclass(slots=True, eq=False)
class _Node:
    """A text behind all texts on the way to it. Equal only to itself."""

    text: SizedText
    parent: _Node | None
    children: dict[SizedText, _Node] = field(default_factory=dict[SizedText, "_Node"])


class PrefixTree:
    """Beginnings of prompts, bounded in bytes.

    Args:
        limit_bytes: most bytes of all texts in the tree.
        token_bytes: of the state of each token.
    """

    def __init__(self, limit_bytes: int, token_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._token_bytes = token_bytes
        self._root = _Node(SizedText(-1, 0), None)
        # A text is used whenever one behind it is, and put behind it: a leaf is always first.
        self._order: OrderedDict[_Node, None] = OrderedDict()
        #: bytes of all texts in the tree
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def missed(self, texts: Sequence[SizedText]) -> int:
        """Take a beginning over, keep the rest, and return the tokens that were not taken over."""
        path = list(self._kept(texts))
        self._use(path)
        self._keep(path, texts)
        return sum(one.tokens for one in texts[len(path) :])

    def longest(self, texts: Sequence[SizedText]) -> list[SizedText]:
        """Return the longest kept beginning that consists of some of the texts, in tokens."""
        return max(self._paths(self._root, texts), key=lambda path: sum(one.tokens for one in path))

    def _paths(self, node: _Node, texts: Sequence[SizedText]) -> Iterator[list[SizedText]]:
        yield []
        for text in texts:
            child = node.children.get(text)
            if child is not None:
                left = [one for one in texts if one != text]
                yield from ([text, *path] for path in self._paths(child, left))

    def _kept(self, texts: Sequence[SizedText]) -> Iterator[_Node]:
        node = self._root
        for text in texts:
            child = node.children.get(text)
            if child is None:
                return
            yield child
            node = child

    def _use(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._order.move_to_end(node)

    def _keep(self, path: list[_Node], texts: Sequence[SizedText]) -> None:
        node = path[-1] if path else self._root
        for text in texts[len(path) :]:
            size = text.tokens * self._token_bytes
            if not self._make_room(size, path):
                return
            child = node.children[text] = _Node(text, node)
            self._order[child] = None
            self.held_bytes += size
            path = [*path, child]
            self._use(path)
            node = child

    def _make_room(self, size: int, path: Sequence[_Node]) -> bool:
        """Give up what was used longest ago, but for a prompt's own beginning."""
        while self.held_bytes + size > self._limit_bytes:
            victim = next(iter(self._order), None)
            if victim is None or victim in path:
                return False
            del self._order[victim]
            assert victim.parent is not None
            del victim.parent.children[victim.text]
            self.held_bytes -= victim.text.tokens * self._token_bytes
        return True


class ReuseOrdered:
    """A prefix cache whose prompts are ordered for it.

    Args:
        limit_bytes: most bytes of all texts in the tree.
        token_bytes: of the state of each token.
    """

    def __init__(self, limit_bytes: int, token_bytes: int) -> None:
        self._tree = PrefixTree(limit_bytes, token_bytes)

    def ordered(self, texts: Sequence[SizedText]) -> list[SizedText]:
        """Return the texts in the order in which most is taken over."""
        first = self._tree.longest(texts)
        return [*first, *(one for one in texts if one not in first)]

    def missed(self, texts: Sequence[SizedText]) -> int:
        """Ask for a prompt in that order, and return the tokens that were not taken over."""
        return self._tree.missed(self.ordered(texts))
