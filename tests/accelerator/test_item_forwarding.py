"""Items leave in order, within their credit, once; and nobody waits for what will not come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import EngineOutputError
from rag_accel.graph.item_lists import ItemReader
from rag_accel.graph.list_functions import ListFunction
from rag_accel.requests.streams import Due, ItemForwarding
from rag_accel.scheduler.messages import NodeKey, RequestId


class Lines(ListFunction):
    """Read the lines of a text."""

    @property
    def item_count(self) -> int:
        return 3

    def reader(self) -> ItemReader:
        return ItemReader("lines")


GRAPH = """p-graph
d: DECODING@llm(input) -> text  depth=3
list: FUNCTION(text) -> list  after d  depth=2 items=3 fn=@lines
one: PARTIAL_DECODING(list) -> one  depth=2 fn=@first item=0 text="d" list="list" credit=2
two: PARTIAL_DECODING(list) -> two  depth=2 fn=@second item=1 text="d" list="list" credit=2
three: PARTIAL_DECODING(list) -> three  depth=2 fn=@third item=2 text="d" list="list" credit=2
a: EMBEDDING@embedder(one) -> a  after one  depth=1
b: EMBEDDING@embedder(two) -> b  after two  depth=1
c: EMBEDDING@embedder(three) -> c  after three  depth=1
"""


class Forwarding:
    """Forward the items of ``GRAPH``, and note what becomes of each partial decoding."""

    def __init__(self) -> None:
        fns = {name: (lambda items, at=at: items[at]) for at, name in enumerate(PLACES)}
        graph = parse_primitives(GRAPH, {"lines": Lines(), **fns})
        self.items = ItemForwarding()
        self.items.expect(graph.primitives)
        self.partial = {str(one.name): one for one in graph.primitives}
        self.events: list[tuple[str, str]] = []

    def note(self, due: Sequence[Due]) -> None:
        for node, one, item in due:
            assert node.node == one.name
            assert (item is None) == (one.kind is PrimitiveKind.FUNCTION)
            self.events.append((one.name, "from the list" if item is None else item))

    def grant(self, *names: str) -> None:
        for name in names:
            self.note(self.items.granted(NodeKey(RequestId(1), name), self.partial[name]))

    def feed(self, text: str) -> None:
        self.note(self.items.feed("d", text))

    def ended(self, name: str, value: Any = None) -> None:
        self.note(self.items.ended(name, value))


PLACES = ("first", "second", "third")


@pytest.fixture
def forwarding() -> Forwarding:
    return Forwarding()


def test_only_the_decoding_of_a_list_is_read(forwarding: Forwarding) -> None:
    assert forwarding.items.reads("d")
    assert not forwarding.items.reads("a")
    forwarding.items.begin("a")
    forwarding.ended("b")
    assert forwarding.items.close() == []
    assert forwarding.events == []


def test_items_leave_in_order_as_they_are_finished(forwarding: Forwarding) -> None:
    forwarding.grant("two", "one")
    forwarding.feed("x\ny")
    assert forwarding.events == [("one", "x")]
    forwarding.feed("\n")
    assert forwarding.events == [("one", "x"), ("two", "y")]


def test_items_wait_for_decodings_that_come_late(forwarding: Forwarding) -> None:
    forwarding.feed("x\ny\n")
    assert forwarding.events == []
    forwarding.grant("two")
    assert forwarding.events == [("two", "y")]


def test_no_more_items_are_on_their_way_than_the_credit(forwarding: Forwarding) -> None:
    forwarding.grant("one", "two", "three")
    forwarding.feed("x\ny\nz\n")
    assert forwarding.events == [("one", "x"), ("two", "y")]
    forwarding.ended("b")
    assert forwarding.events[2:] == [("three", "z")]


def test_who_has_no_item_when_the_list_is_known_asks_the_list(forwarding: Forwarding) -> None:
    forwarding.grant("one", "two")
    forwarding.feed("x\n")
    forwarding.ended("d", "x\n")
    assert forwarding.events == [("one", "x")]
    forwarding.ended("list", ("x",))
    forwarding.grant("three")
    assert forwarding.events[1:] == [("two", "from the list"), ("three", "from the list")]


def test_a_known_list_needs_no_credit(forwarding: Forwarding) -> None:
    forwarding.grant("one", "two", "three")
    forwarding.feed("x\ny\nz\n")
    forwarding.ended("list", ("x", "y", "z"))
    assert forwarding.events[2:] == [("three", "from the list")]


def test_a_decoding_that_starts_again_is_read_from_its_beginning(forwarding: Forwarding) -> None:
    forwarding.grant("one", "two")
    forwarding.items.begin("d")
    forwarding.feed("x\nhalf of y")
    forwarding.items.begin("d")
    forwarding.feed("x\ny\n")
    assert forwarding.events == [("one", "x"), ("two", "y")]
    forwarding.ended("list", ("x", "y"))


@pytest.mark.parametrize("whole", [("other",), ()])
def test_a_list_that_says_otherwise_is_an_error(forwarding: Forwarding, whole: Any) -> None:
    forwarding.grant("one", "two")
    forwarding.feed("x\n")
    with pytest.raises(EngineOutputError, match=r"item 1 of list; found .* after 'x'"):
        forwarding.ended("list", whole)
    assert forwarding.events == [("one", "x")]


def test_when_the_request_is_over_all_permits_are_given_back_once(forwarding: Forwarding) -> None:
    forwarding.grant("one", "two")
    forwarding.feed("x\n")
    (left,) = forwarding.items.close()
    assert left.node == "two"
    forwarding.feed("y\n")
    assert forwarding.items.close() == []
    assert forwarding.events == [("one", "x")]
