"""Engines over property graphs compute the paths of their prompts as trees, and none twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer
from graph_facts import facts
from hf_callers import GREEDY, own_model
from li_graph_programs import GraphParts, filled, index
from li_knowledge import WordEmbedding
from li_programs import HashEmbedding
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph import PropertyGraphIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from path_kit import QUESTIONS, TURN, RelationPaths, prompt_tokens, reused
from reuse_kit import num_tokens

from llama_index_rag_accel import RagAccelGraphRetriever, RagAccelLLM, accelerate
from rag_accel import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")


def language_model(accelerator: Accelerator | None = None, **options: Any) -> RagAccelLLM:
    given = {"kv_reuse": "dependency", "max_tokens": 6, "pool_bytes": 1 << 24, **options}
    return RagAccelLLM(tiny_chat.model(), tokenizer=tokenizer(), accelerator=accelerator, **given)


def answering(found: Any, llm: Any, accelerator: Accelerator, *, streaming: bool = False) -> Any:
    engine = RetrieverQueryEngine.from_args(found, llm=llm, streaming=streaming)
    return accelerate(engine, accelerator=accelerator)


def behind(question: str) -> str:
    """Return what the usual prompt has behind the retrieved texts."""
    return (
        "---------------------\n"
        "Given the context information and not prior knowledge, answer the query.\n"
        f"Query: {question}\nAnswer: "
    )


class EngineOverPaths(RelationPaths):
    def retriever(self) -> Any:
        raise NotImplementedError

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        llm, found = language_model(**options), self.retriever()
        return [answering(found, llm, accelerator, streaming=way) for way in (False, True)]

    def behind(self, question: str) -> str:
        return behind(question)

    def ask(self, program: Any, question: str) -> str:
        return str(program[0].query(question))

    async def aask(self, program: Any, question: str) -> str:
        return str(await program[0].aquery(question))

    def stream(self, program: Any, question: str) -> str:
        return "".join(program[1].query(question).response_gen)

    async def astream(self, program: Any, question: str) -> str:
        response = await program[1].aquery(question)
        return "".join([piece async for piece in response.async_response_gen()])


class OneVector(HashEmbedding):
    """An embedding that finds the same for every question."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding("E1")

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def graph_index() -> PropertyGraphIndex:
    return index(GraphParts(filled(SimplePropertyGraphStore()), embedding=OneVector()))


class TestPropertyGraphIndex(EngineOverPaths):
    """The query engine that an index makes itself, over its own retrievers."""

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        made, llm = graph_index(), language_model(**options)
        engines = [
            made.as_query_engine(llm=llm, include_text=False, streaming=way)
            for way in (False, True)
        ]
        return [accelerate(engine, accelerator=accelerator) for engine in engines]


def asked_in_turn(accelerator: Accelerator, engine: Any, count: int) -> list[str]:
    """Return the answers of an engine that computes nothing but questions after the first one."""
    answers: list[str] = []
    counts = Counter[str]()
    for at, question in enumerate(QUESTIONS[:count]):
        answers.append(str(engine.query(question)))
        now = prompt_tokens(accelerator)
        of_this = {part: now[part] - counts[part] for part in now}
        counts.update(of_this)
        assert of_this["approximate"] > 0
        if at:
            assert of_this["from_chunks"] == of_this["approximate"]
            assert of_this["computed"] <= num_tokens(behind(question) + TURN)
        else:
            assert of_this["from_chunks"] == 0
    return answers


def test_texts_that_an_index_puts_around_its_paths_are_computed_once() -> None:
    """By default an index shows the text of each path's source, with the paths above it."""
    found: list[list[str]] = []
    for questions in (QUESTIONS[:3], *([one] for one in QUESTIONS[:3])):
        with Accelerator(strict=True) as accelerator:
            made = graph_index().as_query_engine(llm=language_model())
            engine = accelerate(made, accelerator=accelerator)
            if len(questions) == 3:
                found.append(asked_in_turn(accelerator, engine, 3))
            else:
                found.append([str(engine.query(questions[0]))])
    assert found[0] == [answer for (answer,) in found[1:]]


def test_an_index_with_one_model_for_all_answers_as_afresh() -> None:
    """The model is asked for synonyms, too, whose prompt has no paths."""
    answers: list[list[str]] = []
    for questions in (QUESTIONS[:2], QUESTIONS[:1], QUESTIONS[1:2]):
        with Accelerator(strict=True) as accelerator:
            parts = GraphParts(
                filled(SimplePropertyGraphStore()), llm=language_model(), embedding=OneVector()
            )
            engine = accelerate(
                index(parts).as_query_engine(llm=parts.llm), accelerator=accelerator
            )
            answers.append([str(engine.query(question)) for question in questions])
            assert (reused(accelerator) > 0) == (len(questions) == 2)
    assert answers[0] == answers[1] + answers[2]


class TestGraphRetriever(EngineOverPaths):
    def retriever(self) -> Any:
        return RagAccelGraphRetriever(facts(), WordEmbedding(), link="words", similarity_top_k=50)


def test_an_answer_says_how_its_paths_were_computed(accelerator: Accelerator) -> None:
    found = RagAccelGraphRetriever(facts(), WordEmbedding(), link="words", similarity_top_k=50)
    nodes = found.retrieve(QUESTIONS[0])
    paths = "\n".join(node.text for node in nodes)
    llm = language_model(accelerator)
    first, second = (
        llm.complete(f"{paths}\n\n{question}", documents=nodes) for question in QUESTIONS[:2]
    )
    report = first.additional_kwargs["kv_reuse"]
    tree = report["tree_tokens"]
    assert tree > 0
    assert report == {
        "mode": "dependency",
        "attention": "dependency",
        "reused_tokens": 0,
        "reused_tree_tokens": 0,
        "tree_tokens": tree,
        "document_tokens": 0,
        "exact": False,
    }
    assert second.additional_kwargs["kv_reuse"] == {
        **report,
        "reused_tokens": tree,
        "reused_tree_tokens": tree,
    }
    pieces = list(llm.stream_complete(f"{paths}\n\n{QUESTIONS[2]}", documents=nodes))
    assert pieces[-1].additional_kwargs["kv_reuse"]["reused_tokens"] == tree


def over_facts(llm: Any, accelerator: Accelerator) -> Any:
    return answering(TestGraphRetriever().retriever(), llm, accelerator)


def over_index(llm: Any, accelerator: Accelerator) -> Any:
    engine = graph_index().as_query_engine(llm=llm, include_text=False)
    return accelerate(engine, accelerator=accelerator)


@pytest.mark.parametrize("over", [over_facts, over_index])
def test_a_model_of_the_programs_own_computes_no_path_twice(over: Any) -> None:
    huggingface = pytest.importorskip("llama_index.llms.huggingface")
    llm = huggingface.HuggingFaceLLM(
        model=own_model(),
        tokenizer=tokenizer(),
        max_new_tokens=4,
        generate_kwargs=GREEDY,
        context_window=2048,
    )
    answers: list[str] = []
    with Accelerator(kv_reuse="dependency", strict=True) as accelerator:
        engine = over(llm, accelerator)
        answers.append(str(engine.query(QUESTIONS[0])))
        tree = prompt_tokens(accelerator)["approximate"]
        assert tree > 0
        assert reused(accelerator) == 0
        answers += [str(engine.query(question)) for question in QUESTIONS[1:3]]
        assert reused(accelerator) == 2 * tree
    for question, answer in zip(QUESTIONS, answers, strict=False):
        with Accelerator(kv_reuse="dependency", strict=True) as afresh:
            assert str(over(llm, afresh).query(question)) == answer
