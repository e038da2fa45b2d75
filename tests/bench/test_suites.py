from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from bench import chains
from bench.arms import bench_accelerator, best_torch_threads, thread_candidates
from bench.embedding import reranking
from bench.measure import Pairs
from bench.no_op import NoOpChatModel, NoOpRetriever, one_shot_chain
from bench.results import Row, SuiteResult
from bench.suites import demo, embedding_concurrency, overhead
from rag_accel.errors import ConfigError, EngineError
from rag_accel_demo.extractive.chat_model import ExtractiveChatModel
from rag_accel_demo.material import Material

Ended = Callable[[SuiteResult], int]

TINY_OVERHEAD = overhead.Sizes(
    leaf_pairs=3,
    chain_pairs=3,
    retrieval_pairs=2,
    graph_runs=2,
    warm_up=1,
    hosted_pairs=1,
    concurrent=4,
    concurrent_repeats=2,
    tuning_questions=2,
    users=2,
    round_pairs=1,
    round_warm_up=0,
    nested_callers=2,
    nested_pairs=1,
)
TINY_DEMO = demo.Sizes(*((1, 16, 64), 4, 2, 2), model_call_s=0.001, model_call_repeats=1)


def _only(found: SuiteResult, system: str, workload: str, metric: str) -> Row:
    (row,) = [
        row
        for row in found.rows
        if (row.system, row.workload, row.metric) == (system, workload, metric)
    ]
    return row


def test_another_answer_of_any_workload_fails_overhead(
    material: Material, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    def change(plain: Any, accelerator: object) -> Any:
        return plain | RunnableLambda(lambda _: {"answer": "something else", "documents": []})

    monkeypatch.setattr(overhead, "accelerate", change)
    monkeypatch.setattr(overhead, "BUILDERS", ())
    monkeypatch.setattr(overhead, "HOSTED_S", 0.0)
    monkeypatch.setattr(overhead, "_ratios_of_rounds", lambda _: {})
    monkeypatch.setattr(overhead, "_concurrent_fakes", lambda *_: Pairs((1.0,), (1.0,)))
    found = overhead.run(True, TINY_OVERHEAD, material)
    for name in (
        *("chat model", "retriever", "one-shot chain", "retrieval chain", "hosted chain"),
    ):
        for call in ("invoke", "ainvoke"):
            assert any(one.startswith(f"accelerated, {name}, {call}: ") for one in found.wrong)
    assert len(found.wrong) == 10
    assert ended(found) == 1


def test_the_ratios_of_the_demo_are_those_of_the_worse_shape(material: Material) -> None:
    found = demo.run(True, TINY_DEMO, material)
    for name, what in (("demo", ""), ("demo_model_call", ", model call of 1 ms")):
        speeds, tails = (
            [
                _only(found, "accelerated / plain", f"64 users, {shape}{what}", metric).median
                for shape in ("invoke from threads", "ainvoke from tasks")
            ]
            for metric in ("throughput_ratio", "p99_ratio")
        )
        assert found.ratios[f"{name}_throughput_64"] == min(speeds)
        assert found.ratios[f"{name}_p99_64"] == max(tails)
    for users, workload in ((1, "1 user"), (16, "16 users")):
        tails = [
            _only(found, "accelerated", f"{workload}, {shape}", "latency_ms").p99
            / _only(found, "plain", f"{workload}, {shape}", "latency_ms").p99
            for shape in ("invoke from threads", "ainvoke from tasks")
        ]
        assert found.ratios[f"demo_p99_{users}"] == pytest.approx(max(tails))


async def test_a_reader_with_a_model_call_waits_for_it_and_answers_as_the_other_does() -> None:
    asked = "Context:\n[1] (fog) Fog forms near the ground.\n\nQuestion: When is fog?"
    plain, calling = ExtractiveChatModel(), demo.CallingReader(call_s=0.01)
    started = time.monotonic()
    found = [calling.invoke(asked).content, (await calling.ainvoke(asked)).content]
    assert time.monotonic() - started >= 0.02
    assert found == [plain.invoke(asked).content] * 2


def test_an_answer_that_differs_is_counted_and_fails_the_suite(
    material: Material, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    def change(chain: Runnable[str, dict[str, Any]], accelerator: object) -> Any:
        return chain | RunnablePassthrough.assign(answer=lambda _: "something else")

    monkeypatch.setattr(chains, "accelerate", change)
    assert ended(demo.run(True, demo.Sizes((1,), 1, 1, 1, 0.0), material)) == 1
    found = demo.run(True, demo.Sizes((1,), 3, 1, 2, 0.0), material)
    workload = "1 user, invoke from threads"
    assert _only(found, "accelerated", workload, "identical_answers").median == 0
    assert _only(found, "accelerated", workload, "different_answers").median == 6


def test_a_vector_that_differs_fails_the_suite(
    monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    class Zeros(DeterministicFakeEmbedding):
        def embed_query(self, text: str) -> list[float]:
            return [0.0] * self.size

    monkeypatch.setattr(embedding_concurrency, "accelerate", lambda _, accelerator: Zeros(size=8))
    plain = DeterministicFakeEmbedding(size=8)
    texts = ["one text", "another text"]
    found = embedding_concurrency.run(
        True, embedding_concurrency.Sizes((1,), (2,), 1, 1), plain, texts
    )
    largest = max(abs(value) for text in texts for value in plain.embed_query(text))
    row = _only(found, "accelerated", "1 thread", "max_abs_difference")
    assert (row.median, row.n) == (largest, 2)
    assert len(found.wrong) == 2
    assert ended(found) == 1


def test_reranking_compares_every_order() -> None:
    one = [(0, 0.9), (2, 0.5), (1, 0.1)]
    assert reranking._is_same(one, [(0, 0.9), (2, 0.5), (1, 0.1)])
    assert not reranking._is_same(one, [(0, 0.9), (1, 0.5), (2, 0.1)])
    assert not reranking._is_same(one, [(0, 0.9), (2, 0.5)])
    tied = [(0, 0.9), (2, 0.5), (1, 0.500001)]
    assert reranking._is_same(tied, [(0, 0.9), (1, 0.5), (2, 0.5)])


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_thread_counts_are_powers_of_two_and_all_cores(cores: int, counts: list[int]) -> None:
    assert thread_candidates(cores) == counts


def test_the_plain_arm_gets_the_thread_count_of_its_best_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.arms.usable_cores", lambda: 4)
    rates: Iterator[float] = iter([1.0, 3.0, 2.0, 1.0, 1.0, 9.0])
    assert best_torch_threads(lambda: next(rates)) == 4


def test_results_are_worked_out_every_time_in_the_accelerated_arm() -> None:
    with bench_accelerator() as accelerator:
        assert accelerator.options.single_flight is False


def test_a_leaf_that_ran_plainly_spoils_the_measurement() -> None:
    with pytest.raises(EngineError, match="ran plainly"), bench_accelerator() as accelerator:
        accelerator.count_bypass("embed_query", "EngineLostError")


def test_a_switched_off_accelerator_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_ACCEL", "0")
    with pytest.raises(ConfigError, match="switched off"), bench_accelerator():
        pytest.fail("measured")


async def test_the_leaves_that_do_nothing_are_real_leaves() -> None:
    model, retriever = NoOpChatModel(), NoOpRetriever()
    assert isinstance(model, BaseChatModel)
    assert model.invoke("?").content == (await model.ainvoke("?")).content == "nothing"
    assert retriever.invoke("?") == await retriever.ainvoke("?")
    assert one_shot_chain().invoke({"question": "?"}) == "nothing"
