"""Replays of requests for trees on a cache of bounded tokens, under eviction policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.graph.trees import Node, TreeRequest
from rag_accel.kv.eviction import EvictionPolicy


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy hit in one stream.

    Args:
        shares: of each request the tokens that were kept / all of its tokens.
        missed: the tokens of each request that were not kept.
        broken: how often the policy named a state that is not kept, or one with kept children.
    """

    shares: tuple[float, ...]
    missed: tuple[int, ...]
    broken: int

    def percent(self, first: int) -> float:
        """Return the mean share from a request on, in percent."""
        counted = self.shares[first:]
        return 100 * sum(counted) / len(counted)


def distinct_tokens(requests: Sequence[TreeRequest]) -> int:
    """Return the tokens of all nodes of a stream, each counted once."""
    return sum({node.key: node.tokens for request in requests for node in request}.values())


def replay(
    requests: Sequence[TreeRequest], policy: EvictionPolicy, limit_tokens: int, window: int
) -> Replayed:
    """Run requests one after the other, with so many of those behind them known to the policy.

    What a request lacks is computed and offered to the cache, parents first. A node is kept unless
    the policy would evict its parent for it. A policy that breaks the rule of trees is counted and
    stopped: nothing is counted as hit from then on.
    """
    cache = _Cache(policy, limit_tokens)
    keys = [tuple(node.key for node in request) for request in requests]
    shares: list[float] = []
    missed: list[int] = []
    for number, request in enumerate(requests):
        policy.began(keys[number : number + 1 + window])
        lacking = 0 if cache.broken else cache.read(request)
        tokens = sum(node.tokens for node in request)
        missed.append(tokens if cache.broken else lacking)
        shares.append(1 - missed[-1] / tokens)
    return Replayed(tuple(shares), tuple(missed), cache.broken)


class _Cache:
    """Nodes that are kept, and the rule that none is without its parent."""

    def __init__(self, policy: EvictionPolicy, limit_tokens: int) -> None:
        self._policy = policy
        self._limit = limit_tokens
        self._held = 0
        self._kept: dict[bytes, Node] = {}
        self._num_children: Counter[bytes] = Counter()
        self.broken = 0

    def read(self, request: TreeRequest) -> int:
        """Use what is kept, keep the rest, and return the tokens of the rest."""
        lacking = [node for node in request if node.key not in self._kept]
        for node in request:
            if node.key in self._kept:
                self._policy.used(node.key)
        for node in lacking:
            if node.parent is None or node.parent in self._kept:
                self._keep(node)
        return sum(node.tokens for node in lacking)

    def _keep(self, node: Node) -> None:
        if node.tokens > self._limit:
            return
        while self._held + node.tokens > self._limit:
            victim = self._policy.victim()
            if victim == node.parent or not self._evict(victim):
                return
        self._kept[node.key] = node
        self._held += node.tokens
        if node.parent is not None:
            self._num_children[node.parent] += 1
        self._policy.added(node.key, node.tokens, node.parent)

    def _evict(self, key: bytes) -> bool:
        """Remove a leaf, and tell whether it was one."""
        if key not in self._kept or self._num_children[key]:
            self.broken += 1
            return False
        node = self._kept.pop(key)
        self._held -= node.tokens
        if node.parent is not None:
            self._num_children[node.parent] -= 1
        self._policy.removed(key)
        return True
