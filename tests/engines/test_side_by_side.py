"""Where torch has one thread a call, calls for different requests compute at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

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
from rag_accel.engines import helper_threads
from rag_accel.engines.batching import BatchLimits, micro_batches, shared_limits
from rag_accel.engines.embedding.encoder_engine import EmbeddingEngine, embedding_profile
from rag_accel.engines.embedding.prepared_texts import EncodedTexts
from rag_accel.engines.helper_threads import HelperThreads, default_parallel, describe_parallel
from rag_accel.engines.pending import Slot
from rag_accel.engines.rerank.engine import Pair, RerankEngine, parts_by_work
from rag_accel.errors import ConfigError
from rag_accel.testing import EngineContract

#: a bound against hangs
PATIENCE_S = 20.0
MEET_A, MEET_B = "meet" + 60 * "a", "meet" + 60 * "b"
LIMITS = BatchLimits(batch=64, padding=8, step=256)


class Model:
    """Numbers of texts, and calls that wait where a text says so.

    A call with a text that begins with ``meet`` waits until another call has one, with ``hold``
    until it is let go; it fails if that never comes.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.threads: list[str] = []
        self.most = 0
        self.held, self.let_go = threading.Event(), threading.Event()
        self._meeting = threading.Barrier(2)
        self._lock = threading.Lock()
        self._running = 0

    def numbers(self, texts: Sequence[str]) -> list[float]:
        with self._lock:
            self.calls.append(list(texts))
            self.threads.append(threading.current_thread().name)
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            if any(text.startswith("meet") for text in texts):
                self._meeting.wait(PATIENCE_S)
            if "hold" in texts:
                self.held.set()
                assert self.let_go.wait(PATIENCE_S)
            if "bad" in texts:
                raise ValueError("bad")
            return [float(sum(map(ord, text))) for text in texts]
        finally:
            with self._lock:
                self._running -= 1

    def score(self, pairs: list[Pair]) -> list[float]:
        return self.numbers([text for _, text in pairs])

    # an encoder, too
    def encode(self, texts: Sequence[str], **kwargs: Any) -> Any:
        return np.array([[number, 1.0] for number in self.numbers(texts)], dtype=np.float32)

    def same_batch(self, role: Any) -> Any:
        return role

    def dimension(self, role: Any) -> int:
        return 2

    def estimate(self, text: str) -> int:
        return len(text)

    def prepare(self, texts: Sequence[str], role: Any) -> Any:
        return EncodedTexts(self, texts, {}, [len(text) for text in texts])


Make = Callable[..., Any]


def reranker(model: Model, parallel: int = 2) -> RerankEngine:
    return RerankEngine(model.score, parallel=parallel, limits=LIMITS, pure=True)


def embedder(model: Model, parallel: int = 2) -> EmbeddingEngine:
    profile = embedding_profile(64, parallel, RerankEngine(model.score).profile.latency, pure=True)
    return EmbeddingEngine(model, profile, LIMITS, parallel=parallel)


@pytest.fixture(params=[reranker, embedder])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def work(engine: Any, name: str, *texts: str) -> EngineRequest:
    if isinstance(engine, EmbeddingEngine):
        return EngineRequest(
            WorkId(name), name, PrimitiveKind.EMBEDDING, TextBatch(texts, "document")
        )
    documents = tuple(Document(str(at), text) for at, text in enumerate(texts))
    return EngineRequest(
        WorkId(name), name, PrimitiveKind.RERANKING, RerankBatch("query", documents)
    )


def numbers(output: EngineOutput) -> list[float]:
    if isinstance(output.value, np.ndarray):
        return output.value[:, 0].tolist()
    scores = {int(one.document.id): one.score for one in output.value}
    return [scores[at] for at in range(len(scores))]


def ended(engine: Any, count: int, threads: int = 2) -> dict[str, EngineOutput]:
    outputs: dict[str, EngineOutput] = {}
    while len(outputs) < count:
        for output in engine.step(StepBudget(threads=threads)):
            assert output.id not in outputs
            outputs[output.id] = output
    return outputs


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.let_go.set()


def test_two_requests_compute_at_the_same_time(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit([work(engine, "a", MEET_A), work(engine, "b", MEET_B)])
    outputs = ended(engine, 2)
    assert numbers(outputs["a"]) == [float(sum(map(ord, MEET_A)))]
    assert numbers(outputs["b"]) == [float(sum(map(ord, MEET_B)))]


def test_one_request_computes_on_one_thread_as_plainly(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit([work(engine, "a", *(f"text {number:040}" for number in range(12)))])
    assert len(numbers(ended(engine, 1)["a"])) == 12
    assert len(model.calls) > 1
    assert model.most == 1


def test_a_newcomer_does_not_wait_for_the_call_that_runs(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit([work(engine, "slow", "hold")])
    engine.interrupt()
    assert engine.step(StepBudget(threads=2)) == []
    assert model.held.wait(PATIENCE_S)
    engine.submit([work(engine, "quick", "text")])
    assert set(ended(engine, 1)) == {"quick"}
    model.let_go.set()
    assert set(ended(engine, 1)) == {"slow"}


def test_on_a_part_of_the_threads_nothing_computes_after_the_step(make: Make, model: Model) -> None:
    engine = make(model, parallel=3)
    engine.submit([work(engine, "a", MEET_A), work(engine, "b", MEET_B)])
    assert {output.id for output in engine.step(StepBudget(threads=2))} == {"a", "b"}


def test_on_one_thread_the_step_computes_itself(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit([work(engine, "a", "x" * 60), work(engine, "b", "y" * 60)])
    assert set(ended(engine, 2, threads=1)) == {"a", "b"}
    assert set(model.threads) == {threading.current_thread().name}


def test_a_text_that_raises_fails_its_own_request_only(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit(
        [work(engine, name, text) for name, text in (("a", "x"), ("b", "bad"), ("c", "z"))]
    )
    outputs = ended(engine, 3)
    assert (outputs["a"].kind, outputs["b"].kind, outputs["c"].kind) == ("final", "error", "final")
    assert isinstance(outputs["b"].error, ValueError)


def test_cancelled_work_reports_nothing_and_its_neighbour_is_not_computed_twice(
    make: Make, model: Model
) -> None:
    engine = make(model)
    engine.submit([work(engine, "a", "hold"), work(engine, "b", "x")])
    engine.interrupt()
    assert engine.step(StepBudget(threads=2)) == []
    engine.cancel([WorkId("a")])
    model.let_go.set()
    assert set(ended(engine, 1)) == {"b"}
    assert model.calls == [["x", "hold"]]
    assert engine.step(StepBudget(threads=2)) == []


def test_closing_waits_for_the_calls_that_run(make: Make, model: Model) -> None:
    engine = make(model)
    engine.submit([work(engine, "a", "hold")])
    engine.interrupt()
    engine.step(StepBudget(threads=2))
    assert model.held.wait(PATIENCE_S)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert closing.is_alive()
    model.let_go.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert "rag-accel-helper" in model.threads


def test_where_no_thread_can_be_had_the_call_is_computed_anyway(
    make: Make, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pytest.importorskip("torch")  # setting its number of threads takes one, too
    engine = make(model)
    engine.submit([work(engine, "a", "x" * 60), work(engine, "b", "y" * 60)])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert set(ended(engine, 2)) == {"a", "b"}


class TestRerankContract(EngineContract):
    def make_engine(self) -> RerankEngine:
        return reranker(Model())

    def make_request(self, number: int) -> EngineRequest:
        return work(self.make_engine(), f"r{number}", "one", "other", str(number))


class TestEmbeddingContract(EngineContract):
    def make_engine(self) -> EmbeddingEngine:
        return embedder(Model())

    def make_request(self, number: int) -> EngineRequest:
        return work(self.make_engine(), f"e{number}", "one", "other", str(number))


def test_a_scorer_that_batches_itself_gets_whole_requests(model: Model) -> None:
    class Scorer:
        batches_pairs = True

        def __call__(self, pairs: list[Pair]) -> list[float]:
            return model.score(pairs)

    engine = RerankEngine(Scorer(), parallel=2, limits=LIMITS)
    engine.submit([work(engine, "a", "meet", "x"), work(engine, "b", "meet", "y")])
    ended(engine, 2)
    assert sorted(map(sorted, model.calls)) == [["meet", "x"], ["meet", "y"]]


def test_parts_keep_the_slots_of_a_request_together_and_are_even() -> None:
    slots: list[Slot[Pair]] = [
        Slot(WorkId(name), at, ("q", "t"), cost)
        for name, cost in (("a", 5), ("b", 1), ("c", 4), ("d", 2))
        for at in range(3)
    ]
    parts = parts_by_work(slots, 2)
    assert [{slot.work for slot in part} for part in parts] == [{"a", "b"}, {"c", "d"}]
    assert [len(part) for part in parts_by_work(slots, 9)] == [3, 3, 3, 3]
    assert parts_by_work([], 2) == []


def test_texts_of_a_crowd_are_cut_for_all_that_compute_but_not_too_small() -> None:
    lengths = [15] * 16
    assert len(micro_batches(lengths, shared_limits(LIMITS, lengths, 1))) == 4
    limits = BatchLimits(batch=640, padding=48, step=4096)
    assert len(micro_batches(lengths, shared_limits(limits, lengths, 2))) == 2
    assert shared_limits(limits, lengths, 1) is limits
    assert len(micro_batches([5, 5], shared_limits(limits, [5, 5], 2))) == 1
    assert shared_limits(limits, [], 2) is limits


def test_only_one_thread_a_call_makes_calls_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(helper_threads, "usable_cores", lambda: 8)
    assert [default_parallel(threads) for threads in (0, 1, 2, 8)] == [1, 8, 1, 1]
    assert "up to 8 at a time" in describe_parallel(1)
    assert describe_parallel(2) == ""


def test_a_reproducible_or_unknown_scorer_is_called_once_at_a_time(model: Model) -> None:
    for engine in (
        RerankEngine(model.score, parallel=4, reproducible=True),
        RerankEngine(model.score),
        RerankEngine(model.score, max_threads=1),
    ):
        assert engine.profile.max_threads == 1
        assert not engine.profile.interruptible


@pytest.mark.parametrize("parallel", [0, -1, True, 1.5, "2"])
def test_a_bad_number_of_calls_is_named(model: Model, parallel: Any) -> None:
    with pytest.raises(ConfigError, match="parallel"):
        RerankEngine(model.score, parallel=parallel)


def test_what_a_call_raises_is_raised_where_its_result_is_asked_for() -> None:
    def fail() -> None:
        raise SystemExit("asked to")

    call = HelperThreads().start(fail)
    with pytest.raises(SystemExit, match="asked to"):
        call()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set torch to one thread on a machine of two usable cores."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(helper_threads, "usable_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread", "kept_conversions")
@pytest.mark.parametrize("runtime", ["torch", "auto"])
def test_vectors_and_scores_on_one_thread_a_call_are_the_models_own(
    small_model: Any, runtime: Any
) -> None:
    from rag_accel.engines.embedding.compiled_model import wait_until_compiled
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine
    from rag_accel.engines.rerank.max_sim import MaxSimScorer

    texts = [f"{'word ' * (number % 9)}number {number}" for number in range(24)]
    wanted = small_model.encode(texts)
    engine = SentenceTransformerEngine(small_model, runtime=runtime)
    ranking = RerankEngine(MaxSimScorer(small_model, runtime=runtime))
    alone = RerankEngine(MaxSimScorer(small_model, reproducible=True), reproducible=True)
    assert (engine.profile.max_threads, ranking.profile.max_threads) == (2, 2)
    for _ in range(2):
        engine.submit([work(engine, str(at), text) for at, text in enumerate(texts)])
        found = ended(engine, len(texts))
        for at in range(len(texts)):
            assert np.abs(found[str(at)].value[0] - wanted[at]).max() < 1e-6
        work_items = [work(ranking, str(at), *texts[at : at + 4]) for at in range(8)]
        ranking.submit(work_items)
        alone.submit(work_items)
        scores, exact = ended(ranking, 8), ended(alone, 8, threads=1)
        for name, output in scores.items():
            assert np.allclose(numbers(output), numbers(exact[name]), atol=1e-6, rtol=0)
        wait_until_compiled(60)  # the second time, what was compiled runs
    engine.close()
    ranking.close()


@pytest.mark.usefixtures("one_thread")
def test_a_named_number_of_threads_or_a_reproducible_engine_computes_once_at_a_time(
    small_model: Any,
) -> None:
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    options: dict[str, Any]
    for options in ({"max_threads": 1}, {"reproducible": True}):
        engine = SentenceTransformerEngine(small_model, runtime="torch", **options)
        assert engine.profile.max_threads == 1
        assert not engine.profile.interruptible
