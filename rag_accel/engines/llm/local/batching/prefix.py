"""A prefix cache: a radix tree over the token ids of the lanes in the pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rag_accel.engines.llm.local.batching.rows import LanePool
from rag_accel.engines.llm.local.batching.schedule import common_length
from rag_accel.engines.llm.local.batching.sequence import Lane


@dataclass(slots=True, eq=False)
class _Node:
    edge: tuple[int, ...] = ()
    parent: _Node | None = None
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])
    lanes: dict[Lane, None] = field(default_factory=dict[Lane, None])


class RadixTree:
    """Lanes by the token ids they hold; every lane at or below a node holds the node's ids."""

    def __init__(self) -> None:
        self._root = _Node()
        self._nodes: dict[Lane, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, lane: Lane) -> None:
        """Enter a lane under its ids, in place of those it was entered under before."""
        self.remove(lane)
        node = self._node(lane.ids)
        node.lanes[lane] = None
        self._nodes[lane] = node

    def remove(self, lane: Lane) -> None:
        """Forget a lane; an unknown one is ignored."""
        node = self._nodes.pop(lane, None)
        if node is None:
            return
        del node.lanes[lane]
        while node.parent is not None and not node.lanes and not node.children:
            del node.parent.children[node.edge[0]]
            node = node.parent

    def longest(self, ids: tuple[int, ...]) -> tuple[Lane | None, int]:
        """Return a lane that begins as ``ids`` do, and how far; of all lanes, the farthest."""
        node, at = self._root, 0
        while at < len(ids) and (child := node.children.get(ids[at])) is not None:
            common = common_length(child.edge, ids[at : at + len(child.edge)])
            node, at = child, at + common
            if common < len(child.edge):
                break
        return (_any_lane(node), at) if at else (None, 0)

    def before(self, ids: tuple[int, ...]) -> Iterator[Lane]:
        """Yield the lanes whose whole ids are a beginning of these, or are these."""
        node, at = self._root, 0
        while at < len(ids) and (child := node.children.get(ids[at])) is not None:
            if ids[at : at + len(child.edge)] != child.edge:
                return
            node, at = child, at + len(child.edge)
            yield from node.lanes

    def _node(self, ids: tuple[int, ...]) -> _Node:
        """Return the node where these ids end; make it, and split an edge, where there is none."""
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                child = node.children[ids[at]] = _Node(ids[at:], node)
                return child
            common = common_length(child.edge, ids[at:])
            node = child if common == len(child.edge) else _split(child, common)
            at += common
        return node


class PrefixCache:
    """The lanes of a pool: those in use, and those of ended sequences kept for what begins alike.

    A new sequence is given a lane of its own that begins with the longest beginning found in any
    lane of its namespace. Lanes of ended sequences are given up, the one least lately needed
    first, when there are too many of them or when a sequence needs their room.

    Args:
        pool: where the keys and values are.
        most_idle: most lanes kept after their sequences have ended, those pinned not counted.
    """

    def __init__(self, pool: LanePool, most_idle: int) -> None:
        self._pool = pool
        self._most_idle = most_idle
        self._trees: dict[str, RadixTree] = {}
        self._idle: dict[Lane, None] = {}  # the one least lately needed first

    @property
    def num_idle(self) -> int:
        """Return the number of idle lanes."""
        return len(self._idle)

    def open(
        self, ids: tuple[int, ...], capacity: int, namespace: str, most: int
    ) -> tuple[Lane, int] | None:
        """Return a lane for a sequence of ``capacity`` tokens and how many it holds already.

        At most ``most`` tokens are taken over. None while there is no room, although every idle
        lane was given up.
        """
        wanted = ids[:most]
        self._touch(self._longest(namespace, wanted)[0])  # so that it is given up last
        while True:
            source, common = self._longest(namespace, wanted)
            if source is None:
                number = self._pool.take(capacity)
            else:
                number = self._pool.fork(source.number, common, capacity)
            if number is not None:
                lane = Lane(number, namespace)
                if common:
                    self.grow(lane, ids[:common])
                return lane, common
            if not self._idle:
                return None
            self.drop(min(self._idle, key=lambda lane: lane.pins > 0))

    def grow(self, lane: Lane, ids: tuple[int, ...]) -> None:
        """Enter a lane under the ids that it holds by now."""
        lane.ids = ids
        self._trees.setdefault(lane.namespace, RadixTree()).put(lane)

    def drop(self, lane: Lane) -> None:
        """Give a lane back and forget its ids."""
        self._idle.pop(lane, None)
        if (tree := self._trees.get(lane.namespace)) is not None:
            tree.remove(lane)
            if not len(tree):
                del self._trees[lane.namespace]
        lane.in_use = False
        self._pool.free(lane.number)

    def keep(self, lane: Lane) -> None:
        """Keep the lane of an ended sequence; shorter idle ones that it covers are given back."""
        lane.in_use = False
        covered = self._trees[lane.namespace].before(lane.ids)
        for other in [idle for idle in covered if idle in self._idle and not idle.pins]:
            self.drop(other)
        self._idle[lane] = None
        self._trim()

    def pin(self, lane: Lane) -> None:
        """Keep this lane beyond the bound, and give it up for room only after all others."""
        lane.pins += 1

    def unpin(self, lane: Lane) -> None:
        """Take back one ``pin``."""
        lane.pins -= 1
        self._trim()

    def clear(self) -> None:
        """Give back every idle lane."""
        for lane in list(self._idle):
            self.drop(lane)

    def _trim(self) -> None:
        unpinned = [lane for lane in self._idle if not lane.pins]
        for lane in unpinned[: max(0, len(unpinned) - self._most_idle)]:
            self.drop(lane)

    def _touch(self, lane: Lane | None) -> None:
        if lane in self._idle:
            del self._idle[lane]
            self._idle[lane] = None

    def _longest(self, namespace: str, ids: tuple[int, ...]) -> tuple[Lane | None, int]:
        tree = self._trees.get(namespace)
        return (None, 0) if tree is None else tree.longest(ids)


def _any_lane(node: _Node) -> Lane:
    """Return a lane at or below a node; below each node there is one, or it was removed."""
    while not node.lanes:
        node = next(iter(node.children.values()))
    return next(iter(node.lanes))


def _split(node: _Node, at: int) -> _Node:
    """Put a node into the middle of a node's edge and return it."""
    parent = node.parent
    assert parent is not None
    upper = _Node(node.edge[:at], parent)
    parent.children[node.edge[0]] = upper
    node.edge, node.parent = node.edge[at:], upper
    upper.children[node.edge[0]] = node
    return upper
