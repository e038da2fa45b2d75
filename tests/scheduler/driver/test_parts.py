"""Work that is handed over in parts ends as if it had been handed over as a whole."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from driver_harness import EMBEDDING, PATIENCE_S, Gate, LeafCall, Rig, held_back

from rag_accel.engine_api import (
    Capability,
    Document,
    LatencyModel,
    PrimitiveKind,
    RerankBatch,
    TextBatch,
)
from rag_accel.engines.batching import BatchLimits
from rag_accel.engines.embedding.encoder_engine import EmbeddingEngine, embedding_profile
from rag_accel.errors import EngineError, EngineOutputError
from rag_accel.requests.kinds import check_output
from rag_accel.scheduler.messages import LeafArrived, NodeCancelled, NodeKey, NodeSpec
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults, compute, vector_of

#: an item takes 10 ms, so that a budget of 45 ms holds four
ITEMS = replace(
    FAKE_PROFILE,
    max_batch=8,
    latency=LatencyModel(per_item_s=0.01),
    capabilities=frozenset({Capability.ITEMWISE}),
)
SLICES = {"slice_min_s": 0.045, "slice_max_s": 0.045, "batch_wait_s": 0.0}
TEXTS = tuple(f"chunk {n}" for n in range(20))
VECTORS = [vector_of(text) for text in TEXTS]


def itemwise(**parts: Any) -> FakeEngine:
    return FakeEngine(ITEMS, **parts)


def large(rig: Rig, payload: Any, size: int, kind: PrimitiveKind = EMBEDDING) -> LeafCall:
    """Submit a leaf of so many items."""
    rid = rig.driver.new_request()
    call = LeafCall(NodeKey(rid, "leaf"), payload)
    build = call.request
    call.request = lambda node: replace(build(node), kind=kind)  # type: ignore[method-assign]
    event = LeafArrived(rid, NodeSpec("leaf", rig.e, kind, size=size), rig.driver.now())
    rig.driver.submit(event, call)
    return call


def sizes(engine: FakeEngine) -> list[list[int]]:
    """Return how many texts each work of each step had."""
    return [[len(request.payload.texts) for request in step] for step in engine.served]


def test_an_upload_larger_than_any_batch_gets_the_vectors_of_its_texts_in_order() -> None:
    with Rig(itemwise(), check=check_output, **SLICES) as rig:
        value = large(rig, TextBatch(TEXTS, "document"), len(TEXTS)).value()
        np.testing.assert_array_equal(value, VECTORS)
        assert sizes(rig.engine) == [[7], [7], [6]]
        roles = {request.payload.role for step in rig.engine.served for request in step}
        assert roles == {"document"}


def test_a_query_beside_an_upload_is_in_the_next_step_and_done_before_it() -> None:
    gate = Gate()
    engine = itemwise(compute=gate)
    with Rig(engine, **SLICES) as rig, held_back(gate):
        upload = large(rig, TextBatch(TEXTS), len(TEXTS))
        gate.wait_until_entered()
        query = rig.leaf("query")
        rig.settle()
        gate.open()
        np.testing.assert_array_equal(query.value(), [vector_of("query")])
        np.testing.assert_array_equal(upload.value(), VECTORS)
    assert [1 in step for step in sizes(engine)].index(True) == 1
    assert len(engine.served) > 2


def test_a_ranking_in_parts_equals_the_whole_and_keeps_the_best_only() -> None:
    documents = tuple(Document(f"d{n}", "word " * (n % 3) + f"w{n % 5}") for n in range(20))
    payload = RerankBatch("word w1 w2", documents, 9)
    with Rig(itemwise(), check=check_output, **SLICES) as rig:
        value = large(rig, payload, len(documents), PrimitiveKind.RERANKING).value()
        assert value == compute(payload)
        assert len(rig.engine.served) == 3


@pytest.mark.parametrize(("size", "steps"), [(9, 2), (50, 3)])
def test_a_size_that_was_guessed_wrong_loses_no_text(size: int, steps: int) -> None:
    with Rig(itemwise(), **SLICES) as rig:
        np.testing.assert_array_equal(large(rig, TextBatch(TEXTS), size).value(), VECTORS)
        texts = [text for step in rig.engine.served for one in step for text in one.payload.texts]
        assert tuple(texts) == TEXTS
        assert len(rig.engine.served) >= steps


def test_a_part_that_fails_ends_its_caller_with_the_same_error_and_nothing_follows() -> None:
    error = LookupError("no such text")
    faults = Faults(lambda request: error if "chunk 8" in request.payload.texts else None)
    with Rig(itemwise(faults=faults), **SLICES) as rig:
        with pytest.raises(LookupError) as caught:
            large(rig, TextBatch(TEXTS), len(TEXTS)).value()
        assert caught.value is error
        assert len(rig.engine.served) == 2
        rig.become_idle()


def test_a_part_with_too_few_vectors_is_refused() -> None:
    faults = Faults(lambda request: "short" if "chunk 8" in request.payload.texts else None)
    engine = itemwise(faults=faults)
    with (
        Rig(engine, check=check_output, **SLICES) as rig,
        pytest.raises(EngineOutputError, match="cannot be right"),
    ):
        large(rig, TextBatch(TEXTS), len(TEXTS)).value()


def test_parts_that_do_not_fit_together_fail_their_caller_only() -> None:
    def uneven(payload: Any) -> Any:
        vectors = compute(payload)
        return vectors[:, :3] if "chunk 8" in payload.texts else vectors

    with Rig(itemwise(compute=uneven), **SLICES) as rig:
        with pytest.raises(ValueError, match="dimension"):
            large(rig, TextBatch(TEXTS), len(TEXTS)).value()
        rig.leaf("next").value()
        assert rig.driver.internal_errors == 0


def test_a_part_alone_in_a_step_that_raises_fails_its_caller() -> None:
    with Rig(itemwise(faults=Faults(every_nth_step=2)), **SLICES) as rig:
        with pytest.raises(EngineError, match="scripted fault"):
            large(rig, TextBatch(TEXTS), len(TEXTS)).value()
        rig.become_idle()


def test_a_payload_without_items_is_told_to_the_engine_as_a_whole() -> None:
    with Rig(itemwise(), **SLICES) as rig:
        assert large(rig, ("not", "a batch"), 20).value() == ("not", "a batch")
        assert len(rig.engine.served) == 1


def test_what_is_cancelled_between_two_parts_is_forgotten() -> None:
    gate = Gate()
    engine = itemwise(compute=gate)
    with Rig(engine, **SLICES) as rig, held_back(gate):
        upload = large(rig, TextBatch(TEXTS), len(TEXTS))
        gate.wait_until_entered()
        rig.driver.post(NodeCancelled(upload.key))
        rig.settle()
        gate.open()
        assert upload.outcome == "cancelled"
        rig.become_idle()
        rig.leaf("next").value()
        worker: Any = rig.driver._handler.workers[rig.e]  # type: ignore[attr-defined]
        assert not len(worker._parted)
        assert sizes(engine) == [[7], [1]]


class Turnstile:
    """Embed a text as its vector, one call for each turn that somebody gives."""

    def __init__(self) -> None:
        self._turns = threading.Semaphore(0)
        self._calls = threading.Semaphore(0)

    def give(self, turns: int) -> None:
        self._turns.release(turns)

    def wait_for_a_call(self) -> None:
        assert self._calls.acquire(timeout=PATIENCE_S), "nobody called"

    def compute(self, texts: list[str]) -> Any:
        self._calls.release()
        assert self._turns.acquire(timeout=PATIENCE_S), "nobody gave a turn"
        return list(map(vector_of, texts))

    def same_batch(self, role: Any) -> Any:
        return role

    def dimension(self, role: Any) -> int | None:
        return None

    def estimate(self, text: str) -> int:
        return 1

    def prepare(self, texts: Any, role: Any) -> Any:
        turnstile = self

        class Prepared:
            lengths = [1] * len(texts)
            overlaps = False

            def start(self, rows: Any, threads: int) -> Any:
                return partial(turnstile.compute, [texts[row] for row in rows])

        return Prepared()


def test_a_short_embedding_overtakes_the_rest_of_a_long_upload_at_a_border() -> None:
    turnstile = Turnstile()
    profile = embedding_profile(8, 1, LatencyModel(per_item_s=0.01), pure=False)
    profile = replace(profile, capabilities=profile.capabilities | {Capability.ITEMWISE})
    engine = EmbeddingEngine(turnstile, profile, BatchLimits(batch=64, padding=0, step=64))
    with Rig(engine, **SLICES) as rig:
        upload = large(rig, TextBatch(TEXTS, "document"), len(TEXTS))
        turnstile.wait_for_a_call()
        query = rig.leaf(TextBatch(("query",), "query"))
        rig.settle()
        turnstile.give(3)  # the first part, the second, and the query beside it
        np.testing.assert_array_equal(query.value(), [vector_of("query")])
        assert not upload.over.is_set()  # three more parts have no turn yet
        turnstile.give(len(TEXTS))
        np.testing.assert_array_equal(upload.value(), VECTORS)
