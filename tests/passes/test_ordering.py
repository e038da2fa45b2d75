"""What the passes let go within a region still holds for the regions that come after it."""

from graph_text import parse_primitives

from rag_accel.graph.primitive_text import format_primitives
from rag_accel.passes.ordering import all_earlier, freed_from, restore_waits

BEFORE = parse_primitives(
    "p-graph given z.function\n"
    "a.decoding: DECODING@llm(input) -> a  after z.function  depth=2\n"
    "b.searching: SEARCHING@index(input) -> b  after a.decoding  depth=1\n"
    "c.searching: SEARCHING@index(b) -> c  after b.searching  depth=0"
)
NOW = parse_primitives(
    "p-graph given z.function\n"
    "a.decoding: DECODING@llm(input) -> a  after z.function  depth=0\n"
    "b.searching: SEARCHING@index(input) -> b  after z.function  depth=1\n"
    "c.searching: SEARCHING@index(b) -> c  after b.searching  depth=0"
)


def test_everything_earlier_counts_also_in_earlier_regions():
    assert all_earlier(BEFORE)["c.searching"] == {"a.decoding", "b.searching", "z.function"}


def test_what_was_freed_is_listed_for_all_that_it_was_earlier_to():
    assert freed_from(BEFORE, NOW) == {
        "b.searching": ("a.decoding",),
        "c.searching": ("a.decoding",),
    }
    assert freed_from(BEFORE, BEFORE) == {}


def test_a_later_region_waits_for_what_was_freed():
    later = parse_primitives(
        "p-graph given c.searching, z.function\n"
        "d.decoding: DECODING@llm(a) -> d  after c.searching, z.function  depth=1\n"
        "e.decoding: DECODING@llm(d) -> e  after d.decoding  depth=0"
    )
    assert format_primitives(restore_waits(later, freed_from(BEFORE, NOW))).split("\n") == [
        "p-graph given c.searching, z.function, a.decoding",
        "d.decoding: DECODING@llm(a) -> d  after c.searching, z.function, a.decoding  depth=1",
        "e.decoding: DECODING@llm(d) -> e  after d.decoding  depth=0",
    ]


def test_a_region_that_waits_for_nothing_freed_is_the_same_object():
    later = parse_primitives("p-graph given a.decoding\nd.function: FUNCTION()  after a.decoding")
    assert restore_waits(later, freed_from(BEFORE, NOW)) is later
