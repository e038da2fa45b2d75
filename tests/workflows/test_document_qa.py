"""Documents are uploaded, searched and made into one answer, in each way of synthesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from workflow_harness import LLMS, PATIENCE_S, Library, Script, longest_first, run

from rag_accel import Accelerator, ConfigError
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.testing import FakeEngine, vector_of
from rag_accel.testing.compute import DIM
from rag_accel.workflows import (
    Synthesis,
    SynthesisMode,
    Upload,
    advanced_document_qa,
    ingest_into,
    naive_document_qa,
)

anyhow = pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS.keys())
LLM = Callable[[Script], Any]


def synthesis(mode: SynthesisMode) -> Synthesis:
    return Synthesis(
        mode,
        stuff_prompt="all {docs}? {input}",
        passage_prompt="{{{passage}}}? {input}",
        combine_prompt="both {partials}? {input}",
        refine_prompt="{answer} + {passage}? {input}",
    )


SCRIPT = {
    "all [1] one\n\n[2] two? why": "stuffed",
    "all [1] one? why": "alone",
    "all ? why": "nothing",
    "{[1] one}? why": "1",
    "{[1] two}? why": "2",
    "{}? why": "none",
    "both 1\n\n2? why": "combined",
    "1 + [1] two? why": "refined",
}


@anyhow
@pytest.mark.parametrize(
    ("mode", "found", "answer"),
    [
        ("stuff", ["one", "two"], "stuffed"),
        ("tree", ["one", "two"], "combined"),
        ("refine", ["one", "two"], "refined"),
        ("stuff", ["one"], "alone"),
        ("tree", ["one"], "alone"),
        ("refine", ["one"], "1"),
        ("stuff", [], "nothing"),
        ("tree", [], "nothing"),
        ("refine", [], "none"),
    ],
)
def test_an_answer_is_made_of_however_many_passages(
    llm: LLM, mode: SynthesisMode, found: list[str], answer: str
) -> None:
    graph = naive_document_qa(synthesis=synthesis(mode), top_k=3)
    engines = {"llm": llm(Script(SCRIPT)), "index": Library({"why": found})}
    assert run(graph, {"input": "why"}, **engines) == answer


def test_the_leaves_of_a_tree_run_side_by_side() -> None:
    engine = FakeEngine()
    graph = naive_document_qa(synthesis="tree", top_k=4)
    library = Library({"why": ["a", "b", "c", "d"]})
    answer = run(graph, {"input": "why"}, llm=engine, index=library)
    places = [answer.index(f"[1] {name}") for name in "abcd"]
    assert places == sorted(places)
    assert max(len(batch) for batch in engine.served) > 1


def test_another_synthesis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stuff \| tree \| refine"):
        naive_document_qa(synthesis="guess")  # pyright: ignore[reportArgumentType]


def embed(texts: Sequence[str]) -> Any:
    return np.stack([vector_of(text) for text in texts])


def by_function(index: DocumentIndex) -> Any:
    """Return code of the user's that ingests."""
    return ingest_into(index, embed)


def by_engines(index: DocumentIndex) -> Any:
    """Let the engines of the graph ingest."""
    return True


either_way = pytest.mark.parametrize("ingest", [by_function, by_engines])
Ingesting = Callable[[DocumentIndex], Any]


@anyhow
@either_way
def test_what_a_request_uploads_is_found_by_it(llm: LLM, ingest: Ingesting) -> None:
    index = DocumentIndex(IndexSpec(DIM))
    graph = naive_document_qa(
        ingest(index),
        upload=Upload(chunk_words=2, overlap_words=0),
        top_k=1,
        synthesis=Synthesis("stuff", stuff_prompt="{docs}"),
    )
    script = Script({"[1] the ferry": "because"})
    engines = {"llm": llm(script), "index": index, "embedder": FakeEngine()}
    uploaded = [Document("guide", "a bridge the ferry a car")]
    assert run(graph, {"input": "the ferry", "documents": uploaded}, **engines) == "because"
    assert len(index) == 3
    assert [one.text for one in index.get(["guide#2"])] == ["the ferry"]


@either_way
@pytest.mark.parametrize("embedder", [embed, FakeEngine])
def test_uploading_the_same_again_replaces_it(ingest: Ingesting, embedder: Any) -> None:
    index = DocumentIndex(IndexSpec(DIM))
    graph = naive_document_qa(ingest(index), synthesis="stuff")
    given = embedder() if embedder is FakeEngine else embedder
    with Accelerator(llm=str.upper, index=index, embedder=given) as accelerator:
        for _ in range(3):
            handle = accelerator.submit(graph, input="why", documents=["one", "two", ""])
            handle.result(PATIENCE_S)
    assert len(index) == 2


@either_way
@pytest.mark.parametrize("embedder", [embed, FakeEngine])
def test_nothing_uploaded_is_no_error(ingest: Ingesting, embedder: Any) -> None:
    index = DocumentIndex(IndexSpec(DIM))
    graph = naive_document_qa(ingest(index), synthesis=Synthesis("stuff", stuff_prompt="<{docs}>"))
    given = embedder() if embedder is FakeEngine else embedder
    with Accelerator(llm=str.upper, index=index, embedder=given) as accelerator:
        assert accelerator.run(graph, input="why", documents=[]) == "<>"


def test_chunks_of_several_requests_are_embedded_in_shared_steps() -> None:
    index, embedder = DocumentIndex(IndexSpec(DIM)), FakeEngine()
    graph = naive_document_qa(True, synthesis="stuff")
    with Accelerator(llm=str.upper, index=index, embedder=embedder) as accelerator:
        handles = [
            accelerator.submit(graph, input="why", documents=[f"text {number}"])
            for number in range(20)
        ]
        for handle in handles:
            handle.result(PATIENCE_S)
    assert len(index) == 20
    assert max(len(batch) for batch in embedder.served) > 1


def test_ingesting_may_be_async_and_its_error_is_the_requests() -> None:
    error = OSError("disk full")

    async def ingest(chunks: Sequence[Document]) -> None:
        raise error

    with (
        Accelerator(llm=str.upper, index=Library({})) as accelerator,
        pytest.raises(OSError, match="disk full") as caught,
    ):
        accelerator.run(naive_document_qa(ingest), input="why", documents=["one"])
    assert caught.value is error


ADVANCED: dict[str, Any] = {"expand_prompt": "{count} for {input}", "num_queries": 2, "top_n": 2}


@anyhow
def test_advanced_qa_searches_each_query_and_reranks_what_all_find(llm: LLM) -> None:
    library = Library({"who": ["a", "ccc"], "when": ["bb"]})
    script = Script({"2 for why": "- who\n- when\n- where", "[1] ccc\n\n[2] bb": "because"})
    graph = advanced_document_qa(**ADVANCED, synthesis=Synthesis("stuff", stuff_prompt="{docs}"))
    engines = {"llm": llm(script), "index": library, "reranker": longest_first}
    assert run(graph, {"input": "why"}, **engines) == "because"
    assert sorted(library.queries) == ["when", "who"]


@pytest.mark.parametrize(
    ("expansion", "queries"),
    [
        ("", ["why", "why"]),
        ("{}", ["why", "why"]),
        ("who", ["who", "why"]),
        ("a\nb", ["a", "b"]),
        ('Sure:\n```json\n["a", "b", "c"]\n```', ["a", "b"]),
    ],
)
def test_the_question_stands_in_for_queries_that_are_missing(
    expansion: str, queries: list[str]
) -> None:
    library = Library({})
    script = Script({"2 for why": expansion, "": "because"})
    graph = advanced_document_qa(**ADVANCED, synthesis=Synthesis("stuff", stuff_prompt="{docs}"))
    engines = {"llm": script, "index": library, "reranker": longest_first}
    assert run(graph, {"input": "why"}, **engines) == "because"
    assert sorted(library.queries) == queries


@pytest.mark.parametrize(("mode", "answer"), [("tree", "combined"), ("refine", "refined")])
def test_advanced_qa_uploads_while_it_expands_and_synthesises(
    mode: SynthesisMode, answer: str
) -> None:
    stored: list[str] = []

    def ingest(chunks: Sequence[Document]) -> None:
        stored.extend(chunk.text for chunk in chunks)

    def search(query: str, k: int) -> list[str]:
        assert stored == ["one", "two"]
        return stored[:k]

    graph = advanced_document_qa(ingest, **ADVANCED, synthesis=synthesis(mode), expander="small")
    engines = {
        "llm": Script(SCRIPT),
        "index": search,
        "reranker": lambda query, texts: [-place for place in range(len(texts))],
        "engines": {"small": Script({"2 for why": "who"})},
    }
    assert run(graph, {"input": "why", "documents": ["one", "two"]}, **engines) == answer


@pytest.mark.parametrize("bound", ["num_queries", "top_n"])
def test_bounds_are_checked(bound: str) -> None:
    bad: dict[str, Any] = {bound: 0}
    with pytest.raises(ConfigError, match=bound):
        advanced_document_qa(**bad)
