"""Count the tokens of retrieved trees that a bounded cache hits under eviction policies.

No model takes part and nothing is timed: the figures are the same wherever the same Python and the
same word pieces are. The graph is the standard library of the running Python. A query has 10
entities out of 1,000 and a question; from each entity up to 30 paths of two hops nearest to the
question are retrieved (vectors of random directions, one a word piece), and their common beginnings
are one node each. Tokens are the word pieces of the packaged MiniLM, or pieces of four letters
where it is not installed. Streams draw the entities by Zipf's law, each alike, or mostly out of
those of the latest queries.

The cache holds 15 % of the distinct tokens of its stream, is empty at first and evicts leaves
alone. The queue is always full: 16 queries behind the running one are known to the policies that
ask for them; with one user nothing waits, and the row ``nothing waits`` counts. The hit rate of a
query is its tokens that were kept / all its tokens; figures are means over the queries behind the
first fifth, and over streams of several seeds where there are several.

Ours is ``LookaheadPolicy`` as the product has it. Baselines: LRU, LFU, PGDSF as RAGCache has it,
LACR as DepCache prints it (alpha 0.2, raw counts), and Belady's, which knows the whole stream and
is out of reach. The gains of all of them over LRU are rows.

Ratios:
    zipf_gain: against LRU: our token hit rate - its, in points of 100, Zipf stream.
    uniform_gain: against LRU: our token hit rate - its, in points of 100, uniform stream.
    temporal_gain: against LRU: our token hit rate - its, in points of 100, temporal stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from bench.answers import too_many
from bench.baselines.eviction import BeladyPolicy, LACRPolicy, LFUPolicy, PGDSFPolicy
from bench.graph.cache import Replayed, distinct_tokens, replay
from bench.graph.trees import (
    PathGraph,
    Shape,
    TreeRequest,
    letter_pieces,
    minilm_pieces,
    tree_stream,
)
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.kv.eviction import EvictionPolicy, LookaheadPolicy, LRUPolicy
from rag_accel.sample import read_library_graph

OURS, ALONE = "accelerated", "accelerated, nothing waits"
LRU, LFU, PGDSF, LACR, BELADY = "LRU", "LFU", "PGDSF", "LACR", "Belady"

_logger = logging.getLogger("bench.graph_cache")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is counted.

    Args:
        triples: most of the graph; None: all.
        entities: that queries are about.
        queries: of a stream.
        seeds: entities of a query.
        paths: most from each entity.
        window: queries behind the running one that a policy knows.
        share: of the distinct tokens of a stream that have room.
        streams: of each shape, each of a seed of its own.
    """

    triples: int | None
    entities: int
    queries: int
    seeds: int
    paths: int
    window: int
    share: float
    streams: int


QUICK = Sizes(
    triples=None,
    entities=1000,
    queries=300,
    seeds=10,
    paths=30,
    window=16,
    share=0.15,
    streams=1,
)
FULL = Sizes(
    triples=None,
    entities=1000,
    queries=1000,
    seeds=10,
    paths=30,
    window=16,
    share=0.15,
    streams=5,
)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Count; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    pieces = minilm_pieces()
    _logger.info("tokens are %s", "pieces of letters" if pieces is None else "MiniLM word pieces")
    triples = read_library_graph(chosen.triples).triples
    graph = PathGraph(triples, chosen.entities, pieces or letter_pieces, seed=0)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for shape in get_args(Shape):
        found = _shape_rows(graph, shape, chosen)
        rows += found
        ratios |= {
            f"{shape}_gain": row.median
            for row in found
            if (row.system, row.metric) == (OURS, "gain_points")
        }
    wrong = too_many(rows, "broken_victims")
    return SuiteResult("graph_cache", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


def _shape_rows(graph: PathGraph, shape: Shape, sizes: Sizes) -> list[Row]:
    replayed: dict[str, list[Replayed]] = {}
    half_lives: list[float] = []
    for seed in range(sizes.streams):
        requests = tree_stream(graph, shape, sizes.queries, sizes.seeds, sizes.paths, seed)
        limit = int(sizes.share * distinct_tokens(requests))
        for name, make in _policies(requests).items():
            policy = make()
            window = 0 if name == ALONE else sizes.window
            replayed.setdefault(name, []).append(replay(requests, policy, limit, window))
            if name == OURS and isinstance(policy, LookaheadPolicy):
                half_lives.append(policy.half_life)
    rows = _policy_rows(f"{shape} stream", replayed, sizes.queries // 5)
    return [
        *rows,
        Row(OURS, f"{shape} stream", "half_life", fmean(half_lives), None, sizes.streams),
    ]


def _policies(requests: Sequence[TreeRequest]) -> Mapping[str, Callable[[], EvictionPolicy]]:
    keys = [tuple(node.key for node in request) for request in requests]
    return {
        OURS: LookaheadPolicy,
        ALONE: LookaheadPolicy,
        LRU: LRUPolicy,
        LFU: LFUPolicy,
        PGDSF: PGDSFPolicy,
        LACR: LACRPolicy,
        BELADY: lambda: BeladyPolicy(keys),
    }


def _policy_rows(
    workload: str, replayed: Mapping[str, Sequence[Replayed]], warm_up: int
) -> list[Row]:
    """Return the hit rate of each policy, what it misses a query, and its gain over LRU."""
    rates = {name: fmean(one.percent(warm_up) for one in found) for name, found in replayed.items()}
    rows: list[Row] = []
    for name, found in replayed.items():
        missed = [tokens for one in found for tokens in one.missed[warm_up:]]
        rows += (
            Row(name, workload, "token_hit_percent", rates[name], None, len(missed)),
            Row(name, workload, "missed_tokens", fmean(missed), None, len(missed)),
            Row(
                name, workload, "broken_victims", sum(one.broken for one in found), None, len(found)
            ),
        )
        if name != LRU:
            gain = rates[name] - rates[LRU]
            rows.append(Row(name, workload, "gain_points", gain, None, len(missed)))
    return rows
