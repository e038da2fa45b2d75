"""Measure retrieval from a knowledge graph: two hops from an entity, paths, and whole programs.

The graph is the standard library of the running Python (``rag_accel.sample``), without triples that
join an entity to itself.

- Two hops from an entity, both ways, as LlamaIndex' ``SimplePropertyGraphStore.get_rel_map`` makes
  them, without its limit of 30 triplets. Ours is a ``MemoryGraph`` called directly, whose edges
  are turned into the store's own triplets; both must give the same ones (the store gives some of
  them twice). The entities are those of questions, uniform.
- The 30 paths nearest to a question out of those of one or two hops from its entities, by the
  cosine of the packaged MiniLM. The entities are drawn by Zipf's law out of the first thousand that
  questions name, several for each query. Plain is sentence-transformers' ``encode`` of the question
  and every path, at its fastest batch size, and numpy; finding the candidates is not timed. Ours is
  a whole request of a graph with the stage ``GraphRetrieval``, from names of entities to paths.
  Queries before those that are measured fill the cache of vectors. The chosen paths must be the
  same, those with equal scores (within 1e-5) in any order. The share of paths whose vector was kept
  is a row.
- 16 programs at once on one loop: ``PGRetriever`` by the names that a model writes and by vectors,
  two hops each. The model is a table, the vectors are those of the packaged MiniLM, of a thousand
  entities in a ``SimpleVectorStore``. Plain is the program, ours what ``accelerate`` makes of it,
  over the same ``SimplePropertyGraphStore``; waves of ours before those that are measured let it
  make its indexes. The same on 2,000 triples is a row.
- The same program on a graph of too few triples for an index, one question after the other.
- Waves of 16 requests at once to a graph in Neo4j, from an entity to its paths of two hops: the
  queries that the driver sends for each wave are counted. The paths must be those that the same
  requests find in a ``MemoryGraph``. The server is that of ``NEO4J_URI``, or one started from
  ``NEO4J_HOME``; without one the ratio is left out, and the reason is printed.
- The 16 programs at once, and one after the other, over LlamaIndex' ``Neo4jPropertyGraphStore`` on
  the same server, 20,000 triples: rows alone, with the queries that its driver sends. Both arms
  ask one store object. They are left out, and the reason is printed, without a server, without
  the package of the store, and where the database of ``NEO4J_URI`` holds a property graph. Rows
  as well: the program by names alone, which has nothing to embed and so waits for the server
  only, 16 at once and one after the other, and the latter on the graph of few triples.

Ratios:
    pipeline_16: against the same programs run plainly by LlamaIndex: ms until 16 concurrent
        retrievals have ended / ours, 20,000 triples; median over waves.
    one_user: against the same program run plainly by LlamaIndex: ms of one retrieval, ours / plain
        (lower is better; accepted: at most 1.03); median over questions, the worst of the
        programs on a small graph and, where there is a server, those on Neo4j.
    expand_vs_simple_store: against LlamaIndex' SimplePropertyGraphStore: ms of its expansion by two
        hops / ours, native triplets included; median over entities.
    prune_vs_plain: against embedding every path by sentence-transformers: ms of its choice of 30
        paths / a request of ours, after queries that filled the cache; sum over queries.
    bolt_trips: against a query for each request and hop, which is 48: queries that the driver sends
        for a wave of 16 requests of two hops, Neo4j (lower is better); mean over waves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.answers import too_many
from bench.graph.bolt_programs import asked_over_bolt, reason_without_store, written_store
from bench.graph.bolt_waves import HOPS, REQUESTS, bolt_server, bolt_waves, memory_waves, written
from bench.graph.expanding import expansions, our_expand, plain_expand
from bench.graph.programs import (
    OURS,
    PATIENCE_S,
    PLAIN,
    TOLERANCE,
    Asked,
    Wave,
    asked_programs,
    program_rows,
    times_ms,
)
from bench.graph.property_graph import filled_store, without_loops
from bench.graph.pruning import (
    Chosen,
    PathQuery,
    best_batch_size,
    candidates,
    different,
    our_choice,
    path_graph,
    path_queries,
    plain_choice,
)
from bench.measure import Pairs, alternate, median, ratios
from bench.neo4j_process import BoltServer, reason_without_server
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.engines import KnowledgeEngine, MemoryGraph, SentenceTransformerEngine
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.engines.embedding.models import load_model
from rag_accel.sample import (
    GraphQuestion,
    chain_questions,
    read_library_graph,
)
from rag_accel.sample.source_triples import Triple
from rag_accel_demo import graph_questions, zipf_stream

_logger = logging.getLogger("bench.graph_retrieval")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        triples: of the graph.
        expanded: entities that are expanded.
        entities: that the queries of the choice of paths are drawn from.
        seeds: entities of a query.
        warm_queries: that fill the cache.
        queries: that are measured.
        vectors: entities that have one, in the retriever's store.
        few_triples: of the graph whose figures are rows alone.
        small_triples: of the graph of one user.
        programs: that ask at once.
        waves: of them, measured.
        singles: questions of one user.
        bolt_waves: of requests to a graph in Neo4j.
    """

    triples: int = 20_000
    expanded: int = 60
    entities: int = 1_000
    seeds: int = 4
    warm_queries: int = 60
    queries: int = 40
    vectors: int = 1_000
    few_triples: int = 2_000
    small_triples: int = 60
    programs: int = 16
    waves: int = 7
    singles: int = 200
    bolt_waves: int = 8


QUICK = Sizes(expanded=20, waves=3, singles=60, bolt_waves=3)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    triples = without_loops(read_library_graph(chosen.triples).triples)
    rows, found = list[Row](), dict[str, float]()
    alone = dict[str, Pairs[float]]()
    for part in (_expand, _prune, _pipeline, partial(_one_user, alone), partial(_bolt, alone)):
        more_rows, more = part(triples, chosen)
        _logger.info("%s", more)
        rows += more_rows
        found |= more
    more_rows, more = one_user(alone)
    rows += more_rows
    found |= more
    wrong = too_many(rows, "different_answers")
    return SuiteResult("graph_retrieval", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _expand(triples: Sequence[Triple], sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    workload = f"two hops from an entity, {len(triples)} triples"
    questions = graph_questions(triples, sizes.expanded, seed=1)
    store, graph = filled_store(triples), MemoryGraph(triples)
    with closing(graph):
        pairs = expansions(
            plain_expand(store), our_expand(graph, store), [one.seeds[0] for one in questions]
        )
    times = pairs.map(lambda one: in_ms(one.seconds))
    unequal = sum(
        plain.triples != ours.triples for plain, ours in zip(pairs.plain, pairs.other, strict=True)
    )
    rows = [
        row_of(PLAIN, workload, "latency_ms", times.plain),
        row_of(OURS, workload, "latency_ms", times.other),
        row_of(OURS, workload, "triplets", [len(one.triples) for one in pairs.other]),
        Row(OURS, workload, "different_answers", unequal, None, sizes.expanded),
    ]
    return rows, {"expand_vs_simple_store": median(ratios(Pairs(times.other, times.plain)))}


def _prune(triples: Sequence[Triple], sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    workload = f"30 paths of {sizes.seeds} entities, Zipf"
    model, graph = load_model(None, "cpu"), MemoryGraph(triples)
    embedder = SentenceTransformerEngine(model)
    queries = _queries(triples, sizes)
    with (
        closing(graph),
        Accelerator(
            embedder=embedder, graph=KnowledgeEngine(graph), single_flight=False
        ) as accelerator,
    ):
        stage = path_graph(sizes.seeds)
        for query in queries[: sizes.warm_queries]:
            our_choice(accelerator, stage, query)
        wait_until_compiled(PATIENCE_S)
        before = dict(embedder.counts)
        measured = queries[sizes.warm_queries :]
        paths = [candidates(graph, query) for query in measured]
        pairs = _choices(accelerator, stage, model, measured, paths)
        kept = {name: count - before[name] for name, count in embedder.counts.items()}
    return _prune_rows(workload, pairs, paths, kept)


def _queries(triples: Sequence[Triple], sizes: Sizes) -> list[PathQuery]:
    questions = chain_questions(triples)
    asked = set(list(dict.fromkeys(one.seeds[0] for one in questions))[: sizes.entities])
    about: list[GraphQuestion] = [one for one in questions if one.seeds[0] in asked]
    count = (sizes.warm_queries + sizes.queries) * sizes.seeds
    return path_queries(zipf_stream(about, count, seed=2), sizes.seeds)


def _choices(
    accelerator: Accelerator,
    stage: Any,
    model: Any,
    queries: Sequence[PathQuery],
    paths: Sequence[tuple[str, ...]],
) -> Pairs[Chosen]:
    """Answer every query once in each arm: the cache meets each as it would in use."""
    size = best_batch_size(model, max(paths, key=len))
    return alternate(
        lambda turn: plain_choice(model, size, queries[turn].text, paths[turn]),
        lambda turn: our_choice(accelerator, stage, queries[turn]),
        len(queries),
    )


def _prune_rows(
    workload: str, pairs: Pairs[Chosen], paths: Sequence[tuple[str, ...]], kept: dict[str, int]
) -> tuple[list[Row], dict[str, float]]:
    times = pairs.map(lambda one: in_ms(one.seconds))
    hits, misses = kept["kept_vector_hits"], kept["kept_vector_misses"]
    total = hits + misses
    rows = [
        row_of(PLAIN, workload, "latency_ms", times.plain),
        row_of(OURS, workload, "latency_ms", times.other),
        row_of(PLAIN, workload, "candidates", [len(some) for some in paths]),
        Row(OURS, workload, "hit_rate", hits / total, None, total),
        Row(
            OURS, workload, "different_answers", different(pairs, TOLERANCE), None, len(pairs.plain)
        ),
    ]
    return rows, {"prune_vs_plain": sum(times.plain) / sum(times.other)}


def _pipeline(triples: Sequence[Triple], sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    rows, found = list[Row](), list[Pairs[float]]()
    for count in (len(triples), min(sizes.few_triples, len(triples) // 2)):
        pairs = _asked(triples[:count], sizes, sizes.waves, sizes.programs)
        rows += program_rows(f"{sizes.programs} programs at once, {count} triples", pairs)
        found.append(times_ms(pairs))
    return rows, {"pipeline_16": median(ratios(Pairs(found[0].other, found[0].plain)))}


def _one_user(
    alone: dict[str, Pairs[float]], triples: Sequence[Triple], sizes: Sizes
) -> tuple[list[Row], dict[str, float]]:
    workload = f"one program, {sizes.small_triples} triples"
    pairs = _asked(triples[: sizes.small_triples], sizes, sizes.singles, 1)
    alone[workload] = times_ms(pairs)
    return program_rows(workload, pairs), {}


def _asked(triples: Sequence[Triple], sizes: Sizes, num_waves: int, programs: int) -> Pairs[Wave]:
    """Ask LlamaIndex' default store in waves of so many programs, in both arms."""
    asked = Asked(triples, num_waves, programs, sizes.vectors)
    return asked_programs(filled_store(triples), asked)


def _bolt(
    alone: dict[str, Pairs[float]], triples: Sequence[Triple], sizes: Sizes
) -> tuple[list[Row], dict[str, float]]:
    if reason := reason_without_server():
        _logger.warning("bolt_trips and the programs over Neo4j are left out: %s", reason)
        return [], {}
    with bolt_server() as server, server.driver(notifications_min_severity="OFF") as driver:
        with written(driver, triples):
            rows, found = _bolt_trips(driver, triples, sizes.bolt_waves)
        if reason := reason_without_store(driver):
            _logger.warning("the programs over Neo4j are left out: %s", reason)
            return rows, found
        return [*rows, *_bolt_programs(alone, server, triples, sizes)], found


def _bolt_programs(
    alone: dict[str, Pairs[float]], server: BoltServer, triples: Sequence[Triple], sizes: Sizes
) -> list[Row]:
    """Ask LlamaIndex' store of Neo4j: many programs at once, then one after the other."""
    small = triples[: sizes.small_triples]
    graphs = (
        [
            Asked(triples, num_waves, programs, vectors)
            for vectors in (sizes.vectors, 0)
            for num_waves, programs in ((sizes.waves, sizes.programs), (sizes.singles, 1))
        ],
        [Asked(small, sizes.singles, 1, vectors=0)],
    )
    rows = list[Row]()
    for of_one_graph in graphs:
        with written_store(server, of_one_graph[0].triples) as store:
            for asked in of_one_graph:
                found = asked_over_bolt(store, asked)
                rows += found.rows()
                if asked.programs == 1:
                    alone[found.workload] = times_ms(found.waves)
    return rows


def _bolt_trips(
    driver: Any, triples: Sequence[Triple], count: int
) -> tuple[list[Row], dict[str, float]]:
    """Count the queries of waves to a graph that the database holds."""
    workload = f"{REQUESTS} requests at once, {HOPS} hops, Neo4j"
    seeds = [one.seeds[0] for one in graph_questions(triples, count * REQUESTS, seed=3)]
    groups = [seeds[start : start + REQUESTS] for start in range(0, len(seeds), REQUESTS)]
    model = load_model(None, "cpu")
    found = bolt_waves(driver, SentenceTransformerEngine(model), groups)
    with closing(MemoryGraph(triples)) as graph:
        expected = memory_waves(graph, SentenceTransformerEngine(model), groups)
    sent = [wave.sent for wave in found]
    wrong = sum(
        mine != other
        for wave, known in zip(found, expected, strict=True)
        for mine, other in zip(wave.paths, known, strict=True)
    )
    rows = [
        row_of(OURS, workload, "round_trips", sent),
        Row(OURS, workload, "different_answers", wrong, None, len(seeds)),
    ]
    return rows, {"bolt_trips": sum(sent) / len(sent)}
