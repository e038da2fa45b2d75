"""The suite on graphs runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("llama_index.core")


from bench.graph import bolt_programs
from bench.graph.bolt_programs import asked_over_bolt, reason_without_store, written_store
from bench.graph.bolt_waves import HOPS, REQUESTS, CountingDriver, written
from bench.graph.programs import OURS, PLAIN, Asked, Wave, program_rows, unequal
from bench.graph.property_graph import without_loops
from bench.graph.pruning import Chosen, different
from bench.measure import Pairs
from bench.neo4j_process import BoltServer
from bench.suites import graph_retrieval
from rag_accel.sample import read_library_graph
from rag_accel.sample.source_triples import Triple

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
def triples() -> tuple[Triple, ...]:
    return without_loops(read_library_graph(TINY.triples).triples)


# The suite ---------------------------------------------------------------------------------------


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


# Programs over Bolt ------------------------------------------------------------------------------


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
        rows = {(row.system, row.metric): row for row in asked_over_bolt(store, asked).rows()}
        assert store._driver is driver
    compared = rows[OURS, "different_answers"]
    assert (compared.median, compared.n) == (0, 2 * programs)
    # Names and vectors each ask for their entities, then for what is around them.
    assert [rows[arm, "round_trips"].median for arm in (PLAIN, OURS)] == [4 * programs] * 2
    assert len({row.workload for row in rows.values()}) == 1


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


# The choice of paths -----------------------------------------------------------------------------


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
