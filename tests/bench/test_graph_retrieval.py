"""The suite on graphs runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph.sub_retrievers.llm_synonym import (
    DEFAULT_SYNONYM_EXPAND_TEMPLATE,
)

from bench.graph import bolt_programs
from bench.graph.bolt_programs import bolt_program_rows, reason_without_store, written_store
from bench.graph.bolt_waves import HOPS, LABEL, REQUESTS, CountingDriver, written
from bench.graph.expanding import our_expand, plain_expand
from bench.graph.programs import OURS, PLAIN, Asked, NamingLLM, Wave, program_rows, unequal
from bench.graph.property_graph import filled_store, retriever, vectors_of, without_loops
from bench.graph.pruning import Chosen, candidates, different, path_queries
from bench.llama_index_programs import WordEmbedding
from bench.measure import Pairs
from bench.neo4j_process import BoltServer
from bench.results import SuiteResult, as_json, from_json
from bench.suites import graph_retrieval, ratio_definitions
from rag_accel.engines import MemoryGraph
from rag_accel.sample import chain_questions, read_library_graph
from rag_accel.sample.source_triples import Triple
from rag_accel_demo import uniform_stream

TINY = graph_retrieval.Sizes(
    triples=600,
    expanded=4,
    entities=20,
    seeds=2,
    warm_queries=3,
    queries=3,
    vectors=20,
    few_triples=200,
    programs=3,
    waves=2,
    singles=2,
)

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def found() -> SuiteResult:
    """Return what the suite finds where there is no server."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NEO4J_URI", "NEO4J_HOME"):
            patch.delenv(name, raising=False)
        return graph_retrieval.run(True, TINY)


@pytest.fixture(scope="module")
def triples() -> tuple[Triple, ...]:
    return without_loops(read_library_graph(TINY.triples).triples)


@pytest.fixture(scope="module")
def store(triples: tuple[Triple, ...]) -> SimplePropertyGraphStore:
    return filled_store(triples)


# The suite ---------------------------------------------------------------------------------------


def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite)) - {"bolt_trips"}
    assert {row.system for row in found.rows} == {PLAIN, OURS, "accelerated / plain"}


def test_every_answer_is_the_plain_one(found: SuiteResult) -> None:
    compared = [row for row in found.rows if row.metric == "different_answers"]
    assert [row.n for row in compared] == [
        *(TINY.expanded, TINY.queries),
        *(TINY.waves * TINY.programs, TINY.waves * TINY.programs, TINY.singles),
    ]
    assert found.wrong == ()


def test_vectors_that_were_kept_are_counted(found: SuiteResult) -> None:
    (rate,) = [row for row in found.rows if row.metric == "hit_rate"]
    assert 0 < rate.median <= 1
    assert rate.n > TINY.queries


def test_an_answer_that_differs_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = graph_retrieval.our_choice

    def halved(*args: object) -> Chosen:
        chosen = choose(*args)  # type: ignore[arg-type]
        return replace(chosen, texts=chosen.texts[1:], scores=chosen.scores[1:])

    monkeypatch.setattr(graph_retrieval, "our_choice", halved)
    monkeypatch.setattr(graph_retrieval, "reason_without_server", lambda: "not asked here")
    (wrong,) = graph_retrieval.run(True, TINY).wrong
    assert wrong.startswith("accelerated, 30 paths")


# Waves over Bolt ---------------------------------------------------------------------------------


def test_without_a_server_its_ratio_is_left_out_with_the_reason(
    triples: tuple[Triple, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("NEO4J_URI", "NEO4J_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert graph_retrieval._bolt(triples, TINY) == ([], {})
    assert "NEO4J_HOME names no unpacked server" in caplog.text


def test_the_counting_driver_counts_what_is_run_through_it() -> None:
    class Session:
        def __enter__(self) -> Session:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, query: str, parameters: object = None) -> list[str]:
            return [query]

    class Driver:
        name = "driver"

        def session(self, **settings: object) -> Session:
            assert settings == {"database": "other"}
            return Session()

        def execute_query(self, query: str, **settings: object) -> list[object]:
            return [query, settings]

    driver = CountingDriver(Driver())
    with driver.session(database="other") as session:
        assert [session.run(one) for one in "ab"] == [["a"], ["b"]]
    assert driver.execute_query("c", database_="other") == ["c", {"database_": "other"}]
    assert (driver.sent, driver.name) == (3, "driver")


@pytest.mark.neo4j
def test_a_wave_sends_a_query_for_its_names_and_one_a_hop(
    triples: tuple[Triple, ...], neo4j_driver: Any
) -> None:
    with written(neo4j_driver, triples):
        rows, ratio = graph_retrieval._bolt_trips(neo4j_driver, triples, 2)
    assert ratio["bolt_trips"] == HOPS + 1
    (different_answers,) = [row for row in rows if row.metric == "different_answers"]
    assert (different_answers.median, different_answers.n) == (0, 2 * REQUESTS)
    assert neo4j_driver.execute_query("MATCH (n) RETURN n LIMIT 1").records == []
    assert neo4j_driver.execute_query("SHOW CONSTRAINTS").records == []


@pytest.mark.neo4j
def test_paths_that_differ_fail_the_comparison(
    triples: tuple[Triple, ...], neo4j_driver: Any
) -> None:
    with written(neo4j_driver, triples):
        neo4j_driver.execute_query(f"MATCH (:{LABEL})-[r]->() DELETE r")
        rows, _ = graph_retrieval._bolt_trips(neo4j_driver, triples, 1)
    (different_answers,) = [row for row in rows if row.metric == "different_answers"]
    assert different_answers.median == REQUESTS


# Programs over Bolt ------------------------------------------------------------------------------


def test_without_the_package_of_the_store_its_rows_are_left_out_with_the_reason(
    triples: tuple[Triple, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Driver:
        def __enter__(self) -> Driver:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    class Server:
        def driver(self, **_: object) -> Driver:
            return Driver()

    monkeypatch.setattr(graph_retrieval, "reason_without_server", lambda: None)
    monkeypatch.setattr(graph_retrieval, "bolt_server", lambda: nullcontext(Server()))
    monkeypatch.setattr(graph_retrieval, "written", lambda *_: nullcontext())
    monkeypatch.setattr(graph_retrieval, "_bolt_trips", lambda *_: ([], {"bolt_trips": 3.0}))
    monkeypatch.setattr(bolt_programs.importlib.util, "find_spec", lambda _: None)
    assert graph_retrieval._bolt(triples, TINY) == ([], {"bolt_trips": 3.0})
    assert "llama-index-graph-stores-neo4j is not installed" in caplog.text


@pytest.fixture
def _needs_the_store() -> None:
    pytest.importorskip("llama_index.graph_stores.neo4j")


def over_the_store(test: Any) -> Any:
    """Mark a test that needs LlamaIndex' store of a real server."""
    marks = (
        pytest.mark.neo4j,
        pytest.mark.usefixtures("_needs_the_store"),
        # The store fills itself by what pydantic has replaced.
        pytest.mark.filterwarnings("ignore:The `dict` method is deprecated"),
    )
    for mark in marks:
        test = mark(test)
    return test


@over_the_store
@pytest.mark.parametrize("programs", [1, 3])
def test_programs_over_neo4j_find_what_plain_ones_find_in_as_many_queries(
    triples: tuple[Triple, ...], neo4j_server: BoltServer, neo4j_driver: Any, programs: int
) -> None:
    asked = Asked(triples, waves=2, programs=programs, vectors=20)
    with written_store(neo4j_server, triples) as store:
        driver = store._driver
        rows = {(row.system, row.metric): row for row in bolt_program_rows(store, asked)}
        assert store._driver is driver
    compared = rows[OURS, "different_answers"]
    assert (compared.median, compared.n) == (0, 2 * programs)
    # Names and vectors each ask for their entities, then for what is around them.
    assert [rows[arm, "round_trips"].median for arm in (PLAIN, OURS)] == [4 * programs] * 2
    assert len({row.workload for row in rows.values()}) == 1


@over_the_store
def test_programs_by_names_alone_ask_for_no_vectors(
    triples: tuple[Triple, ...], neo4j_server: BoltServer, neo4j_driver: Any
) -> None:
    asked = Asked(triples, waves=2, programs=1, vectors=0)
    with written_store(neo4j_server, triples) as store:
        rows = {(row.system, row.metric): row for row in bolt_program_rows(store, asked)}
    compared = rows[OURS, "different_answers"]
    assert (compared.median, compared.n) == (0, 2)
    assert [rows[arm, "round_trips"].median for arm in (PLAIN, OURS)] == [2, 2]
    named = f"one program by names alone, {len(triples)} triples, Neo4j"
    assert {row.workload for row in rows.values()} == {named}


@over_the_store
def test_a_store_holds_every_triple_and_then_leaves_the_database_as_it_was(
    triples: tuple[Triple, ...], neo4j_server: BoltServer, neo4j_driver: Any
) -> None:
    neo4j_driver.execute_query("CREATE (:Own {id: $id})", id=triples[0][0])
    neo4j_driver.execute_query("CREATE INDEX own FOR (n:Own) ON (n.id)")
    before = bolt_programs._schema(neo4j_driver)
    with written_store(neo4j_server, triples) as store:
        assert reason_without_store(neo4j_driver) is not None
        held = store.structured_query(
            "MATCH (a:__Entity__)-[r]->(b:__Entity__) RETURN a.id AS h, type(r) AS l, b.id AS t"
        )
        assert {(one["h"], one["l"], one["t"]) for one in held} == set(triples)
        assert bolt_programs._schema(neo4j_driver) != before
    assert bolt_programs._schema(neo4j_driver) == before
    assert reason_without_store(neo4j_driver) is None
    (left,) = neo4j_driver.execute_query("MATCH (n) RETURN labels(n) AS labels").records
    assert left["labels"] == ["Own"]


@over_the_store
def test_a_store_that_cannot_be_filled_leaves_the_database_as_it_was(
    triples: tuple[Triple, ...],
    neo4j_server: BoltServer,
    neo4j_driver: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(store: Any, some: Sequence[Triple]) -> None:
        filled(store, some[:10])
        raise RuntimeError("half filled")

    filled, before = bolt_programs.fill, bolt_programs._schema(neo4j_driver)
    monkeypatch.setattr(bolt_programs, "fill", half)
    with pytest.raises(RuntimeError, match="half filled"), written_store(neo4j_server, triples):
        raise AssertionError("it was given")
    assert neo4j_driver.execute_query("MATCH (n) RETURN n LIMIT 1").records == []
    assert bolt_programs._schema(neo4j_driver) == before


# The frameworks' stores --------------------------------------------------------------------------


def test_the_store_holds_every_triple(
    triples: tuple[Triple, ...], store: SimplePropertyGraphStore
) -> None:
    assert store.graph.triplets == set(triples)
    assert len(store.graph.relations) == len(triples)


def test_triples_of_one_entity_are_left_out(triples: tuple[Triple, ...]) -> None:
    every = read_library_graph(TINY.triples).triples
    assert [one for one in every if one[0] != one[2]] == list(triples)
    assert without_loops([("a", "calls", "a"), ("a", "calls", "b")]) == (("a", "calls", "b"),)


def test_ours_gives_the_very_triplets_of_the_store(
    triples: tuple[Triple, ...], store: SimplePropertyGraphStore
) -> None:
    graph = MemoryGraph(triples)
    plain, ours = plain_expand(store), our_expand(graph, store)
    for name in list(store.graph.nodes)[::40]:
        given = ours(name)
        assert {tuple(map(id, one)) for one in given} == {
            tuple(map(id, one)) for one in plain(name)
        }
        assert len(set(map(str, given))) == len(given)


def test_a_retriever_follows_two_hops_from_the_nearest_entity() -> None:
    store = filled_store([("red pump", "feeds", "tank"), ("tank", "feeds", "tap")])
    model = WordEmbedding()
    program = retriever(store, vectors_of(store, model), model)
    nodes = asyncio.run(program.aretrieve("red pump"))
    assert {node.text for node in nodes} == {"red pump -> feeds -> tank", "tank -> feeds -> tap"}


# Whole programs ----------------------------------------------------------------------------------


def _wave(*nodes: tuple[str, float]) -> Pairs[Wave]:
    shown = tuple((text, float, score) for text, score in nodes)
    plain = Wave(0.1, ((("a", float, 0.9), ("b", float, 0.9), ("c", float, 0.5)),))
    return Pairs((plain,), (Wave(0.1, (shown,)),))


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ((("a", 0.9), ("b", 0.9), ("c", 0.5)), 0),
        ((("b", 0.9), ("a", 0.9), ("c", 0.5)), 0),
        ((("a", 0.9), ("b", 0.9)), 1),
        ((("a", 0.9), ("b", 0.9), ("d", 0.5)), 1),
        ((("a", 0.9), ("b", 0.9), ("c", 0.4)), 1),
    ],
)
def test_other_nodes_or_scores_of_a_program_are_counted(
    nodes: tuple[tuple[str, float], ...], count: int
) -> None:
    assert unequal(_wave(*nodes), 1e-5) == count


def test_rows_of_programs_have_their_ratio_and_count_what_differs() -> None:
    plain = Wave(0.2, ((("a", float, 0.9),), (("b", float, 0.9),)))
    ours = Wave(0.1, ((("a", float, 0.9),), (("c", float, 0.9),)))
    rows = {row.metric: row for row in program_rows("programs", Pairs((plain,), (ours,)))}
    assert rows["latency_ratio"].median == pytest.approx(0.5)
    assert (rows["different_answers"].median, rows["different_answers"].n) == (1, 2)


def test_the_model_gives_the_names_in_a_question(triples: tuple[Triple, ...]) -> None:
    (question,) = uniform_stream(chain_questions(triples), 1, seed=1)
    llm = NamingLLM(names={question.text: question.seeds})
    asked = DEFAULT_SYNONYM_EXPAND_TEMPLATE.format(query_str=question.text, max_keywords=3)
    assert llm.complete(asked).text == "^".join(question.seeds)


# The choice of paths -----------------------------------------------------------------------------


def test_queries_take_their_entities_from_a_stream(triples: tuple[Triple, ...]) -> None:
    stream = uniform_stream(chain_questions(triples), 6, seed=1)
    queries = path_queries(stream, 2)
    assert [one.text for one in queries] == [stream[place].text for place in (0, 2, 4)]
    assert set(queries[1].entities) == {stream[2].seeds[0], stream[3].seeds[0]}


def test_candidates_begin_at_the_entities_of_a_query(triples: tuple[Triple, ...]) -> None:
    (query,) = path_queries(uniform_stream(chain_questions(triples), 2, seed=1), 2)
    found = candidates(MemoryGraph(triples), query)
    assert len(set(found)) == len(found) > 2
    assert {path.split(" ")[0] for path in found} == set(query.entities)


CHOSEN = Chosen(0.1, ("a", "b", "c"), (0.9, 0.5, 0.5))


@pytest.mark.parametrize(
    ("texts", "scores", "count"),
    [
        (("a", "b", "c"), (0.9, 0.5, 0.5), 0),
        (("a", "c", "b"), (0.9, 0.5, 0.5), 0),
        (("a", "b", "d"), (0.9, 0.5, 0.5), 0),
        (("b", "a", "c"), (0.9, 0.5, 0.5), 1),
        (("d", "b", "c"), (0.9, 0.5, 0.5), 1),
        (("a", "b", "c"), (0.9, 0.5, 0.4), 1),
        (("a", "b"), (0.9, 0.5), 1),
    ],
)
def test_equal_scores_may_change_places_and_no_others(
    texts: tuple[str, ...], scores: tuple[float, ...], count: int
) -> None:
    assert different(Pairs((CHOSEN,), (Chosen(0.1, texts, scores),)), 1e-5) == count
