from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from bench import chains
from bench.arms import at_threads, bench_accelerator, best_torch_threads, thread_candidates
from bench.baselines import embedding
from bench.embedding import reranking
from bench.measure import Pairs
from bench.no_op import NoOpChatModel, NoOpRetriever, one_shot_chain
from bench.no_op_graph import ENGINE, NoOpEngine, answer_nothing, line_graph
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import demo, embedding_concurrency, overhead, ratio_definitions
from rag_accel.accelerator import Accelerator
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
TINY_EMBEDDING = embedding_concurrency.Sizes(
    callers=(1, 16, 64), texts=(2, 2, 4), tuning_texts=2, repeats=2
)


@pytest.fixture(scope="module")
def measured_overhead(material: Material) -> SuiteResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overhead, "BUILDERS", overhead.BUILDERS[-2:])
        return overhead.run(True, TINY_OVERHEAD, material)


def _only(found: SuiteResult, system: str, workload: str, metric: str) -> Row:
    (row,) = [
        row
        for row in found.rows
        if (row.system, row.workload, row.metric) == (system, workload, metric)
    ]
    return row


def _check(found: SuiteResult) -> None:
    """Check what holds for every suite: valid JSON, distinct rows, every ratio defined."""
    assert from_json(as_json(found), found.suite) == found
    names = Counter((row.system, row.workload, row.metric) for row in found.rows)
    assert max(names.values()) == 1
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert not found.emulated
    assert found.wrong == ()


@pytest.mark.bench
def test_overhead_measures_every_workload_sync_and_async(measured_overhead: SuiteResult) -> None:
    found = measured_overhead
    _check(found)
    for name in ("chat model", "retriever", "one-shot chain", "retrieval chain"):
        for call in ("invoke", "ainvoke"):
            plain = _only(found, "plain", f"{name}, {call}", "latency_ms")
            fast = _only(found, "accelerated", f"{name}, {call}", "latency_ms")
            assert plain.n == fast.n == (2 if name == "retrieval chain" else 3)
    for call in ("run", "arun"):
        for system in ("owned engine", "borrowed engine"):
            assert _only(found, system, f"10-node RAGraph, {call}", "latency_ms").n == 2
    assert _only(found, "accelerated", "2 nested callers", "total_s").n == 1
    assert len([row for row in found.rows if row.metric == "leaf_calls"]) == 2


@pytest.mark.bench
def test_the_ratios_of_overhead_are_the_worst_of_its_rows(measured_overhead: SuiteResult) -> None:
    found = measured_overhead
    of_calls = [row for row in found.rows if row.system == "accelerated / plain"]
    chains = [row.median for row in of_calls if "chain" in row.workload]
    assert found.ratios["nothing_helps"] == max(chains)
    extra = {row.workload: row.median for row in found.rows if row.system == "accelerated - plain"}
    leaves = [value for name, value in extra.items() if "chain" not in name]
    assert found.ratios["leaf_overhead_ms"] == max(leaves)
    graphs = [row.median for row in found.rows if "RAGraph" in row.workload]
    assert found.ratios["noop_graph_ms"] == max(graphs)
    extra = [row.median for row in found.rows if row.metric == "leaf_call_ms"]
    assert found.ratios["nothing_helps_16_leaf_ms"] == max(extra)
    ways = [row.median for row in found.rows if row.metric == "wall_ratio"]
    assert found.ratios["nothing_helps_16_worst"] == max(ways)
    assert found.ratios["nothing_helps_16_mean"] <= found.ratios["nothing_helps_16_worst"]
    low, high = found.ratios["nothing_helps_low"], found.ratios["nothing_helps_high"]
    assert low <= found.ratios["nothing_helps"] <= high
    compared = [row for row in found.rows if row.metric == "different_answers"]
    assert len(compared) == 2 * 4 + 2 * 2 + 1
    assert sum(row.median for row in compared) == 0


def test_another_answer_of_any_workload_fails_overhead(
    material: Material, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    def change(plain: Any, accelerator: object) -> Any:
        return plain | RunnableLambda(lambda _: {"answer": "something else", "documents": []})

    monkeypatch.setattr(overhead, "accelerate", change)
    monkeypatch.setattr(overhead, "BUILDERS", ())
    monkeypatch.setattr(overhead, "_ratios_of_rounds", lambda _: {})
    monkeypatch.setattr(overhead, "_concurrent_fakes", lambda *_: Pairs((1.0,), (1.0,)))
    found = overhead.run(True, TINY_OVERHEAD, material)
    for name in ("chat model", "retriever", "one-shot chain", "retrieval chain"):
        for call in ("invoke", "ainvoke"):
            assert any(one.startswith(f"accelerated, {name}, {call}: ") for one in found.wrong)
    assert len(found.wrong) == 8
    assert ended(found) == 1


def test_demo_compares_every_answer_in_both_shapes(material: Material) -> None:
    found = demo.run(True, TINY_DEMO, material)
    assert set(ratio_definitions("demo")) - set(found.ratios) == {"demo_vs_best_peer"}
    assert from_json(as_json(found), found.suite) == found
    levels = [("1 user", "", 2), ("16 users", "", 2), ("64 users", "", 2)]
    for users, what, repeats in (*levels, ("64 users", ", model call of 1 ms", 1)):
        for shape in ("invoke from threads", "ainvoke from tasks"):
            workload = f"{users}, {shape}{what}"
            assert _only(found, "plain", workload, "latency_ms").n == 4 * repeats
            assert _only(found, "accelerated", workload, "answers_per_s").n == repeats
            same = _only(found, "accelerated", workload, "identical_answers")
            assert (same.median, same.n) == (4 * repeats, 4 * repeats)
            assert _only(found, "accelerated", workload, "different_answers").median == 0
    assert found.wrong == ()
    share = _only(found, "plain", "1 user, invoke from threads", "reader_share")
    assert 0 < share.median < 1


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


def test_a_reader_that_takes_too_much_of_the_time_is_warned_of(
    material: Material, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MAX_READER_SHARE", 0.0)
    demo.run(True, demo.Sizes((1,), 2, 1, 1, 0.0), material)
    assert "the reader takes" in caplog.text


def test_embedding_compares_every_vector() -> None:
    texts = ["one text", "another text", "a third text", "the last text"]
    embeddings = DeterministicFakeEmbedding(size=8)
    found = embedding_concurrency.run(True, TINY_EMBEDDING, embeddings, texts)
    defined = set(ratio_definitions("embedding_concurrency"))
    assert defined - set(found.ratios) == {
        "embedding_vs_best_peer",
        "hosted_alone",
        "hosted_vs_plain",
        "rerank_one_thread",
        "rerank_vs_plain",
    }
    for workload, count in (("1 thread", 2), ("1 task", 2), ("64 threads", 4), ("64 tasks", 4)):
        difference = _only(found, "accelerated", workload, "max_abs_difference")
        assert (difference.median, difference.n) == (0.0, 2 * count)
        assert _only(found, "plain", workload, "latency_ms").n == 2 * count
        assert _only(found, "accelerated", workload, "texts_per_s").n == 2
    assert found.wrong == ()


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


@pytest.mark.slow
def test_embedding_meets_all_opponents_with_the_same_vectors() -> None:
    texts = [f"how does text number {number} differ from the others" for number in range(8)]
    sizes = embedding_concurrency.Sizes((1, 16, 64), (4, 4, 8), 4, 1, rerank=2, hosted_repeats=1)
    found = embedding_concurrency.run(True, sizes, texts=texts)
    _check(found)
    assert found.wrong == ()
    for workload in ("1 thread", "64 threads"):
        assert _only(found, "accelerated", workload, "mean_batch").median >= 1
    named = {row.system for row in found.rows}
    assert named >= set(embedding.names())
    for precision in ("bf16", "int8"):
        row = _only(found, f"accelerated, {precision}", "64 threads", "smallest_cosine")
        assert 0.98 < row.median <= 1


def test_reranking_compares_every_order() -> None:
    one = [(0, 0.9), (2, 0.5), (1, 0.1)]
    assert reranking._is_same(one, [(0, 0.9), (2, 0.5), (1, 0.1)])
    assert not reranking._is_same(one, [(0, 0.9), (1, 0.5), (2, 0.1)])
    assert not reranking._is_same(one, [(0, 0.9), (2, 0.5)])
    tied = [(0, 0.9), (2, 0.5), (1, 0.500001)]
    assert reranking._is_same(tied, [(0, 0.9), (1, 0.5), (2, 0.5)])


@pytest.mark.parametrize("settings", [{"tune": "2"}, {"texts": "3"}])
def test_a_setting_embedding_does_not_know_is_refused(settings: dict[str, str]) -> None:
    assert embedding_concurrency.configured(True, {"tune": "1"}).tune
    with pytest.raises(ConfigError, match="unknown setting"):
        embedding_concurrency.configured(True, settings)


def test_the_distinct_texts_are_questions_of_8_to_25_words() -> None:
    texts = embedding_concurrency.distinct_texts(20, chunks=60)
    assert len(set(texts)) == 20
    assert all(8 <= len(text.split()) <= 25 for text in texts)


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


def test_only_the_plain_arm_runs_on_its_best_thread_count() -> None:
    import torch

    before = torch.get_num_threads()
    arm = at_threads(before + 1, lambda turn: (turn, torch.get_num_threads()))
    assert arm(7) == (7, before + 1)
    assert torch.get_num_threads() == before


def test_one_core_needs_no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.arms.usable_cores", lambda: 1)
    assert best_torch_threads(lambda: pytest.fail("nothing to try")) == 1


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


@pytest.mark.parametrize("engine", [NoOpEngine, lambda: answer_nothing])
def test_every_node_of_the_graph_runs(engine) -> None:
    graph = line_graph(10)
    with Accelerator(engines={ENGINE: engine()}) as accelerator:
        found = accelerator.run(graph, outputs=["stage1", "stage10"], input="?")
    assert found == {"stage1": "nothing", "stage10": "nothing"}
    assert len(graph.by_name) == 10
