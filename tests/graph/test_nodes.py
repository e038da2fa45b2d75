import pytest

from rag_accel.errors import GraphError
from rag_accel.graph.prompt import PromptPiece, placeholders, split_prompt
from rag_accel.graph.stages import Branch, Function, Generation, Rerank, Retrieval, engines_of


def test_a_generation_reads_what_its_templates_name_each_value_once():
    stage = Generation("a", "Answer {input} using {docs}; {input}!", system="As {role}.")
    assert stage.inputs == ("role", "input", "docs")


def test_a_retrieval_reads_its_query_and_a_rerank_its_query_and_documents():
    assert Retrieval("s", query="passage").inputs == ("passage",)
    assert Rerank("r", documents="docs").inputs == ("input", "docs")


@pytest.mark.parametrize(
    "stage", [Generation("x", "p"), Retrieval("x"), Rerank("x", "docs"), Function("x", len)]
)
def test_the_output_is_by_default_the_stages_own_name(stage):
    assert stage.output == "x"


def test_a_stage_names_the_engines_that_serve_it():
    assert engines_of(Generation("a", "p")) == ("llm",)
    assert engines_of(Retrieval("a")) == ("embedder", "index")
    assert engines_of(Rerank("a", "docs")) == ("reranker",)
    assert engines_of(Function("a", len)) == engines_of(Branch("a", lambda values: "b")) == ()


@pytest.mark.parametrize("name", ["", "a#2", "START", "END"])
def test_names_that_could_be_mistaken_are_refused(name):
    with pytest.raises(GraphError, match="bad stage name"):
        Function(name, len)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: Retrieval("s", top_k=0), "top_k"),
        (lambda: Retrieval("s", top_k="5"), "top_k"),
        (lambda: Rerank("s", "docs", top_n=-1), "top_n"),
        (lambda: Generation("s", "p", max_tokens=0), "max_tokens"),
    ],
)
def test_a_count_below_one_is_refused_with_its_option(make, option):
    with pytest.raises(GraphError, match="out of range") as caught:
        make()
    assert caught.value.where == f"{option} of stage 's'"


def test_a_prompt_is_split_into_text_and_values():
    assert split_prompt('Say {{"a": {docs}}}') == (
        PromptPiece("Say {", None),
        PromptPiece('"a": ', "docs"),
        PromptPiece("}", None),
    )


def test_a_placeholder_may_have_any_name_and_is_never_an_attribute_access():
    assert placeholders("{my docs} {docs.x} {docs[0]}") == ("my docs", "docs.x", "docs[0]")


@pytest.mark.parametrize("prompt", ["{", "}", "{}", "{a!r}", "{a:>3}", 'as JSON: {"a": 1}', None])
def test_a_malformed_prompt_is_an_error_that_says_how_to_write_braces(prompt):
    with pytest.raises(GraphError, match="not a template") as caught:
        split_prompt(prompt)
    assert "{{ and }}" in caught.value.hint
