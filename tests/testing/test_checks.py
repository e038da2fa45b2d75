"""Results are compared deeply, with a tolerance for numbers only."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import Document, EngineOutput, GenerationOutput, ScoredDocument, WorkId
from rag_accel.testing.checks import check, final_value, results_equal, skip
from rag_accel.testing.runner import EngineRunner

HIT = ScoredDocument(Document("1", "text", {"year": 2024}), 0.5)
NEAR = ScoredDocument(Document("1", "text", {"year": 2024}), 0.5 + 1e-7)
FAR = ScoredDocument(Document("1", "text", {"year": 2024}), 0.6)
VECTOR = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (VECTOR, VECTOR + 1e-7),
        (np.array(["a"]), np.array(["a"])),
        ((HIT, HIT), (NEAR, HIT)),
        ({"a": [0.1]}, {"a": [0.1 + 1e-8]}),
        (float("nan"), float("nan")),
        (GenerationOutput("a"), GenerationOutput("a")),
        (None, None),
    ],
)
def test_results_that_differ_by_rounding_are_equal(left: Any, right: Any) -> None:
    assert results_equal(left, right, 1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (VECTOR, VECTOR * 1.1),
        (VECTOR, VECTOR[:2]),
        (VECTOR, VECTOR.astype(np.float64)),
        (VECTOR, None),
        (np.array(["a"]), np.array(["b"])),
        ((HIT,), (FAR,)),
        ((HIT,), (HIT, HIT)),
        ((HIT,), [HIT]),
        ({"a": 1}, {"b": 1}),
        (GenerationOutput("a"), GenerationOutput("b")),
        (1, 1.0),
        (float("nan"), 1.0),
    ],
)
def test_results_that_differ_otherwise_are_not(left: Any, right: Any) -> None:
    assert not results_equal(left, right, 1e-5)


def test_a_check_raises_its_message_only_if_it_fails() -> None:
    check(True, "fine")
    with pytest.raises(AssertionError, match="broken"):
        check(False, "broken")


def test_a_skip_is_the_exception_that_test_frameworks_know() -> None:
    with pytest.raises(unittest.SkipTest, match="no handles"):
        skip("no handles")


def test_the_value_of_work_that_failed_is_not_given_out(make_text_request: Any) -> None:
    request = make_text_request(0)
    failed = EngineOutput(WorkId(request.id), "error", error=ValueError("bad payload"))
    with pytest.raises(AssertionError, match="bad payload"):
        final_value([failed], request)


def test_a_call_that_hangs_is_reported_by_name(hanging_engine: Any) -> None:
    with (
        pytest.raises(AssertionError, match=r"step\(\) did not return"),
        EngineRunner(hanging_engine, timeout_s=0.05) as runner,
    ):
        runner.step()
