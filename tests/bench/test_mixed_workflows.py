"""Run the suite at a tiny size, and its parts on their own."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.corpus import Floats, Passages, unit_rows
from bench.mixed.index_files import IndexSize, open_index
from bench.mixed.load import Window
from bench.mixed.programs import graphs
from bench.mixed.sizes import Setting, Sizes
from bench.mixed.trace import MAX_WORDS, MIN_WORDS, Workflow, make_trace, poisson_arrivals
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import mixed_workflows, ratio_definitions
from rag_accel.engine_api import Message
from rag_accel.engines.llm.emulated_table import DeviceTable
from rag_accel.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")

DIMENSION = 24
TABLE = DeviceTable("tiny", 0.02, 0.0, 0.0, 1e6)
SIZE = IndexSize(vectors=600, clusters=8, nprobe=3, dimension=16, passage_words=20)
BRIEF = Window(0, 0.3, 20)
TINY = Sizes(
    heavy=Setting("retrieval-bound", SIZE, TABLE),
    light=Setting("device-bound", SIZE, TABLE),
    requests=20,
    warm=Window(0, 0.1, 20),
    warm_rps=20,
    unloaded=Window(0, 0.4, 20),
    unloaded_rps=60,
    window=BRIEF,
    start_rps=40,
    precision=0.5,
    probes=2,
    light_rps=(20, 40),
    objective=1e6,  # any time will do: the machine may be busy
)
SYSTEMS = ("langchain", "staged", "staged_sq8", "ours")


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


@pytest.fixture(scope="module")
def found(passages: Passages, tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    """Return what the whole suite finds at a tiny size."""
    cache = tmp_path_factory.mktemp("cache")
    return mixed_workflows.run(True, TINY, mixed_workflows.Material(passages, embed, cache))


def _rows(found: SuiteResult, workload: str, metric: str) -> dict[str, Row]:
    return {
        row.system: row for row in found.rows if (row.workload, row.metric) == (workload, metric)
    }


def test_the_result_is_valid_and_says_that_the_model_is_emulated(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert found.emulated
    assert set(found.ratios) == set(ratio_definitions("mixed_workflows"))
    names = Counter((row.system, row.workload, row.metric) for row in found.rows)
    assert max(names.values()) == 1


def test_every_system_finds_the_same_documents_and_says_the_same(found: SuiteResult) -> None:
    texts = _rows(found, "retrieval-bound, unloaded", "identical_texts")
    ids = _rows(found, "retrieval-bound, unloaded", "identical_ids")
    assert tuple(texts) == tuple(ids) == SYSTEMS
    for row in texts.values():
        assert row.median == row.n > 0
    for name in ("langchain", "staged", "ours"):
        assert ids[name].median == ids[name].n > 0


def test_searches_and_both_utilisations_are_reported_of_every_system(found: SuiteResult) -> None:
    for metric in ("mean_search_ms", "mean_generation_ms", "device_utilisation", "latency_s"):
        rows = _rows(found, "retrieval-bound, unloaded", metric)
        assert tuple(rows) == SYSTEMS
        assert all(row.median > 0 for row in rows.values())
    assert tuple(_rows(found, "retrieval-bound, unloaded", "cpu_utilisation")) == SYSTEMS
    per_request = _rows(found, "retrieval-bound, unloaded", "searches_per_request")
    assert len({row.median for row in per_request.values()}) == 1


def test_each_system_is_swept_from_the_limit_of_the_one_before(found: SuiteResult) -> None:
    limits = _rows(found, "retrieval-bound", "limit_rps")
    assert [limits[name].median for name in TINY.swept] == [60.0, 90.0, 135.0, 202.5]
    assert found.ratios["rate_vs_langchain"] == 135 / 60
    assert found.ratios["rate_vs_staged"] == 135 / 90
    compared = _rows(found, "retrieval-bound, 1.5 x limit of langchain", "latency_s")
    ratio = compared["langchain"].median / compared["ours"].median
    assert found.ratios["p50_vs_langchain_at_1_5x"] == ratio
    for percent in (80, 50):
        name = f"retrieval-bound, {percent} % of the limit of staged"
        means = _rows(found, name, "mean_search_ms")
        assert found.ratios[f"search_latency_vs_staged_{percent}"] == pytest.approx(
            means["staged"].median / means["ours"].median
        )


def test_device_bound_is_the_lowest_ratio_of_its_loads(found: SuiteResult) -> None:
    ratios: list[float] = []
    for rate in ("20.00", "40.00"):
        rows = _rows(found, f"device-bound, {rate}/s", "latency_s")
        ratios.append(rows["langchain"].median / rows["ours"].median)
    assert found.ratios["device_bound"] == min(ratios)


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
    monkeypatch.setattr("bench.mixed.index_files._build", lambda *_: pytest.fail("made again"))
    again = open_index(tmp_path, passages, SIZE)
    query = again.projection.apply(passages.vectors[:3])
    assert again.documents.search(query, 5) == first.documents.search(query, 5)


def test_more_clusters_than_vectors_are_an_error(passages: Passages, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bad size of an index"):
        open_index(tmp_path, passages, IndexSize(vectors=4, clusters=8, nprobe=2, dimension=16))
