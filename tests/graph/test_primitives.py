import copy
from dataclasses import replace

from graph_text import parse_primitives, primitive_references
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.primitives import Primitive, PrimitiveGraph

TEXT = """p-graph given plan.decoding
search#2.embedding: EMBEDDING@embedder(plan) -> search#2.vector  after plan.decoding  depth=3
search#2.searching: SEARCHING@index(search#2.vector) -> docs  after search#2.embedding  depth=2 top_k=5 where={"lang": "en"}
answer.decoding: DECODING@llm(docs) -> answer  after search#2.searching  depth=1 stop=["\\n"]
answer?.condition: CONDITION(*)  after answer.decoding  depth=0 condition=@again"""  # noqa: E501


def again(values):
    return "search"


def sample():
    return parse_primitives(TEXT, {"again": again})


def test_primitives_come_back_from_their_text():
    graph = sample()
    assert format_primitives(graph) == TEXT
    assert parse_primitives(format_primitives(graph), primitive_references(graph)) == graph


def test_a_primitive_belongs_to_the_stage_whose_run_it_is_part_of():
    search = sample().by_name["search#2.searching"]
    assert (search.instance, search.stage) == ("search#2", "search")
    assert search.kind is PrimitiveKind.SEARCHING


def test_static_attributes_are_read_by_name():
    search = sample().by_name["search#2.searching"]
    assert search.attribute("top_k") == 5
    assert search.attribute("where") == (("lang", "en"),)
    assert search.attribute("nprobe", 8) == 8


def test_an_instance_that_the_name_does_not_say_is_written_out():
    part = Primitive("answer.part.0", "answer", PrimitiveKind.PARTIAL_DECODING, "llm", size=4)
    text = format_primitives(PrimitiveGraph((part,)))
    assert text.endswith('answer.part.0: PARTIAL_DECODING@llm()  depth=0 size=4 instance="answer"')
    assert parse_primitives(text).primitives == (part,)


def test_an_edit_that_changes_nothing_returns_the_old_graph():
    graph = sample()
    assert graph.edit() is graph
    assert graph.edit(put=[graph.primitives[0]], remove=["nothing"]) is graph
    assert graph.edit(put=[replace(graph.primitives[0], depth=9)]) is graph


def test_an_edit_puts_primitives_in_order_and_recomputes_depth():
    graph = sample()
    answer = graph.by_name["answer.decoding"]
    prefill = Primitive(
        "answer.prefilling", answer.instance, PrimitiveKind.PREFILLING, "llm", after=answer.after
    )
    edited = graph.edit(put=[prefill, replace(answer, after=(prefill.name,))])
    assert [(one.name, one.depth) for one in edited.primitives] == [
        ("search#2.embedding", 4),
        ("search#2.searching", 3),
        ("answer.prefilling", 2),
        ("answer.decoding", 1),
        ("answer?.condition", 0),
    ]
    assert edited.external == graph.external
    assert graph == sample()


def test_depth_beyond_a_region_is_kept_by_what_ends_it():
    graph = sample()
    last = graph.primitives[-1]
    deeper = graph.edit(put=[replace(last, depth=4)])
    assert [one.depth for one in deeper.primitives] == [7, 6, 5, 4]


def test_removing_a_primitive_leaves_its_followers_waiting():
    edited = sample().edit(remove=["answer.decoding"])
    assert edited.by_name["answer?.condition"].after == ("answer.decoding",)


def test_a_primitive_graph_survives_copying():
    graph = sample()
    assert copy.deepcopy(graph) == graph


NAMES = st.text(min_size=1, max_size=6)
PRIMITIVES = st.builds(
    Primitive,
    name=NAMES,
    instance=NAMES,
    kind=st.sampled_from(PrimitiveKind),
    engine=st.none() | NAMES,
    inputs=st.lists(NAMES, max_size=2).map(tuple),
    output=st.none() | NAMES,
    after=st.lists(NAMES, max_size=2).map(tuple),
    depth=st.integers(min_value=0, max_value=9),
    size=st.integers(min_value=1, max_value=9),
    attributes=st.fixed_dictionaries(
        {},
        optional={
            "prompt": st.text(max_size=6),
            "stop": st.lists(st.text(max_size=3), max_size=2).map(tuple),
            "fn": st.just(again),
            "where": st.dictionaries(NAMES, st.integers(), max_size=2).map(
                lambda found: tuple(found.items())
            ),
        },
    ).map(lambda found: tuple(found.items())),
)


@given(st.lists(PRIMITIVES, max_size=5).map(tuple), st.lists(NAMES, max_size=2).map(tuple))
def test_every_primitive_graph_comes_back_from_its_text(primitives, external):
    graph = PrimitiveGraph(primitives, external)
    text = format_primitives(graph)
    assert parse_primitives(text, primitive_references(graph)) == graph
