"""Run the suite at a tiny size, and its parts on their own."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.corpus import Floats, Passages, unit_rows
from bench.emulated.device import EmulatedDevice
from bench.emulated.table import DeviceTable
from bench.research.mixed.bench import Bench
from bench.research.mixed.expected import Agreement, Expected
from bench.research.mixed.index_files import IndexSize, open_index
from bench.research.mixed.load import Window
from bench.research.mixed.programs import Answer, graphs
from bench.research.mixed.sizes import FULL, QUICK, Setting, Sizes, configured, recorded
from bench.research.mixed.sweep import Bracket
from bench.research.mixed.systems import RagAccelSystem, StagedSystem, System
from bench.research.mixed.trace import (
    MAX_WORDS,
    MIN_WORDS,
    Request,
    Workflow,
    make_trace,
    poisson_arrivals,
)
from bench.research.suites import mixed_workflows
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import ratio_definitions
from rag_accel.engine_api import Message
from rag_accel.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")

Ended = Callable[[SuiteResult], int]

DIMENSION = 24
TABLE = DeviceTable("tiny", 0.005, 0.0, 0.0, 1e6)
SIZE = IndexSize(vectors=600, clusters=8, nprobe=3, dimension=16, passage_words=20)
BRIEF = Window(0, 0.15, 20)
TINY = Sizes(
    heavy=Setting("retrieval-bound", SIZE, TABLE),
    light=Setting("generation dominates", SIZE, TABLE),
    requests=20,
    warm=Window(0, 0.1, 20),
    warm_rps=20,
    unloaded=Window(0, 0.2, 20),
    unloaded_rps=60,
    window=BRIEF,
    start_rps=40,
    precision=0.5,
    probes=2,
    light_rps=(20, 40),
    seeds=2,
)
SYSTEMS = ("langchain", "staged", "staged_sq8_refine", "ours")
#: the rate up to which each system keeps the objective here, whatever time it takes
LIMITS = {"langchain": 50.0, "staged": 70.0, "ours": 100.0, "staged_sq8_refine": 150.0}


def embed(texts: Sequence[str]) -> Floats:
    """Return made-up vectors, equal for equal texts."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
    rows = [np.random.default_rng(seed).standard_normal(DIMENSION) for seed in seeds]
    return unit_rows(np.asarray(rows, dtype=np.float32))


@pytest.fixture(scope="module")
def passages() -> Passages:
    """Return 120 passages of made-up words, with a question to each."""
    words = np.random.default_rng(0).integers(0, 10_000, (120, 90))
    texts = tuple(" ".join(f"w{word}" for word in row) for row in words.tolist())
    questions = tuple((f"What is meant by number {number}?", number) for number in range(120))
    return Passages(texts, embed(texts), questions)


def measured(
    passages: Passages, cache: Path, patch: pytest.MonkeyPatch, sizes: Sizes = TINY
) -> SuiteResult:
    """Return what the whole suite finds at a tiny size; limits do not depend on the machine."""
    find = Bench.limit

    async def limit(bench: Bench, system: System, *others: Any) -> Bracket:
        most = LIMITS[system.name]
        patch.setattr("bench.research.mixed.bench.keeps", lambda load, _: load.rate_rps <= most)
        return await find(bench, system, *others)

    patch.setattr(Bench, "limit", limit)
    return mixed_workflows.run(True, sizes, mixed_workflows.Material(passages, embed, cache))


@pytest.fixture(scope="module")
def found(passages: Passages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuiteResult]:
    """Return what the suite finds where nothing is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        yield measured(passages, tmp_path_factory.mktemp("cache"), patch)


def _rows(found: SuiteResult, workload: str, metric: str) -> dict[str, Row]:
    return {
        row.system: row for row in found.rows if (row.workload, row.metric) == (workload, metric)
    }


@pytest.mark.bench
def test_the_result_is_valid_and_says_that_the_model_is_emulated(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert found.emulated
    assert set(found.ratios) == set(ratio_definitions("mixed_workflows"))
    names = Counter((row.system, row.workload, row.metric) for row in found.rows)
    assert max(names.values()) == 1


@pytest.mark.bench
def test_the_quick_form_leaves_out_what_its_docstring_says(
    passages: Passages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = replace(TINY, light_rps=QUICK.light_rps, percents=QUICK.percents, seeds=QUICK.seeds)
    found = measured(passages, tmp_path, monkeypatch, sizes)
    definitions = ratio_definitions("mixed_workflows")
    of_half = {name for name in definitions if name.endswith("_50")}
    assert set(definitions) - set(found.ratios) == of_half | {"generation_dominates"}
    assert not [row for row in found.rows if row.workload.startswith("generation dominates")]


@pytest.mark.bench
def test_every_answer_of_every_load_is_compared(found: SuiteResult) -> None:
    loads = {row.key[:2] for row in found.rows if row.metric == "latency_s"}
    for metric in ("identical_ids", "different_ids", "identical_texts"):
        rows = [row for row in found.rows if row.metric == metric]
        assert {row.key[:2] for row in rows} == loads
        for row in rows:
            assert row.n > 0
            if row.system != "staged_sq8_refine":
                assert row.median == (0 if metric == "different_ids" else row.n)
    assert found.wrong == ()


@pytest.mark.bench
def test_utilisations_and_latencies_are_reported_of_every_system(found: SuiteResult) -> None:
    for metric in ("device_utilisation", "latency_s", "p95_latency_s"):
        rows = _rows(found, "retrieval-bound, unloaded", metric)
        assert tuple(rows) == SYSTEMS
        assert all(row.median > 0 for row in rows.values())
    assert tuple(_rows(found, "retrieval-bound, unloaded", "cpu_utilisation")) == SYSTEMS


@pytest.mark.bench
def test_each_system_is_swept_from_the_limit_of_the_one_before(found: SuiteResult) -> None:
    passes = _rows(found, "retrieval-bound", "limit_rps")
    fails = _rows(found, "retrieval-bound", "limit_fails_rps")
    assert [passes[name].median for name in TINY.swept] == [40, 60, 90, 135]
    assert [fails[name].median for name in TINY.swept] == [60, 90, 135, 202.5]
    assert found.ratios["rate_vs_langchain_low"] == 90 / 60
    assert found.ratios["rate_vs_langchain_high"] == 135 / 40
    assert found.ratios["rate_vs_langchain"] == pytest.approx(90 / 40)
    assert found.ratios["rate_vs_staged"] == pytest.approx(90 / 60)
    assert found.ratios["rate_vs_staged_sq8_refine"] == pytest.approx(90 / 135)
    for rate in (40, 60):  # both ends, with the arrivals of both seeds
        for name in ("", ", arrivals 2"):
            workload = f"retrieval-bound, sweep, {rate}.00/s{name}"
            assert "langchain" in _rows(found, workload, "latency_s")


@pytest.mark.bench
def test_requests_are_compared_at_the_caller_at_shares_of_the_limit_of_staged(
    found: SuiteResult,
) -> None:
    for percent in (80, 50):
        name = f"retrieval-bound, {percent} % of the limit of staged"
        loads = [_rows(found, f"{name}{which}", "latency_s") for which in ("", ", arrivals 2")]
        for other in ("staged_sq8_refine", "staged"):
            p50 = [load[other].median / load["ours"].median for load in loads]
            p99 = [(load[other].p99 or 0) / (load["ours"].p99 or 1) for load in loads]
            ratios = found.ratios
            assert ratios[f"request_p50_vs_{other}_{percent}"] == pytest.approx(sum(p50) / 2)
            assert ratios[f"request_p99_vs_{other}_{percent}"] == pytest.approx(sum(p99) / 2)


@pytest.mark.bench
def test_where_generation_dominates_the_lowest_ratio_counts(found: SuiteResult) -> None:
    ratios: list[float] = []
    for rate in ("20.00", "40.00"):
        rows = _rows(found, f"generation dominates, {rate}/s", "latency_s")
        ratios.append(rows["langchain"].median / rows["ours"].median)
    assert found.ratios["generation_dominates"] == min(ratios)


@pytest.mark.bench
def test_other_ids_and_other_texts_fail_the_suite(
    passages: Passages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    serve = RagAccelSystem.serve

    async def changed(system: RagAccelSystem, request: Request) -> Answer:
        answer = await serve(system, request)
        if request.number == 1:
            return Answer("something else", answer.ids)
        return Answer(answer.text, answer.ids[::-1]) if request.number == 2 else answer

    monkeypatch.setattr(RagAccelSystem, "serve", changed)
    found = measured(passages, tmp_path, monkeypatch)
    assert any("different_ids is 1" in one for one in found.wrong)
    assert any("identical_texts is" in one for one in found.wrong)
    assert all(one.startswith("ours, ") for one in found.wrong)
    assert any("sweep" in one for one in found.wrong)
    assert ended(found) == 1


def test_ids_in_another_order_are_a_tie_only_if_their_scores_are_equal(
    passages: Passages, tmp_path: Path
) -> None:
    index = open_index(tmp_path, passages, SIZE)
    (query,) = index.projection.apply(passages.vectors[:1])
    request = Request(0, Workflow.ONE_SHOT, "?", "?", "yes")
    stored = np.load(index.folder / "vectors.npy", mmap_mode="r+")
    (hits,) = index.documents.search(query[None, :], 5)
    ids = tuple(hit.document.id for hit in hits)
    other = (ids[1], ids[0], *ids[2:])
    expected = Expected(index, {"?": query}, [request])
    assert expected.compare({0: Answer("yes", ids)}) == Agreement(1, 0, 1)
    assert expected.compare({0: Answer("no", other)}) == Agreement(0, 1, 0)
    assert expected.compare({0: Answer("yes", ids[:4])}) == Agreement(0, 1, 1)
    assert expected.compare({0: Answer("yes", (ids[0], ids[0], *ids[2:]))}) == Agreement(0, 1, 1)
    stored[int(ids[1])] = stored[int(ids[0])]
    stored.flush()
    tied = Expected(index, {"?": query}, [request])
    assert tied.compare({0: Answer("yes", other)}) == Agreement(0, 0, 1)


def test_the_refined_index_finds_what_float32_finds(passages: Passages, tmp_path: Path) -> None:
    index = open_index(tmp_path, passages, SIZE)
    queries = index.projection.apply(passages.vectors[:50])
    found = index.refined_index(parallel_mode=1).search(queries, 5)
    again = index.refined_index(parallel_mode=1).search(queries, 5)
    scores, labels = index.stock_index(parallel_mode=1).search(queries, 5)
    assert np.array_equal(found[1], labels)
    assert np.allclose(found[0], scores, atol=1e-6)
    assert np.array_equal(found[1], again[1])
    assert not [*index.folder.glob("*.partial")]


def test_staged_puts_at_most_16_searches_into_a_call(passages: Passages, tmp_path: Path) -> None:
    index = open_index(tmp_path, passages, SIZE)
    queries = index.projection.apply(passages.vectors[:40])
    vectors = {str(number): query for number, query in enumerate(queries)}
    stock = index.stock_index(parallel_mode=1)
    sizes: list[int] = []
    begun, may_go = threading.Event(), threading.Event()

    class Counted:
        def search(self, batch: Floats, k: int) -> Any:
            sizes.append(len(batch))
            begun.set()
            assert may_go.wait(30)
            return stock.search(batch, k)

    async def ask(system: StagedSystem) -> list[Any]:
        first = asyncio.create_task(system.search("0"))
        assert await asyncio.to_thread(begun.wait, 30)
        others = [asyncio.create_task(system.search(str(number))) for number in range(1, 40)]
        await asyncio.sleep(0)  # all are queued
        may_go.set()
        return await asyncio.gather(first, *others)

    with EmulatedDevice("fast_fp8") as device:
        system = StagedSystem("staged", index, Counted(), vectors, device)
        found = asyncio.run(ask(system))
        system.close()
    assert sizes == [1, 16, 16, 7]
    wanted = stock.search(queries, 5)[1].tolist()
    assert [[int(one.id) for one in documents] for documents in found] == wanted


# Parameters ----------------------------------------------------------------------------------


def test_nprobe_device_mix_and_seeds_can_be_set() -> None:
    told = {"nprobe": "64", "table": "h100_like_8b*2", "mix": "one_shot:3,hyde", "seeds": "3"}
    sizes = configured(True, told)
    assert sizes.heavy.index == replace(QUICK.heavy.index, nprobe=64)
    assert isinstance(sizes.heavy.table, DeviceTable)
    assert sizes.heavy.table.name == "2 x h100_like_8b"
    assert sizes.mix == ((Workflow.ONE_SHOT, 3), (Workflow.HYDE, 1))
    assert sizes.seeds == 3
    assert sizes.light == QUICK.light
    kept = recorded(sizes)
    assert kept["heavy"]["table"] == "2 x h100_like_8b"
    assert kept["mix"] == [["one_shot", 3], ["hyde", 1]]
    assert configured(False, {}) == FULL


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("nprobe", "0"), ("nprobe", "1025"), ("nprobe", "many"), ("table", "h200")),
        *(("table", "fast_fp8*0"), ("mix", "chat"), ("mix", "hyde:0"), ("seeds", ""), ("k", "5")),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        configured(True, {name: value})


def test_a_trace_follows_the_mix(passages: Passages) -> None:
    mix = ((Workflow.HYDE, 3), (Workflow.IRG, 1))
    trace = make_trace(passages, 40, 3, mix)
    counts = Counter(one.workflow for one in trace.requests)
    assert counts == {Workflow.HYDE: 30, Workflow.IRG: 10}
    for start in range(0, 40, 4):  # in every round
        assert [one.workflow for one in trace.requests[start : start + 4]].count(Workflow.IRG) == 1
    with pytest.raises(ConfigError, match="no workflows"):
        make_trace(passages, 5, 3, ())


def test_a_request_knows_its_last_search_and_its_answer(passages: Passages) -> None:
    trace = make_trace(passages, 50, seed=3)
    for one in trace.requests:
        assert one.last_query in trace.queries
        assert one.answer in trace.answers.values()
    asked = {one.question for one in trace.requests if one.workflow is Workflow.ONE_SHOT}
    assert asked == {one.last_query for one in trace.requests if one.workflow is Workflow.ONE_SHOT}


def test_a_trace_mixes_all_workflows_equally_and_is_the_same_every_time(passages: Passages) -> None:
    trace = make_trace(passages, 50, seed=3)
    assert trace == make_trace(passages, 50, seed=3)
    assert trace.requests != make_trace(passages, 50, seed=4).requests
    assert Counter(one.workflow for one in trace.requests) == dict.fromkeys(Workflow, 10)
    assert len({one.question for one in trace.requests}) == 50
    assert set(graphs()) == set(Workflow)


def test_answers_are_as_long_as_drawn_and_do_not_depend_on_what_was_found(
    passages: Passages,
) -> None:
    trace = make_trace(passages, 20, seed=3)
    request = next(one for one in trace.requests if one.workflow is Workflow.ONE_SHOT)
    prompt = "Use these passages to answer the question.\n\n{}\n\nQuestion: {}\nAnswer:"
    said = [
        trace.respond((Message("user", prompt.format(found, request.question)),))
        for found in ("[1] one passage", "[1] another\nQuestion: of its own?")
    ]
    assert said[0] == said[1]
    assert MIN_WORDS <= len(said[0].split()) <= MAX_WORDS


def test_a_prompt_that_is_not_of_the_trace_is_refused(passages: Passages) -> None:
    trace = make_trace(passages, 5, seed=3)
    with pytest.raises(ConfigError, match="not of the trace"):
        trace.respond((Message("user", "Sing.\n\nQuestion: What?\nAnswer:"),))


def test_too_few_questions_are_an_error(passages: Passages) -> None:
    with pytest.raises(ConfigError, match="too few questions"):
        make_trace(passages, 121, seed=3)


def test_poisson_arrivals_are_seeded_and_as_frequent_as_asked() -> None:
    times = poisson_arrivals(50.0, 200.0, seed=5)
    assert times == poisson_arrivals(50.0, 200.0, seed=5)
    assert times != poisson_arrivals(50.0, 200.0, seed=6)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 200
    gaps = np.diff(times)
    # Of 10,000 exponential gaps the mean is within 4 standard errors, and so is the deviation.
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.04)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.08)


def test_equal_seeds_give_the_same_arrivals_on_another_scale() -> None:
    slow, fast = poisson_arrivals(2.0, 50.0, seed=5), poisson_arrivals(4.0, 25.0, seed=5)
    assert fast == pytest.approx([time / 2 for time in slow])


def test_nothing_arrives_at_no_rate() -> None:
    with pytest.raises(ConfigError, match="bad arrival rate"):
        poisson_arrivals(0.0, 1.0, seed=5)


def test_the_stock_index_shares_the_vectors_and_finds_what_ours_finds(
    passages: Passages, tmp_path: Path
) -> None:
    index = open_index(tmp_path, passages, SIZE)
    queries = index.projection.apply(passages.vectors[:10])
    ours = index.documents.search(queries, 5)
    for mode in (0, 1):
        labels = index.stock_index(mode).search(queries, 5)[1]
        assert [[str(label) for label in row] for row in labels.tolist()] == [
            [hit.document.id for hit in row] for row in ours
        ]
    assert {hit.document.text for row in ours for hit in row} <= set(index.texts)


def test_an_index_that_was_made_is_read_again(
    passages: Passages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_index(tmp_path, passages, SIZE)
    monkeypatch.setattr(
        "bench.research.mixed.index_files._build", lambda *_: pytest.fail("made again")
    )
    again = open_index(tmp_path, passages, SIZE)
    query = again.projection.apply(passages.vectors[:3])
    assert again.documents.search(query, 5) == first.documents.search(query, 5)


def test_more_clusters_than_vectors_are_an_error(passages: Passages, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bad size of an index"):
        open_index(tmp_path, passages, IndexSize(vectors=4, clusters=8, nprobe=2, dimension=16))
