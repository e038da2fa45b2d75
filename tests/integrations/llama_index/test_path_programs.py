"""Engines over property graphs compute the paths of their prompts as trees, and none twice."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer
from graph_facts import TRIPLES, facts
from hf_callers import GREEDY, own_model
from li_graph_programs import GraphParts, filled, index, retriever
from li_knowledge import WordEmbedding
from li_programs import HashEmbedding
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph import PropertyGraphIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from path_kit import QUESTIONS, RelationPaths, prompt_tokens, reused

from llama_index_rag_accel import RagAccelGraphRetriever, RagAccelLLM, accelerate, explain
from rag_accel import Accelerator

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")


def language_model(accelerator: Accelerator | None = None, **options: Any) -> RagAccelLLM:
    given = {"kv_reuse": "dependency", "max_tokens": 6, "pool_bytes": 1 << 24, **options}
    return RagAccelLLM(tiny_chat.model(), tokenizer=tokenizer(), accelerator=accelerator, **given)


def answering(found: Any, llm: Any, accelerator: Accelerator, *, streaming: bool = False) -> Any:
    engine = RetrieverQueryEngine.from_args(found, llm=llm, streaming=streaming)
    return accelerate(engine, accelerator=accelerator)


class EngineOverPaths(RelationPaths):
    def retriever(self) -> Any:
        raise NotImplementedError

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        llm, found = language_model(**options), self.retriever()
        return [answering(found, llm, accelerator, streaming=way) for way in (False, True)]

    def behind(self, question: str) -> str:
        return (
            "---------------------\n"
            "Given the context information and not prior knowledge, answer the query.\n"
            f"Query: {question}\nAnswer: "
        )

    def ask(self, program: Any, question: str) -> str:
        return str(program[0].query(question))

    async def aask(self, program: Any, question: str) -> str:
        return str(await program[0].aquery(question))

    def stream(self, program: Any, question: str) -> str:
        return "".join(program[1].query(question).response_gen)

    async def astream(self, program: Any, question: str) -> str:
        response = await program[1].aquery(question)
        return "".join([piece async for piece in response.async_response_gen()])


class TestPropertyGraph(EngineOverPaths):
    def retriever(self) -> Any:
        return retriever(GraphParts(filled(SimplePropertyGraphStore())), "synonyms")


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
        "tree_tokens": tree,
        "exact": False,
    }
    assert second.additional_kwargs["kv_reuse"] == {**report, "reused_tokens": tree}
    pieces = list(llm.stream_complete(f"{paths}\n\n{QUESTIONS[2]}", documents=nodes))
    assert pieces[-1].additional_kwargs["kv_reuse"]["reused_tokens"] == tree


def test_a_prompt_without_paths_says_that_it_is_exact(accelerator: Accelerator) -> None:
    report = language_model(accelerator).complete("Who is it?").additional_kwargs["kv_reuse"]
    assert report["attention"] == "causal"
    assert report["exact"]


def test_an_explanation_says_what_paths_are_computed_as(accelerator: Accelerator) -> None:
    engine = answering(TestGraphRetriever().retriever(), language_model(), accelerator)
    assert "kv_reuse is dependency" in explain(engine)


def test_paths_inside_longer_lines_stay_flat(accelerator: Accelerator) -> None:
    nodes = [TextNode(text=" -> ".join(fact)) for fact in TRIPLES]
    text = "\n".join(f"They say that {node.text}, or do they?" for node in nodes)
    for question in QUESTIONS[:2]:
        found = language_model(accelerator).complete(f"{text}\n\n{question}", documents=nodes)
        assert found.additional_kwargs["kv_reuse"]["exact"]


def test_a_model_of_the_programs_own_computes_no_path_twice() -> None:
    huggingface = pytest.importorskip("llama_index.llms.huggingface")
    found = TestGraphRetriever()
    llm = huggingface.HuggingFaceLLM(
        model=own_model(),
        tokenizer=tokenizer(),
        max_new_tokens=4,
        generate_kwargs=GREEDY,
        context_window=2048,
    )
    answers: list[str] = []
    with Accelerator(kv_reuse="dependency", strict=True) as accelerator:
        engine = answering(found.retriever(), llm, accelerator)
        answers.append(str(engine.query(QUESTIONS[0])))
        tree = prompt_tokens(accelerator)["approximate"]
        assert tree > 0
        assert reused(accelerator) == 0
        answers += [str(engine.query(question)) for question in QUESTIONS[1:3]]
        assert reused(accelerator) == 2 * tree
    for question, answer in zip(QUESTIONS, answers, strict=False):
        with Accelerator(kv_reuse="dependency", strict=True) as afresh:
            assert str(answering(found.retriever(), llm, afresh).query(question)) == answer
