"""Programs of neo4j-graphrag over a real Neo4j give what they give plainly."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from neo4j_graphrag.generation.types import RagResultModel
from neo4j_graphrag.retrievers import VectorRetriever
from neo4j_graphrag.types import RetrieverResult
from ng_kit import ARMS, KINDS, TEXTS, GraphPrograms, running, side_by_side, steps

from neo4j_graphrag_rag_accel import accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.neo4j

#: Questions, the first of which Lucene takes, and what it may refuse, in which case it does so
#: whoever asks.
QUESTIONS = ["When did the bridge open?", *TEXTS, 'x") OR *:*', "ends in AND", "~"]


@pytest.mark.cross_product(keep=5)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_retriever_finds_the_same(
    kind: str, arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    plain = programs.retriever(kind)
    expected = side_by_side(lambda text: plain.search(query_text=text), QUESTIONS)
    asked = list[str]()

    def ask(text: str) -> Any:
        asked.append(text)
        return fast.search(query_text=text)

    with running(arm, plain, accelerator) as fast:
        found = side_by_side(ask, QUESTIONS)
    assert found == expected
    assert isinstance(found[0], RetrieverResult)
    assert found[0].items
    assert steps(accelerator)[type(plain).__name__] == len(asked)


@pytest.mark.cross_product(keep=5)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_answers_the_same(
    kind: str, arm: str, programs: GraphPrograms, accelerator: Accelerator
) -> None:
    def ask(rag: Any) -> list[Any]:
        return side_by_side(lambda text: rag.search(text, return_context=True), list(TEXTS))

    plain = programs.rag(kind)
    expected = ask(plain)
    with running(arm, plain, accelerator) as fast:
        found = ask(fast)
    assert found == expected
    assert isinstance(found[0], RagResultModel)
    assert steps(accelerator)["ScriptedModel"] >= len(TEXTS)


def test_a_chat_of_several_turns_answers_the_same(
    programs: GraphPrograms, accelerator: Accelerator
) -> None:
    history = [{"role": "user", "content": "a bridge?"}, {"role": "assistant", "content": "yes"}]
    plain = programs.rag("vector")
    fast = accelerate(plain, accelerator=accelerator)
    found, expected = (
        rag.search("When?", history, examples="one", retriever_config={"top_k": 2})
        for rag in (fast, plain)
    )
    assert found == expected
    assert steps(accelerator)["ScriptedModel"] == 2  # the summary of the history, and the answer


class Arriving(VectorRetriever):
    """A retriever that tells when sixteen calls of it have begun."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()
        self.begun = 0
        self.all_here = threading.Event()

    def get_search_results(self, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            self.begun += 1
            if self.begun == 16:
                self.all_here.set()
        return super().get_search_results(*args, **kwargs)


def test_queries_of_sixteen_threads_share_steps_of_the_model(
    neo4j_driver: Any, local_embedder: Any, accelerator: Accelerator
) -> None:
    neo4j_driver.execute_query(
        "UNWIND $rows AS row CREATE (:Fact {text: row[0], v: row[1]})",
        rows=[[text, local_embedder.embed_query(text)] for text in TEXTS],
    )
    neo4j_driver.execute_query(
        "CREATE VECTOR INDEX facts FOR (n:Fact) ON n.v OPTIONS {indexConfig: "
        "{`vector.dimensions`: 384, `vector.similarity_function`: 'cosine'}}"
    )
    neo4j_driver.execute_query("CALL db.awaitIndexes(60)")
    plain = Arriving(neo4j_driver, "facts", local_embedder, ["text"])
    questions = [f"When did the bridge number {number} open?" for number in range(16)]
    expected = [VectorRetriever.get_search_results(plain, query_text=text) for text in questions]
    plain.begun = 0

    def hold(*_: Any) -> None:
        plain.all_here.wait(30)  # the first step lasts until every caller is there

    hook = local_embedder.model.register_forward_pre_hook(hold)
    try:
        fast = accelerate(plain, accelerator=accelerator)
        found = side_by_side(lambda text: fast.search(query_text=text), questions)
    finally:
        hook.remove()
    (own,) = (
        engine
        for name, engine in accelerator.metrics.snapshot()["engines"].items()
        if name.startswith("embedding#")
    )
    assert (own["items"], plain.all_here.is_set()) == (16, True)
    assert own["steps"] < 16
    for one, other in zip(found, expected, strict=True):
        assert [item.content for item in one.items] == [
            str(record["node"]) for record in other.records
        ]
        scores = [item.metadata["score"] for item in one.items]
        assert scores == pytest.approx([record["score"] for record in other.records], abs=1e-5)
        assert one.metadata["query_vector"] == pytest.approx(
            other.metadata["query_vector"], abs=1e-5
        )
