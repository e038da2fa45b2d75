"""A reranker of LlamaIndex's does all it does itself, but its pairs share batches with others'."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from li_programs import recording, run_in_loop
from llama_index.core.postprocessor import SentenceTransformerRerank as CoresRerank
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.sbert_rerank import SentenceTransformerRerank
from tiny_cross_encoder import WORDS, save_cross_encoder

from llama_index_rag_accel import accelerate, activate, coverage, explain
from llama_index_rag_accel.leaf_table import PROXIED
from rag_accel import Accelerator

pytest.importorskip("llama_index.postprocessor.sbert_rerank")
pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the folder of a cross-encoder with one score a pair."""
    return save_cross_encoder(tmp_path_factory.mktemp("models") / "one")


@pytest.fixture(scope="module")
def reranker(folder: str) -> SentenceTransformerRerank:
    """Give a reranker over it; tests do not change it."""
    return SentenceTransformerRerank(folder, "cpu", top_n=3, keep_retrieval_score=True)


def passages(number: int, count: int = 12) -> list[NodeWithScore]:
    """Return some new nodes of different lengths, with scores of a retriever."""
    chance = np.random.default_rng(number)
    sizes = chance.integers(1, 40, size=count)
    return [
        NodeWithScore(
            node=TextNode(id_=f"{number}-{at}", text=" ".join(chance.choice(WORDS, size))),
            score=0.5,
        )
        for at, size in enumerate(sizes)
    ]


Shown = tuple[list[tuple[str, Any]], list[float | None]]


def shown(nodes: list[NodeWithScore]) -> Shown:
    """Return ids and metadata of nodes, and their scores."""
    return [(one.node_id, one.node.metadata) for one in nodes], [one.score for one in nodes]


def rerank(reranker: Any, number: int) -> tuple[Shown, Shown]:
    """Return what is chosen, and what has become of the nodes given."""
    given = passages(number)
    chosen = reranker.postprocess_nodes(given, QueryBundle(f"word{number} word2"))
    return shown(chosen), shown(given)


async def arerank(reranker: Any, number: int) -> tuple[Shown, Shown]:
    """Do as ``rerank`` without blocking the loop."""
    given = passages(number)
    chosen = await reranker.apostprocess_nodes(given, QueryBundle(f"word{number} word2"))
    return shown(chosen), shown(given)


def same(found: tuple[Shown, Shown], plain: tuple[Shown, Shown]) -> bool:
    """Compare but for what neighbours in a batch change of a score."""
    return all(
        one[0] == other[0] and np.allclose(one[1], other[1], atol=1e-6)  # type: ignore[arg-type]
        for one, other in zip(found, plain, strict=True)
    )


def engines(accelerator: Accelerator) -> list[Any]:
    """Return what was measured of rerank engines."""
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return [engine for name, engine in found.items() if name.startswith("rerank#")]


def test_a_reranker_chooses_what_it_chose(
    reranker: SentenceTransformerRerank, accelerator: Accelerator
) -> None:
    plain = [rerank(reranker, number) for number in range(6)]
    fast = accelerate(reranker, accelerator=accelerator)
    assert all(same(rerank(fast, number), plain[number]) for number in range(6))
    assert plain[0][0][0][0][1]["retrieval_score"] == 0.5
    with activate(accelerator):
        assert same(rerank(reranker, 1), plain[1])
    (engine,) = engines(accelerator)
    assert engine["items"] == 7 * 12


@pytest.mark.parametrize("cls", [SentenceTransformerRerank, CoresRerank])
def test_both_classes_of_that_name_run_on_an_engine(
    cls: Any, folder: str, accelerator: Accelerator
) -> None:
    plain = cls(model=folder, device="cpu", top_n=3, keep_retrieval_score=True)
    fast = accelerate(plain, accelerator=accelerator)
    with coverage(fast) as seen:
        assert same(rerank(fast, 1), rerank(plain, 1))
    (call,) = (call for call in seen.calls if not call.passed_by)
    assert (call.scheduled, call.borrowed, call.reason) == (1, 0, "")
    assert "recognised reranker: its own method runs" in explain(fast)


def test_a_replaced_predict_scores_its_lists_itself(folder: str, accelerator: Accelerator) -> None:
    reranker = SentenceTransformerRerank(folder, "cpu", top_n=3)
    asked: list[int] = []
    scores = reranker._model.predict

    def predict(pairs: Any, **kwargs: Any) -> Any:
        asked.append(len(pairs))
        return -scores(pairs, **kwargs)

    reranker._model.predict = predict
    fast = accelerate(reranker, accelerator=accelerator)
    assert same(rerank(fast, 1), rerank(reranker, 1))
    assert asked == [12, 12]
    assert "predict of its model is replaced" in explain(fast)


@pytest.mark.usefixtures("two_torch_threads")
def test_concurrent_calls_share_steps(
    reranker: SentenceTransformerRerank, accelerator: Accelerator
) -> None:
    plain = [rerank(reranker, number) for number in range(8)]
    start = threading.Barrier(8)

    def one(number: int) -> Any:
        start.wait(10)
        return rerank(reranker, number)

    with activate(accelerator), ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert all(map(same, found, plain))
    (engine,) = engines(accelerator)
    assert engine["items"] == 8 * 12
    assert engine["steps"] < 8


def test_coroutines_choose_the_same(
    reranker: SentenceTransformerRerank, accelerator: Accelerator
) -> None:
    plain = [rerank(reranker, number) for number in range(8)]
    fast = accelerate(reranker, accelerator=accelerator)

    async def all_of_them() -> Any:
        return await asyncio.gather(*(arerank(fast, number) for number in range(8)))

    assert all(map(same, run_in_loop(all_of_them()), plain))
    (engine,) = engines(accelerator)
    assert engine["items"] == 8 * 12


@pytest.mark.parametrize("is_async", [False, True])
def test_events_and_spans_are_those_of_the_plain_object(
    reranker: SentenceTransformerRerank, accelerator: Accelerator, is_async: bool
) -> None:
    def call(one: Any) -> Any:
        return run_in_loop(arerank(one, 1)) if is_async else rerank(one, 1)

    with recording() as plain:
        call(reranker)
    with recording() as found:
        call(accelerate(reranker, accelerator=accelerator))
    assert found == plain
    assert plain[0]["ReRankStartEvent"] == plain[0]["ReRankEndEvent"] == 1


def by_length(pairs: Any, **_: Any) -> Any:
    """Score pairs by the lengths of their texts."""
    return np.array([len(text) for _, text in pairs], dtype=np.float32)


def test_a_predict_that_is_replaced_later_is_the_one_that_runs(
    folder: str, accelerator: Accelerator
) -> None:
    reranker = SentenceTransformerRerank(folder, "cpu")
    with activate(accelerator):
        first = rerank(reranker, 1)
        reranker._model.predict = by_length
        found = rerank(reranker, 1)
    assert found == rerank(reranker, 1)
    assert found != first


def test_a_subclass_that_reranks_otherwise_is_borrowed(
    folder: str, accelerator: Accelerator
) -> None:
    class Backwards(SentenceTransformerRerank):
        def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
            return super()._postprocess_nodes(nodes, query_bundle)[::-1]

    class Same(SentenceTransformerRerank):
        more: int = 1

    plain = rerank(Backwards(folder, "cpu"), 1)
    with activate(accelerator):
        assert rerank(Backwards(folder, "cpu"), 1) == plain
    assert engines(accelerator) == []
    assert PROXIED.may_be_proxied(Same)
    assert not PROXIED.may_be_proxied(Backwards)


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the class and text of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.postprocess_nodes([], QueryBundle("word1")),
        lambda one: one.postprocess_nodes(passages(1)),
        lambda one: one.postprocess_nodes([None], QueryBundle("word1")),
    ],
)
def test_odd_calls_end_as_plainly(
    reranker: SentenceTransformerRerank, accelerator: Accelerator, call: Any
) -> None:
    plain = outcome_of(lambda: call(reranker))
    with activate(accelerator):
        assert outcome_of(lambda: call(reranker)) == plain
