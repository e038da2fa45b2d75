"""What holds for every embedding engine, shown with tiny functions in place of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.engines.embedding.encoder_engine import EmbeddingEngine
from rag_accel.errors import EngineError, EngineOutputError
from rag_accel.testing import EngineContract, ManualClock


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 997), 1.0]


def embed(texts: list[str]) -> list[list[float]]:
    return [vector_of(text) for text in texts]


def work(name: str, payload: Any) -> EngineRequest:
    return EngineRequest(WorkId(name), name, PrimitiveKind.EMBEDDING, payload)


def texts(name: str, *items: Any, role: Any = "query") -> EngineRequest:
    return work(name, TextBatch(items, role))


def run(engine: Engine, requests: Sequence[EngineRequest]) -> dict[str, EngineOutput]:
    engine.submit(requests)
    outputs: dict[str, EngineOutput] = {}
    while len(outputs) < len(requests):
        for output in engine.step(StepBudget()):
            assert output.id not in outputs
            outputs[output.id] = output
    return outputs


class Calls:
    """Record the texts of each call; optionally spoil some of them."""

    def __init__(self, spoil: dict[str, Any] | None = None) -> None:
        self.calls: list[list[str]] = []
        self.spoil = spoil or {}

    def __call__(self, given: list[str]) -> list[Any]:
        self.calls.append(given)
        for text in given:
            if isinstance(self.spoil.get(text), Exception):
                raise self.spoil[text]
        return [self.spoil.get(text, vector_of(text)) for text in given]


class TestContract(EngineContract):
    def make_engine(self) -> EmbeddingEngine:
        return CallableEmbeddingEngine(embed, pure=True)

    def make_request(self, number: int) -> EngineRequest:
        return texts(f"w{number}", f"text {number}", "x" * number)

    def make_bad_request(self) -> EngineRequest:
        return texts("bad", "good", 7)


mixes = st.lists(
    st.tuples(
        st.lists(st.text(max_size=30), max_size=9),
        st.sampled_from(["query", "document"]),
    ),
    min_size=1,
    max_size=8,
)


@given(mix=mixes, max_batch=st.integers(1, 7))
def test_each_text_gets_its_own_vector_in_any_mix_of_requests(mix: Any, max_batch: int) -> None:
    engine = CallableEmbeddingEngine(
        embed, lambda given: [[-x for x in row] for row in embed(given)], max_batch=max_batch
    )
    requests = [texts(f"w{i}", *items, role=role) for i, (items, role) in enumerate(mix)]
    outputs = run(engine, requests)
    for i, (items, role) in enumerate(mix):
        sign = 1.0 if role == "query" else -1.0
        expected = [[sign * x for x in vector_of(text)] for text in items]
        assert outputs[f"w{i}"].value.tolist() == expected


def test_roles_share_a_call_only_where_they_share_a_function() -> None:
    queries, documents = Calls(), Calls()
    requests = [texts("a", "1"), texts("b", "2", role="document")]
    run(CallableEmbeddingEngine(queries, documents), requests)
    assert (queries.calls, documents.calls) == ([["1"]], [["2"]])
    shared = Calls()
    run(CallableEmbeddingEngine(shared), requests)
    assert len(shared.calls) == 1


def test_no_call_has_more_texts_than_the_batch_limit() -> None:
    calls = Calls()
    run(CallableEmbeddingEngine(calls, max_batch=4), [texts("a", *"abcdefghij")])
    assert max(map(len, calls.calls)) == 4


@pytest.mark.parametrize(
    "bad",
    [
        [float("nan"), 1.0, 1.0],
        [1.0, float("inf"), 1.0],
        [1e300, 1.0, 1.0],
        [1.0, 2.0],
        [],
        None,
        "words",
        [[1.0, 2.0, 3.0]],
    ],
)
def test_a_bad_vector_is_an_output_error_for_its_own_work_only(bad: Any) -> None:
    engine = CallableEmbeddingEngine(Calls({"bad": bad}))
    outputs = run(engine, [texts("a", "one", "two"), texts("b", "x", "bad"), texts("c", "three")])
    assert isinstance(outputs["b"].error, EngineOutputError)
    assert "text 1 of b" in str(outputs["b"].error)
    np.testing.assert_array_equal(outputs["a"].value, np.array(embed(["one", "two"])))
    np.testing.assert_array_equal(outputs["c"].value, np.array(embed(["three"])))


def test_two_bad_vectors_of_one_work_make_one_error() -> None:
    engine = CallableEmbeddingEngine(Calls({"x": [1.0], "y": [1.0]}), dimension=3)
    engine.submit([texts("a", "x", "y")])
    assert [output.kind for output in engine.step(StepBudget())] == ["error"]


def test_a_text_that_makes_the_function_raise_fails_its_own_work_with_that_exception() -> None:
    fault = LookupError("no such text")
    outputs = run(
        CallableEmbeddingEngine(Calls({"bad": fault})),
        [texts("a", "one"), texts("b", "bad"), texts("c", "two")],
    )
    assert outputs["b"].error is fault
    assert [outputs[name].kind for name in "ac"] == ["final", "final"]


def test_a_lone_failing_request_is_not_tried_twice() -> None:
    calls = Calls({"bad": LookupError("no")})
    run(CallableEmbeddingEngine(calls), [texts("a", "bad", "good")])
    assert len(calls.calls) == 1


@pytest.mark.parametrize("wrong", [lambda given: [[1.0]] * (len(given) + 1), lambda given: 5])
def test_a_wrong_number_of_vectors_is_an_output_error(wrong: Any) -> None:
    outputs = run(CallableEmbeddingEngine(wrong), [texts("a", "one")])
    assert isinstance(outputs["a"].error, EngineOutputError)


def test_a_known_dimension_rejects_the_first_vector_that_differs() -> None:
    outputs = run(CallableEmbeddingEngine(embed, dimension=4), [texts("a", "one")])
    assert "found 3; valid: 4" in str(outputs["a"].error)


def test_an_unknown_dimension_is_what_most_vectors_of_the_first_call_have() -> None:
    engine = CallableEmbeddingEngine(Calls({"odd": [1.0]}))
    outputs = run(engine, [texts("a", "odd"), texts("b", "one"), texts("c", "two")])
    assert [outputs[name].kind for name in "abc"] == ["error", "final", "final"]


@pytest.mark.parametrize("payload", [RerankBatch("q", ()), "text", None])
def test_a_foreign_payload_is_an_error_that_names_what_is_valid(payload: Any) -> None:
    outputs = run(CallableEmbeddingEngine(embed), [work("a", payload), texts("b", "one")])
    assert isinstance(outputs["a"].error, EngineError)
    assert "TextBatch" in str(outputs["a"].error)
    assert outputs["b"].kind == "final"


@pytest.mark.parametrize("bad", [None, 3, b"bytes", ["list"], ("a", "pair")])
def test_an_item_that_is_no_string_is_an_error_for_its_own_work_only(bad: Any) -> None:
    outputs = run(CallableEmbeddingEngine(embed), [texts("a", "one", bad), texts("b", "two")])
    assert "text 1" in str(outputs["a"].error)
    assert outputs["b"].kind == "final"


def test_no_texts_give_no_rows_of_the_known_dimension_without_a_call() -> None:
    calls = Calls()
    engine = CallableEmbeddingEngine(calls, dimension=3)
    value = run(engine, [texts("a")])["a"].value
    assert (value.shape, value.dtype, calls.calls) == ((0, 3), np.float32, [])


def test_a_small_request_ends_in_the_step_it_joins_beside_a_bulk_load() -> None:
    engine = CallableEmbeddingEngine(embed, max_batch=2)
    engine.submit([texts("bulk", *(f"t{i}" for i in range(100)))])
    assert engine.step(StepBudget()) == []
    engine.submit([texts("query", "one")])
    assert [output.id for output in engine.step(StepBudget())] == ["query"]


def test_a_step_past_its_time_starts_no_further_call_and_loses_nothing() -> None:
    clock = ManualClock()
    calls = Calls()

    def slow(given: list[str]) -> list[Any]:
        clock.advance(1.0)
        return calls(given)

    engine = CallableEmbeddingEngine(slow, max_batch=2, clock=clock)
    engine.submit([texts("a", *"abcdefgh")])
    assert engine.step(StepBudget(time_s=0.0)) == []
    assert len(calls.calls) == 1
    assert engine.step(StepBudget(time_s=1.5)) == []
    assert len(calls.calls) == 3
    (output,) = engine.step(StepBudget())
    assert sorted(text for call in calls.calls for text in call) == list("abcdefgh")
    np.testing.assert_array_equal(output.value, np.array(embed(list("abcdefgh"))))


def test_a_cancelled_bulk_load_is_not_computed_further() -> None:
    calls = Calls()
    engine = CallableEmbeddingEngine(calls, max_batch=2)
    engine.submit([texts("bulk", *(f"t{i}" for i in range(100)))])
    engine.step(StepBudget())
    before = len(calls.calls)
    engine.cancel([WorkId("bulk")])
    assert engine.step(StepBudget()) == []
    assert len(calls.calls) == before


def test_a_users_function_is_neither_shared_nor_run_on_a_guess_unless_told_so() -> None:
    profile = CallableEmbeddingEngine(embed).profile
    assert not profile.pure
    assert CallableEmbeddingEngine(embed, pure=True).profile.pure
