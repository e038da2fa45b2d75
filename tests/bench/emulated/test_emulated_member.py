"""A member of published lines: the time it takes, its vectors and its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors

from bench.emulated.member import EmulatedMember
from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.testing import ManualClock

TEXTS = ("one", "two words", "three words here")


def table(*texts: str) -> dict[str, Any]:
    return dict(zip(texts, plain_vectors(texts, "query").tolist(), strict=True))


def test_a_step_takes_what_its_line_says() -> None:
    slept: list[float] = []
    member = EmulatedMember(table(*TEXTS), 0.0179, 0.27, sleep=slept.append)
    found = member.embed(TEXTS, "query", 0)
    assert slept == [pytest.approx(0.27 + 3 * 0.0179)]
    np.testing.assert_array_equal(found, plain_vectors(TEXTS, "query"))


def test_it_joins_a_group_whose_line_is_its_own() -> None:
    clock = ManualClock()
    emulated = EmulatedMember(
        lambda texts: plain_vectors(texts, "query"), 0.0, 0.5, "v100", sleep=clock.advance
    )
    group = DeviceGroup([FakeMember("here"), emulated], clock=clock)
    try:
        assert group.describe_parts()[1] == "emulated-v100: equal vectors on all probes"
        work = EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, TextBatch(TEXTS))
        group.submit([work])
        (output,) = group.step(StepBudget(10.0))
    finally:
        group.close()
    np.testing.assert_array_equal(output.value, plain_vectors(TEXTS, "query"))


def test_a_text_without_a_vector_is_an_error_that_names_it() -> None:
    member = EmulatedMember(table("known"), 0.0, 0.0)
    with pytest.raises(EngineOutputError, match="'unknown'"):
        member.embed(["known", "unknown"], "query", 0)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"seconds_per_text": -1.0}, "seconds_per_text"),
        ({"fixed_s": float("nan")}, "fixed_s"),
        ({"max_texts": 0}, "max_texts"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tokens_per_text": 0.0}, "tokens_per_text"),
        ({"vectors": {"a": [1.0], "b": [1.0, 2.0]}}, "vectors"),
        ({"vectors": {}}, "vectors"),
    ],
)
def test_a_line_or_table_that_makes_no_sense_is_refused(options: Any, where: str) -> None:
    given = {"vectors": table("x"), "seconds_per_text": 0.0, "fixed_s": 0.0, **options}
    with pytest.raises(ConfigError, match=where):
        EmulatedMember(**given)
