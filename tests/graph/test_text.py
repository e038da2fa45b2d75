import operator

from graph_text import parse, references
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.graph import END, START, FrozenRAGraph, RAGraph
from rag_accel.graph.lines import MAX_NESTING
from rag_accel.graph.stages import (
    Branch,
    Function,
    Generation,
    GraphRetrieval,
    Rerank,
    Retrieval,
)
from rag_accel.graph.text import format


def keep_first(values):
    return values


def is_done(values):
    return END


def test_the_text_has_one_stage_per_line():
    g = RAGraph()
    g.add_retrieval("search", top_k=5, where={"lang": "en"}, output="docs")
    g.add_function("clean", keep_first, inputs=["docs"])
    g.add_generation("answer", 'Use "{clean}": {input}', stop=["\n"], max_tokens=64)
    g.add_edge(START, "search").add_edge("search", "clean").add_edge("clean", "answer")
    g.add_edge("answer", is_done, targets=["search", END])
    g.add_reducer("docs", operator.add)
    assert format(g).split("\n") == [
        "ragraph(input)",
        'search: Retrieval@index(input) -> docs  after START  top_k=5 where={"lang": "en"}',
        "clean: Function(docs) -> clean  after search  fn=@keep_first",
        "answer: Generation@llm(clean, input) -> answer  after clean  "
        r'prompt="Use \"{clean}\": {input}" stop=["\n"] max_tokens=64',
        'answer?: Branch(*)  after answer  condition=@is_done targets=["search", "END"]',
        "reduce docs with @add",
    ]


def test_what_ends_the_graph_has_a_line_of_its_own():
    g = RAGraph().add_function("a", keep_first).add_edge(START, "a").add_edge("a", END)
    assert format(g).split("\n")[-1] == "END: after a"


def test_different_callables_of_one_name_are_told_apart():
    def named():
        def fn(values):
            return values

        return fn

    g = RAGraph().add_function("a", named()).add_function("b", named())
    g.add_function("c", lambda values: values)
    assert list(references(g)) == ["fn", "fn_2", "c.fn"]
    assert parse(format(g), references(g)) == g.freeze()


def test_values_that_json_cannot_say_are_bound_by_name():
    g = RAGraph().add_retrieval("s", where={"pages": (1, 2), "score": float("inf")})
    assert "where=@s.where" in format(g)
    assert parse(format(g), references(g)) == g.freeze()


def test_an_invalid_graph_has_a_text_too():
    g = RAGraph().add_function("a", keep_first).add_function("a", is_done).add_edge("ghost", "gone")
    g.add_edge("ghost", "a")
    assert parse(format(g), references(g)) == g.freeze()


def test_blank_lines_and_comments_are_skipped():
    graph = parse("# plan\nragraph(input)\n\n  # search\n  s: Retrieval@index(input)  top_k=1\n")
    assert graph.stages == (Retrieval("s", top_k=1),)


def test_what_the_text_leaves_out_is_the_default():
    text = 'ragraph()\na: Generation()  prompt=""\nb: Rerank(x, y)'
    assert parse(text).stages == (Generation("a", ""), Rerank("b", "y", "x"))


NAMES = st.text(min_size=1, max_size=8).filter(
    lambda name: "#" not in name and name not in ("START", "END")
)
VALUES = st.text(min_size=1, max_size=8)
FUNCTIONS = st.sampled_from([keep_first, is_done, len, lambda values: values, operator.add])
COUNTS = st.integers(min_value=1, max_value=99)
TEMPLATES = st.lists(
    st.one_of(
        st.text(max_size=9).map(lambda text: text.replace("{", "{{").replace("}", "}}")),
        st.sampled_from(["{input}", "{docs}", "{my docs}"]),
    ),
    max_size=4,
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
WHERE = st.dictionaries(st.text(max_size=5), JSON | st.just((1, 2)), max_size=2).map(
    lambda found: tuple(found.items())
)
STAGES = st.one_of(
    st.builds(
        Generation,
        name=NAMES,
        prompt=TEMPLATES,
        output=VALUES,
        system=st.none() | TEMPLATES,
        stop=st.lists(st.text(max_size=4), max_size=2).map(tuple),
        max_tokens=st.none() | COUNTS,
        engine=VALUES,
    ),
    st.builds(
        Retrieval,
        name=NAMES,
        query=VALUES,
        top_k=COUNTS,
        where=WHERE,
        output=VALUES,
        engine=VALUES,
        embedder=VALUES,
    ),
    st.builds(
        Rerank, name=NAMES, documents=VALUES, query=VALUES, top_n=st.none() | COUNTS, output=VALUES
    ),
    st.builds(
        GraphRetrieval,
        name=NAMES,
        query=VALUES,
        top_k=COUNTS,
        hops=st.integers(0, 3),
        seeds=COUNTS,
        link=st.sampled_from(["vector", "words"]),
        keywords=st.just("") | VALUES,
        relations=st.none() | st.lists(st.text(max_size=4), max_size=2).map(tuple),
        direction=st.sampled_from(["out", "in", "both"]),
        output=VALUES,
        engine=VALUES,
        embedder=VALUES,
    ),
    st.builds(Function, name=NAMES, fn=FUNCTIONS, inputs=st.lists(VALUES, max_size=3).map(tuple)),
    st.builds(Function, name=NAMES, fn=FUNCTIONS, reads_all=st.just(True), output=VALUES),
    st.builds(
        Branch,
        name=NAMES,
        condition=FUNCTIONS,
        targets=st.none() | st.lists(NAMES, max_size=2).map(tuple),
    ),
)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_that_nests_deeper_than_is_said_is_bound_by_name():
    g = RAGraph().add_retrieval("s", where={"a": nested(MAX_NESTING - 1)})
    assert references(g) == {}
    assert parse(format(g)) == g.freeze()
    for levels in (MAX_NESTING, 100_000):
        deep = nested(levels)
        g = RAGraph().add_retrieval("s", where={"a": deep})
        assert "where=@s.where" in format(g)
        assert references(g)["s.where"]["a"] is deep


@st.composite
def graphs(draw):
    stages = tuple(draw(st.lists(STAGES, max_size=6)))
    names = st.sampled_from([stage.name for stage in stages] or ["nobody"])
    links = draw(st.lists(st.tuples(names | st.just(START), names | st.just(END)), max_size=9))
    reducers = draw(st.dictionaries(VALUES, FUNCTIONS, max_size=2))
    inputs = draw(st.lists(VALUES, max_size=2, unique=True))
    return FrozenRAGraph(stages, tuple(links), tuple(inputs), tuple(reducers.items()))


@given(graphs())
def test_every_graph_comes_back_from_its_text(graph):
    text = format(graph)
    assert parse(text, references(graph)) == graph
    assert format(parse(text, references(graph))) == text
