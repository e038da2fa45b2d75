"""Every attribute of every stage refuses every value that it cannot have, and says what it can."""

import pytest

from rag_accel.errors import GraphError
from rag_accel.graph import RAGraph
from rag_accel.graph.lines import MAX_NESTING
from rag_accel.graph.text import format, parse, references


def keep(value):
    return value


BOUND = {"keep": keep, "text": "bound", "fields": {"pages": (1, 2)}, "texts": ("a", "b")}

#: what one attribute is given, and which attributes may have it
VALUES = {
    "null": {"system", "max_tokens", "top_n", "targets"},
    "true": set(),
    "false": set(),
    "-1": set(),
    "0": set(),
    "5": {"max_tokens", "top_k", "top_n"},
    "1.5": set(),
    "1e400": set(),
    '""': {"prompt", "system", "embedder"},
    '"word"': {"prompt", "system", "embedder"},
    '"{broken"': {"embedder"},
    "[]": {"stop", "targets"},
    '["a"]': {"stop", "targets"},
    "[1]": set(),
    "[null]": set(),
    '[["a"]]': set(),
    '["a", 1]': set(),
    "{}": {"where"},
    '{"a": [1, {"b": null}]}': {"where"},
    "@keep": {"fn", "condition", "reducer"},
    "@text": {"prompt", "system", "embedder"},
    "@texts": {"stop", "targets"},
    "@fields": {"where"},
    "@missing": set(),
    "[" * 5 + "]" * 5: set(),
    "[" * 100 + "]" * 100: set(),
    "[" * 100_000: set(),
    '{"a": ' * 100_000: set(),
}
LINES = {
    "prompt": "a: Generation@llm()  prompt={}",
    "system": 'a: Generation@llm()  prompt="" system={}',
    "stop": 'a: Generation@llm()  prompt="" stop={}',
    "max_tokens": 'a: Generation@llm()  prompt="" max_tokens={}',
    "top_k": "a: Retrieval@index(input)  top_k={}",
    "where": "a: Retrieval@index(input)  top_k=1 where={}",
    "embedder": "a: Retrieval@index(input)  top_k=1 embedder={}",
    "top_n": "a: Rerank@reranker(input, docs)  top_n={}",
    "embedder of Ingestion": "a: Ingestion@index(input)  embedder={}",
    "fn": "a: Function(input)  fn={}",
    "condition": "a: Branch(*)  condition={}",
    "targets": "a: Branch(*)  condition=@keep targets={}",
    "reducer": "reduce docs with {}",
}


@pytest.mark.cross_product(keep=52)
@pytest.mark.parametrize("attribute", LINES)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:16])
def test_an_attribute_has_a_value_of_its_type_or_is_an_error(attribute, value):
    text = "ragraph(input)\n" + LINES[attribute].format(value)
    if attribute.split(" of ")[0] in VALUES[value]:
        parse(text, BOUND)
        return
    with pytest.raises(GraphError) as caught:
        parse(text, BOUND)
    assert caught.value.found
    assert caught.value.valid
    assert len(str(caught.value)) < 400


def test_a_wrong_value_is_shown_with_its_place_and_what_would_be_valid():
    with pytest.raises(GraphError) as caught:
        parse('ragraph()\n\nb: Generation()  prompt="" stop="END"')
    assert caught.value.where == "line 3, stop of stage 'b'"
    assert caught.value.found == "'END'"
    assert caught.value.valid == "a list of texts"


def test_values_nest_as_deep_as_is_said():
    deepest = '{"a": ' + "[" * (MAX_NESTING - 1) + "1" + "]" * (MAX_NESTING - 1) + "}"
    line = "a: Retrieval@index(input)  top_k=1 where="
    graph = parse(f"ragraph(input)\n{line}{deepest}")
    assert parse(format(graph)) == graph
    with pytest.raises(GraphError, match="32 arrays and objects in each other"):
        parse(f'ragraph(input)\n{line}{{"a": {deepest}}}')


def test_a_value_that_nests_deeper_is_bound_by_name():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    graph = RAGraph().add_retrieval("s", where={"a": deep})
    assert "where=@s.where" in format(graph)
    assert references(graph)["s.where"]["a"] is deep
