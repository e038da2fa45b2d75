"""Chains over relation paths compute them as trees, and none twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

import tiny_chat
from fake_runner import tokenizer
from graph_facts import facts
from hf_callers import own_model, own_pipeline
from idle_accelerators import soon_idle
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_huggingface import HuggingFacePipeline
from lc_graphs import WordEmbeddings
from path_kit import QUESTIONS, RelationPaths, prompt_tokens, reused
from tiny_models import SIZES, WINDOW
from transformers import MistralConfig, MistralForCausalLM

from langchain_rag_accel import ChatRagAccel, RagAccelGraphRetriever, accelerate, explain
from rag_accel import Accelerator, plan_of
from rag_accel.engines import LocalLLM

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")

PATHS = (
    "Ada Lovelace -> wrote to -> Charles Babbage",
    "Ada Lovelace -> admired -> Mary Somerville",
    "Ada Lovelace -> wrote to -> Charles Babbage -> designed -> the Analytical Engine",
    "Mary Somerville -> taught -> Ada Lovelace",
)
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Answer by these."), ("user", "Facts:\n{context}\n\nQuestion: {question}")]
)


class Lines(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(path) for path in PATHS]


def numbered(documents: list[Document]) -> str:
    return "\n".join(f"[{at}] {one.page_content}" for at, one in enumerate(documents, 1))


def chain(found: Any, **options: Any) -> Any:
    given = {"kv_reuse": "dependency", "max_tokens": 6, "pool_bytes": 1 << 24, **options}
    model = ChatRagAccel(model=tiny_chat.model(), tokenizer=tokenizer(), **given)
    return {"context": found | numbered, "question": RunnablePassthrough()} | PROMPT | model


class ChainOverPaths(RelationPaths):
    def retriever(self) -> Any:
        raise NotImplementedError

    def program(self, accelerator: Accelerator, **options: Any) -> Any:
        return accelerate(chain(self.retriever(), **options), accelerator=accelerator)

    def behind(self, question: str) -> str:
        return f"\nQuestion: {question}"

    def ask(self, program: Any, question: str) -> str:
        return program.invoke(question).content

    async def aask(self, program: Any, question: str) -> str:
        return (await program.ainvoke(question)).content

    def stream(self, program: Any, question: str) -> str:
        return "".join(piece.content for piece in program.stream(question))

    async def astream(self, program: Any, question: str) -> str:
        return "".join([piece.content async for piece in program.astream(question)])


class TestDocuments(ChainOverPaths):
    def retriever(self) -> Any:
        return Lines()


class TestGraphRetriever(ChainOverPaths):
    def retriever(self) -> Any:
        return RagAccelGraphRetriever(graph=facts(), embedding=WordEmbeddings(), link="words", k=50)


@pytest.mark.parametrize("is_plan", [False, True])
def test_an_answer_says_how_its_paths_were_computed(is_plan: bool) -> None:
    with Accelerator(strict=True) as accelerator:
        program = accelerate(chain(Lines()), accelerator=accelerator)
        run = partial(accelerator.run, plan_of(chain(Lines()))) if is_plan else program.invoke
        first, second = (run(input=question) for question in QUESTIONS[:2])
    report = first.response_metadata["kv_reuse"]
    tree = report["tree_tokens"]
    assert tree > 0
    assert report["attention"] == "dependency"
    assert report["reused_tokens"] == 0
    assert not report["exact"]
    again = {"reused_tokens": tree, "reused_tree_tokens": tree}
    assert second.response_metadata["kv_reuse"] == {**report, **again}
    assert second.usage_metadata["input_token_details"]["cache_read"] > tree


class Texts(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        texts = ("Ada Lovelace was born in London.", "Babbage designed an engine there, too.")
        return [Document(text) for text in texts]


def test_a_chain_over_two_retrievers_reuses_texts_and_paths() -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer by these."), ("user", "{texts}\n\nFacts:\n{facts}\n\n{question}")]
    )
    named = LocalLLM(tiny_chat.model(), tokenizer(), kv_reuse="full+dependency", reuse_always=True)
    model = ChatRagAccel(model=named, max_tokens=6)
    inputs = {"texts": Texts() | numbered, "facts": Lines() | numbered}
    both: Any = {**inputs, "question": RunnablePassthrough()} | prompt | model
    with Accelerator(strict=True) as accelerator:
        program = accelerate(both, accelerator=accelerator)
        new, seen = (program.invoke(one).response_metadata["kv_reuse"] for one in QUESTIONS[:2])
    tree, texts = new["tree_tokens"], new["approximate_tokens"] - new["tree_tokens"]
    assert tree > 0
    assert texts > 0
    assert (new["reused_tokens"], new["document_tokens"]) == (0, 0)
    assert (seen["reused_tokens"], seen["reused_tree_tokens"]) == (tree + texts, tree)


# Models that a program has already


@pytest.fixture(scope="module")
def held() -> Any:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model(), return_full_text=False))


@pytest.fixture
def on_paths() -> Iterator[Accelerator]:
    with Accelerator(kv_reuse="dependency", strict=True) as made:
        yield made
        assert soon_idle(made)
        assert made.bypassed == {}


def own_chain(model: Any) -> Any:
    """Return a chain over a model of the program's own."""
    return {"context": Lines() | numbered, "question": RunnablePassthrough()} | PROMPT | model


def test_a_model_of_the_programs_own_computes_no_path_twice(
    held: Any, on_paths: Accelerator
) -> None:
    fast = accelerate(own_chain(held), accelerator=on_paths)
    assert "kv_reuse is dependency, approximate" in explain(fast)
    answers = [fast.invoke(question) for question in QUESTIONS[:1]]
    first = prompt_tokens(on_paths)
    assert first["from_chunks"] == 0
    assert first["approximate"] > 0
    answers += [fast.invoke(question) for question in QUESTIONS[1:3]]
    assert reused(on_paths) == 2 * first["approximate"]
    for question, answer in zip(QUESTIONS, answers, strict=False):
        with Accelerator(kv_reuse="dependency", strict=True) as afresh:
            assert accelerate(own_chain(held), accelerator=afresh).invoke(question) == answer


def test_a_model_with_a_window_runs_plainly_and_says_why(on_paths: Accelerator) -> None:
    sizes = {**SIZES, "vocab_size": len(tokenizer())}
    windowed = MistralForCausalLM(MistralConfig(**sizes, sliding_window=WINDOW)).eval()
    model = HuggingFacePipeline(pipeline=own_pipeline(windowed, return_full_text=False))
    plain = own_chain(model).invoke(QUESTIONS[0])
    fast = accelerate(own_chain(model), accelerator=on_paths)
    assert fast.invoke(QUESTIONS[0]) == plain
    assert (
        "plain: kv_reuse is dependency, and a layer of it sees a window of positions only"
        in explain(fast)
    )
    assert reused(on_paths) == 0
    with Accelerator(strict=True) as exact:
        other = accelerate(own_chain(model), accelerator=exact)
        assert other.invoke(QUESTIONS[0]) == plain
        assert "owned engine (exact)" in explain(other)
