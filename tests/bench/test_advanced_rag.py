"""The suite runs end to end on made-up models, and says when an arm answers differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip("langgraph")

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from bench.emulated.table import H100_LIKE_8B, DeviceTable, step_time_s
from bench.research.advanced.answers import Answers
from bench.research.advanced.bound import bound_s, chain_of, device_s
from bench.research.advanced.loaded import arrivals
from bench.research.advanced.ours import Ours, Spent
from bench.research.advanced.stages import Asked, Generated, Notes, Stages, queries_of
from bench.research.advanced.workload import LOADED, VARIANTS, Setting, Variant, open_setting
from bench.research.suites import advanced_rag
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import ratio_definitions
from langchain_rag_accel.demo.material import Material
from rag_accel.engine_api import Document, Message
from rag_accel.errors import ConfigError
from rag_accel.graph.item_lists import read_items

Ended = Callable[[SuiteResult], int]

#: a device so fast that a request of some 300 tokens takes milliseconds
FAST = DeviceTable("fast", 0.01, 0.001, 0.0, 1e6)
TINY = advanced_rag.Sizes(
    documents=24,
    upload_words=12,
    repeats=2,
    warm_up=0,
    loaded_places=2,
    load_share=0.8,
    loaded_requests=4,
    loaded_repeats=1,
)


def score(pairs: list[tuple[str, str]]) -> list[float]:
    """Count the words that query and text share, longer texts last."""
    return [len(set(query.split()) & set(text.split())) - len(text) / 1000 for query, text in pairs]


@pytest.fixture(scope="module")
def texts() -> Material:
    """Return documents enough to index and to upload, all different."""
    embeddings = DeterministicFakeEmbedding(size=16)
    documents = tuple(
        Document(f"d{number}", f"fact {number} is that {number} follows {number - 1}")
        for number in range(40)
    )
    return Material(
        documents=documents,
        questions=("what follows 3", "is 7 a fact", "which fact is 9"),
        skipped=(),
        embeddings=embeddings,
        store=InMemoryVectorStore(embeddings),
        index_was_cached=True,
    )


@pytest.fixture(scope="module")
def found(texts: Material) -> SuiteResult:
    """Return what the suite finds in a tiny run."""
    return advanced_rag.run(True, TINY, texts, score, FAST)


@pytest.fixture
def setting(texts: Material) -> Iterator[Setting]:
    with open_setting(texts, score, FAST, documents=24, upload_words=12, loaded_places=2) as opened:
        yield opened


def only(found: SuiteResult, system: str, workload: str, metric: str) -> Row:
    (row,) = [
        row
        for row in found.rows
        if (row.system, row.workload, row.metric) == (system, workload, metric)
    ]
    return row


def test_every_variant_is_measured_and_every_answer_compared(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    names = Counter((row.system, row.workload, row.metric) for row in found.rows)
    assert max(names.values()) == 1
    assert set(found.ratios) == set(ratio_definitions("advanced_rag"))
    assert found.emulated
    for variant in VARIANTS:
        for arm in ("sequential", "hand_parallel", "ours"):
            assert only(found, arm, variant.name, "latency_ms").n == 2
        for arm in ("hand_parallel", "ours"):
            assert only(found, arm, variant.name, "identical_answers").median == 2
            assert only(found, arm, variant.name, "different_answers").median == 0
        assert only(found, "bound", variant.name, "latency_ms").median > 0
    loaded = {row.workload for row in found.rows if row.system == "blind"}
    assert len(loaded) == 2
    for workload in loaded:
        assert only(found, "ours", workload, "latency_ms").n == 4
        assert only(found, "ours", workload, "identical_answers").median == 4


def test_the_ratios_are_those_of_the_rows(found: SuiteResult) -> None:
    leading = "tree with upload"
    ours = only(found, "ours", leading, "latency_ms").median
    for ratio, arm in (
        ("vs_sequential", "sequential"),
        ("vs_hand_parallel_langgraph", "hand_parallel"),
    ):
        plain = only(found, arm, leading, "latency_ms").median
        assert found.ratios[ratio] == pytest.approx(plain / ours)
    gains = [
        row.median
        for row in found.rows
        if row.metric == "p50_ratio" and row.system.endswith("/ ours")
    ]
    assert len(gains) == 2 * len(VARIANTS)
    assert found.ratios["worst_variant"] == min(gains)
    ours = only(found, "ours", leading, "latency_ms").median
    bound = only(found, "bound", leading, "latency_ms").median
    assert found.ratios["over_bound"] == pytest.approx(ours / bound)
    share = only(found, "ours", leading, "scheduling_share")
    assert found.ratios["overhead_share"] == share.median
    assert 0 < share.median < 1
    blind = [row.median for row in found.rows if row.metric == "run_p50_ratio"]
    assert found.ratios["topology_vs_blind"] == min(blind)
    assert {found.ratios[f"topology_vs_blind_{how}"] for how in ("together", "single")} == {*blind}
    assert found.sizes["table"] == "fast"
    assert found.wrong == ()


def test_an_answer_that_differs_is_counted_and_fails_the_suite(
    texts: Material, monkeypatch: pytest.MonkeyPatch, ended: Ended
) -> None:
    monkeypatch.setattr(advanced_rag.Ours, "answer", lambda *_: "something else")
    spoilt = advanced_rag.run(True, TINY, texts, score, FAST)
    for variant in VARIANTS:
        assert only(spoilt, "ours", variant.name, "different_answers").median == 2
        assert only(spoilt, "hand_parallel", variant.name, "different_answers").median == 0
    assert len(spoilt.wrong) == len(VARIANTS)
    assert ended(spoilt) == 1


def test_a_latency_under_load_counts_from_when_the_request_was_due(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]

    class Busy:
        """Be held up for 3 s by each start, and serve each request in 1 s."""

        def __init__(self, accelerator: object) -> None:
            self._asked: list[str] = []

        def __enter__(self) -> Busy:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def add_request(self, question: str, graph: object) -> int:
            self._asked.append(question)
            now_s[0] += 3.0
            return len(self._asked) - 1

        def wait(self, id: int) -> SimpleNamespace:
            return SimpleNamespace(unwrap=lambda: self._asked[id], latency_s=1.0)

    clock = SimpleNamespace(
        perf_counter=lambda: now_s[0],
        sleep=lambda seconds: now_s.__setitem__(0, now_s[0] + seconds),
    )
    monkeypatch.setattr("bench.research.advanced.ours.Server", Busy)
    monkeypatch.setattr("bench.research.advanced.ours.time", clock)
    with Ours.opened(setting, setting.device) as ours:
        found = ours.under_load(LOADED, ["a", "b", "c"], [0.0, 1.0, 9.0])
    assert found == (["a", "b", "c"], [1.0, 3.0, 1.0])


def test_an_upload_is_found_and_then_forgotten(setting: Setting) -> None:
    stages, request = Stages(setting), setting.request(0)
    before = len(setting.index)
    stages.upload(request.documents)
    assert len(setting.index) == before + 1
    assert "upload-0#1" in [one.id for one in stages.search(request.documents[0].text)]
    setting.forget(request)
    assert len(setting.index) == before


def test_too_few_documents_to_upload_are_refused(texts: Material) -> None:
    with (
        pytest.raises(ConfigError, match="too few documents"),
        open_setting(texts, score, FAST, documents=40, upload_words=12, loaded_places=2),
    ):
        pytest.fail("opened")


# What the model says -------------------------------------------------------------------------


def ask(answers: Answers, prompt: str) -> str:
    return answers((Message("user", prompt),))


def test_an_expansion_is_three_different_queries_of_24_words() -> None:
    answers = Answers(tuple(f"passage {number} of many" for number in range(50)))
    text = ask(answers, "Expand.\n\nQuestion: why is it so\nQueries:")
    queries = queries_of(text)
    assert len(set(queries)) == 3
    assert [len(query.split()) for query in queries] == [24, 24, 24]
    assert all(query.startswith("why is it so ") for query in queries)
    assert text == ask(answers, "Expand.\n\nQuestion: why is it so\nQueries:")


def test_no_query_ends_as_an_introduction_to_a_list_does() -> None:
    text = ask(Answers(("get_stack(f, t):",)), "Expand.\n\nQuestion: what is it?\nQueries:")
    assert len(set(queries_of(text))) == 1
    assert read_items(text) == (queries_of(text)[0],)


def test_an_answer_has_45_to_60_words_and_tells_prompts_apart() -> None:
    answers = Answers(("one",))
    said = [ask(answers, f"Question: {number}\nAnswer:") for number in range(40)]
    assert len(set(said)) == 40
    assert {len(one.split()) for one in said} <= set(range(45, 61))


# The bound -----------------------------------------------------------------------------------


def generated(asked: Asked, prompt: int = 100, completion: int = 10) -> Generated:
    return Generated(asked, prompt, completion)


def test_a_lone_generation_takes_its_prefill_and_one_step_for_each_further_token() -> None:
    wanted = step_time_s(H100_LIKE_8B, 0, 0, 100)
    wanted += sum(step_time_s(H100_LIKE_8B, 1, 100 + done, 0) for done in range(1, 10))
    assert device_s(H100_LIKE_8B, [generated("stuff")]) == pytest.approx(wanted)


def test_leaves_share_the_device_and_other_generations_are_a_chain() -> None:
    leaves = [generated("passage") for _ in range(3)]
    combine = generated("combine")
    assert chain_of([*leaves, combine]) == [leaves, [combine]]
    refines = [generated("passage"), generated("refine"), generated("refine")]
    assert chain_of(refines) == [[one] for one in refines]


@pytest.mark.parametrize(
    ("cpu", "found_s"),
    [
        ({"upload": 9.0, "search": 0.3, "rerank": 0.6}, 9.9),
        ({"search": 0.3, "rerank": 0.6}, 0.9),
        ({"search": 0.003, "rerank": 0.006}, None),
    ],
)
def test_the_bound_is_the_longer_of_cores_and_expansion_and_then_the_answer(
    cpu: dict, found_s: float | None
) -> None:
    expansion, answer = generated("expand", completion=72), generated("stuff")
    if found_s is None:
        found_s = device_s(H100_LIKE_8B, [expansion]) + 0.003
    wanted = found_s + device_s(H100_LIKE_8B, [answer])
    assert bound_s(H100_LIKE_8B, Notes(cpu, [expansion, answer])) == pytest.approx(wanted)


def test_requests_arrive_together_and_alike_for_both_arms_of_a_turn() -> None:
    starts_s = arrivals(2.0, 20, 8, turn=0)
    assert [starts_s.count(one) for one in dict.fromkeys(starts_s)] == [8, 8, 4]
    assert starts_s == sorted(starts_s) == arrivals(2.0, 20, 8, turn=0)
    assert starts_s != arrivals(2.0, 20, 8, turn=1)


@pytest.mark.parametrize("turn", range(7))
def test_requests_of_every_run_arrive_at_the_rate(turn: int) -> None:
    assert 80 / arrivals(5.0, 80, 1, turn)[-1] == pytest.approx(5.0, rel=0.1)
    assert 8000 / arrivals(5.0, 8000, 8, turn)[-1] == pytest.approx(5.0, rel=0.01)


def test_the_share_of_scheduling_is_of_processor_time_alone() -> None:
    assert Spent(scheduling_s=0.1, cpu_s=1.0, device_s=3.0).share == pytest.approx(0.1)


def test_variants_are_named_by_what_they_do() -> None:
    assert [one.name for one in VARIANTS][:2] == ["stuff with upload", "tree with upload"]
    assert Variant("refine", upload=False).name == "refine without upload"
