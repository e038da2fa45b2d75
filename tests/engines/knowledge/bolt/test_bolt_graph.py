"""A knowledge graph over a driver: what it asks, what it makes of the answers, how it fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import neo4j
import numpy as np
import pytest
from bolt_fakes import FakeDriver
from neo4j.exceptions import AuthError, ClientError, ServiceUnavailable, SessionExpired
from triples import (
    ODD_NAMES,
    edges_by_definition,
    named_edges,
    paths_by_definition,
    random_graph,
    walk,
)

from rag_accel.engine_api import ExpandBatch, LinkQuery
from rag_accel.engines.knowledge.bolt import BoltGraph
from rag_accel.engines.knowledge.bolt.statements import quoted
from rag_accel.engines.knowledge.protocol import Expansion, GraphView, as_ids
from rag_accel.errors import ClosedError, ConfigError, GraphLinkError

ALL = ExpandBatch(None, limit=10_000)


def entities(view: GraphView, *names: str) -> Any:
    """Return the ids of entities."""
    return view.find([LinkQuery(len(names), names=names)])[0]


# Paths and edges.


@pytest.mark.parametrize("seed", range(100))
def test_paths_of_a_random_graph_are_those_of_the_definition(seed: int) -> None:
    triples = random_graph(seed)
    seeds = [name for name, _, _ in triples[:3]]
    (found,) = walk(BoltGraph(FakeDriver(triples)).view(), [seeds], ALL, 2)
    assert list(found) == paths_by_definition(triples, seeds, ALL, 2)


@pytest.mark.parametrize("direction", ["out", "in", "both"])
@pytest.mark.parametrize("relations", [None, (), ("likes",), ("Z", "type", "unknown")])
@pytest.mark.parametrize("fan_out", [0, 1, 2, 100])
def test_edges_are_ordered_chosen_and_cut(
    direction: Any, relations: tuple[str, ...] | None, fan_out: int
) -> None:
    triples = random_graph(7) + random_graph(8)
    names = sorted({head for head, _, _ in triples})
    view = BoltGraph(FakeDriver(triples)).view()
    asked = Expansion(entities(view, *names), relations, direction, fan_out)
    (found,) = named_edges(view, [asked])
    assert found == [edges_by_definition(triples, name, asked) for name in names]


def test_an_entity_asked_for_twice_gets_its_edges_twice_and_is_sent_once() -> None:
    driver = FakeDriver([("a", "r", "b")])
    view = BoltGraph(driver).view()
    one = entities(view, "a")
    (found,) = named_edges(view, [Expansion(np.concatenate((one, one)), direction="out")])
    assert found == [[("r", "b", True)]] * 2
    assert [row["name"] for row in driver.sent[-1].parameters["leaving"]] == ["a"]


def test_requests_with_other_bounds_share_a_query_and_keep_their_bounds() -> None:
    view = BoltGraph(FakeDriver([("a", "r", name) for name in "bcdef"])).view()
    one = entities(view, "a")
    narrow, wide = named_edges(view, [Expansion(one, fan_out=2), Expansion(one, fan_out=4)])
    assert (len(narrow[0]), len(wide[0])) == (2, 4)


@pytest.mark.parametrize("asked", [Expansion(as_ids([])), Expansion(as_ids([0]), ())])
def test_nothing_to_ask_for_needs_no_query(asked: Expansion) -> None:
    driver = FakeDriver([("a", "r", "b")])
    view = BoltGraph(driver).view()
    entities(view, "a")
    sent = len(driver.sent)
    (edges,) = view.expand([asked])
    assert (len(edges.others), len(driver.sent)) == (0, sent)


# Links.


def test_names_are_linked_in_their_order_each_once_and_unknown_ones_never() -> None:
    view = BoltGraph(FakeDriver([("a", "r", "b"), ("c", "r", "d")])).view()
    query = LinkQuery(3, names=("d", "nowhere", "a", "d", "c", "b"))
    assert view.entity_names(view.find([query])[0]) == ["d", "a", "c"]


@pytest.mark.parametrize("name", ["", "nowhere", "\ud800", "'}) DETACH DELETE (n) //"])
def test_a_name_that_is_no_entity_means_nothing(name: str) -> None:
    view = BoltGraph(FakeDriver([("a", "r", "b")])).view()
    assert len(entities(view, name)) == 0


def test_a_text_is_looked_up_by_its_words_in_the_named_index() -> None:
    driver = FakeDriver([("red car", "r", "red"), ("blue", "r", "car")])
    view = BoltGraph(driver, text_index="words").view()
    (found,) = view.find([LinkQuery(3, text="A RED (car) ~ *:* AND")])
    assert view.entity_names(found) == ["red car", "car", "red"]
    assert driver.sent[0].parameters["texts"][0]["query"] == "a red car and"
    assert driver.sent[0].parameters["text_index"] == "words"


def test_a_vector_is_looked_up_in_the_named_index() -> None:
    driver = FakeDriver(vectors={"a": [1, 0], "b": [0, 1], "c": [1, 0]})
    view = BoltGraph(driver, vector_index="near").view()
    (found,) = view.find([LinkQuery(2, vector=np.asarray([1, 0], np.float32))])
    assert view.entity_names(found) == ["a", "c"]


@pytest.mark.parametrize(
    ("query", "option"),
    [(LinkQuery(1, text="word"), "text_index"), (LinkQuery(1, vector=[1.0]), "vector_index")],
)
def test_a_search_without_its_index_names_the_option(query: LinkQuery, option: str) -> None:
    with pytest.raises(GraphLinkError, match=option):
        BoltGraph(FakeDriver()).view().find([query])


@pytest.mark.parametrize(
    "query", [LinkQuery(0, names=("a",)), LinkQuery(1, names=()), LinkQuery(1, text=" ?! ")]
)
def test_a_search_for_nothing_needs_no_query(query: LinkQuery) -> None:
    driver = FakeDriver([("a", "r", "b")])
    (found,) = BoltGraph(driver, text_index="words").view().find([query])
    assert (len(found), driver.sent) == (0, [])


def test_texts_are_read_once_and_only_where_a_property_holds_them() -> None:
    driver = FakeDriver([("a", "r", "b")], texts={"a": "first"})
    view = BoltGraph(driver, text="description").view()
    assert view.entity_texts(entities(view, "a", "b")) == ["first", ""]
    plain = BoltGraph(driver).view()
    ids, sent = entities(plain, "a"), len(driver.sent)
    assert (plain.entity_texts(ids), len(driver.sent)) == ([""], sent)


# Round trips, and whose queries they are.


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_a_wave_of_requests_needs_a_round_trip_for_the_links_and_one_a_hop(hops: int) -> None:
    triples = random_graph(3) + random_graph(5)
    driver = FakeDriver(triples)
    graph = BoltGraph(driver)
    walk(graph.view(), [[head] for head, _, _ in triples[:16]], ALL, hops)
    assert graph.trips == len(driver.sent) == hops + 1


def test_links_of_all_kinds_share_a_round_trip() -> None:
    driver = FakeDriver([("a", "r", "b")], vectors={"b": [1.0]})
    view = BoltGraph(driver, text_index="words", vector_index="near").view()
    asked = [LinkQuery(1, names=("a",)), LinkQuery(1, text="a"), LinkQuery(1, vector=[1.0])]
    assert [view.entity_names(found) for found in view.find(asked)] == [["a"], ["a"], ["b"]]
    assert len(driver.sent) == 1


def test_data_never_stands_in_a_statement() -> None:
    triples = [(name, "it's`) DETACH DELETE (n) //", "b") for name in ODD_NAMES]
    driver = FakeDriver(triples)
    walk(BoltGraph(driver).view(), [ODD_NAMES], ExpandBatch(None, (triples[0][1],)), 1)
    plain = FakeDriver([("x", "y", "z")])
    walk(BoltGraph(plain).view(), [["x"]], ExpandBatch(None, ("y",)), 1)
    assert [one.text for one in driver.sent] == [one.text for one in plain.sent]


def test_queries_only_read_within_a_time_limit_in_sessions_of_their_own() -> None:
    driver = FakeDriver([("a", "r", "b")])
    entities(BoltGraph(driver, timeout_s=3.0).view(), "a")
    (sent,) = driver.sent
    assert (sent.settings["default_access_mode"], sent.timeout_s) == (neo4j.READ_ACCESS, 3.0)
    assert driver.open_sessions == 0


def test_what_execute_query_has_written_is_seen_unless_bookmarks_are_given() -> None:
    driver = FakeDriver()
    entities(BoltGraph(driver).view(), "a")
    marks = neo4j.Bookmarks.from_raw_values(["x"])
    entities(BoltGraph(driver, bookmarks=marks).view(), "a")
    plain, marked = (one.settings for one in driver.sent)
    assert plain["bookmark_manager"] is driver.execute_query_bookmark_manager
    assert marked["bookmarks"] is marks
    assert "bookmark_manager" not in marked


def test_graphs_of_two_tenants_have_views_and_sessions_of_their_own() -> None:
    driver = FakeDriver([("a", "r", "b")])
    ours = BoltGraph(driver, database="ours", auth=neo4j.basic_auth("us", "secret"))
    theirs = BoltGraph(driver, database="theirs", impersonated_user="them")
    assert ours.view() != theirs.view()
    for graph in (ours, theirs):
        walk(graph.view(), [["a"]], ALL, 1)
    assert [one.settings["database"] for one in driver.sent] == ["ours"] * 2 + ["theirs"] * 2
    assert [one.settings.get("impersonated_user") for one in driver.sent] == [None] * 2 + [
        "them"
    ] * 2
    assert ["auth" in one.settings for one in driver.sent] == [True] * 2 + [False] * 2


def test_an_edit_is_seen_by_the_next_request() -> None:
    driver = FakeDriver([("a", "r", "b")])
    graph = BoltGraph(driver)
    before = walk(graph.view(), [["a"]], ALL, 1)
    driver.triples.append(("a", "r", "c"))
    after = walk(graph.view(), [["a"]], ALL, 1)
    assert [path.text for path in after[0]] == [*(path.text for path in before[0]), "a -> r -> c"]


def test_a_view_stays_until_it_knows_too_many_names() -> None:
    graph = BoltGraph(FakeDriver([("a", "r", "b")]), max_names=2)
    first = graph.view()
    assert graph.view() is first
    (found,) = walk(first, [["a"]], ALL, 1)
    second = graph.view()
    assert second.version != first.version
    assert found[0].text == "a -> r -> b"


# What fails.


@pytest.mark.parametrize(
    "error",
    [
        AuthError("the login was refused"),
        ClientError("no such index"),
        ClientError("the transaction timed out"),
    ],
    ids=["login", "index", "timeout"],
)
def test_an_error_of_the_drivers_passes_through_with_a_note(error: Exception) -> None:
    driver = FakeDriver()
    driver.failures = [error]
    with pytest.raises(type(error)) as raised:
        entities(BoltGraph(driver).view(), "a secret name")
    assert raised.value is error
    assert raised.value.__notes__ == ["while a knowledge graph was read from its database"]
    assert len(driver.sent) == 1


def test_a_connection_that_died_is_replaced_once() -> None:
    driver = FakeDriver([("a", "r", "b")])
    driver.failures = [SessionExpired("the pooled connection is gone")]
    assert len(entities(BoltGraph(driver).view(), "a")) == 1


def test_a_server_that_is_gone_midway_ends_with_the_drivers_error() -> None:
    driver = FakeDriver([("a", "r", "b")])
    view = BoltGraph(driver).view()
    found = entities(view, "a")
    gone = [ServiceUnavailable("first"), ServiceUnavailable("second")]
    driver.failures = list(gone)
    with pytest.raises(ServiceUnavailable) as raised:
        view.expand([Expansion(found)])
    assert raised.value is gone[1]
    assert driver.open_sessions == 0


def test_a_closed_graph_says_so_and_leaves_the_driver_open() -> None:
    graph = BoltGraph(FakeDriver())
    graph.close()
    with pytest.raises(ClosedError):
        graph.view()


def test_no_credential_is_shown() -> None:
    graph = BoltGraph(FakeDriver(), auth=neo4j.basic_auth("user", "hidden word"))
    shown = f"{graph!r} {graph.view()!r} {graph._reader!r} {graph._reader._access!r}"
    assert "hidden" not in shown


@pytest.mark.parametrize("name", ["", "a\\u0060b", "a\nb", "a\0", 5])
@pytest.mark.parametrize("option", ["label", "name", "text"])
def test_a_schema_name_that_cypher_could_misread_is_refused(name: Any, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        BoltGraph(FakeDriver(), **{option: name})


def test_a_tick_in_a_schema_name_is_doubled() -> None:
    assert quoted("a`b", "label") == "`a``b`"


@pytest.mark.parametrize("given", [{"timeout_s": 0}, {"text_index": ""}, {"vector_index": 5}])
def test_a_bad_option_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        BoltGraph(FakeDriver(), **given)


def test_an_asynchronous_driver_is_refused() -> None:
    driver = neo4j.AsyncGraphDatabase.driver("bolt://127.0.0.1:1")
    with pytest.raises(ConfigError, match="AsyncBoltDriver"):
        BoltGraph(driver)
    asyncio.run(driver.close())


def test_the_driver_package_is_not_imported_before_a_query() -> None:
    code = "import sys; from rag_accel.engines import BoltGraph; print('neo4j' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_what_is_no_driver_is_refused() -> None:
    with pytest.raises(ConfigError, match="driver"):
        BoltGraph("bolt://user:hidden@host")
