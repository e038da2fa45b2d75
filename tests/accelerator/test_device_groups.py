"""One embedder on several devices, as the requests of an accelerator see it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from accel_harness import opened
from fake_members import FakeMember, plain_vectors

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.engines import (
    DocumentIndex,
    IndexSpec,
)

# What joins.


def near(difference: float) -> Callable[[Sequence[str], str], Any]:
    """Return what computes vectors a little off."""

    def vectors(texts: Sequence[str], role: str) -> Any:
        return plain_vectors(texts, role) + np.float32(difference)

    return vectors


def searching() -> RAGraph:
    graph = RAGraph().add_retrieval("search", top_k=1)
    return graph.add_edge(START, "search").add_edge("search", END)


def explained(*members: FakeMember, **options: Any) -> str:
    """Return what is said of a group's members."""
    index = DocumentIndex(IndexSpec(8))
    with opened(embedder=list(members), index=index, **options) as acc:
        return acc.explain(searching())


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (lambda texts, role: plain_vectors(texts, role)[:, :4], "wrong dimension: 4, not 8"),
        (lambda texts, role: plain_vectors(texts, role) * np.nan, "not finite"),
        (lambda texts, role: plain_vectors(texts, role)[:-1], "wrong number of vectors"),
        (lambda texts, role: plain_vectors([text + "!" for text in texts], role), "other vectors"),
        (near(1e-4), "other vectors"),
        (lambda texts, role: 1 / 0, "it raised ZeroDivisionError"),
    ],
)
def test_a_member_with_other_vectors_stays_out_and_the_reason_is_said(
    vectors: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = FakeMember("other", vectors=vectors)
    with caplog.at_level(logging.WARNING, "rag_accel.engines"):
        text = explained(FakeMember("first"), other)
    assert "other: stays out: " in text
    assert reason in text
    assert reason in caplog.text
    assert other.is_closed


def test_a_looser_member_joins_where_the_user_allows_it_and_its_fidelity_is_said() -> None:
    text = explained(
        FakeMember("first"), FakeMember("near", vectors=near(1e-4)), member_tolerance=1e-3
    )
    assert "first: the first member" in text
    assert "near: near vectors on the probes: largest difference 0.0001, " in text
    assert "equal top 5" in text


def test_equal_members_join_by_themselves() -> None:
    text = explained(FakeMember("first"), FakeMember("second"))
    assert "second: equal vectors on all probes" in text


def test_reproducible_keeps_one_member() -> None:
    text = explained(FakeMember("first"), FakeMember("second"), reproducible=True)
    assert "second: stays out: reproducible: one member computes all vectors" in text


def test_a_first_member_that_cannot_embed_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the first member of a device group cannot embed"):
        Accelerator(embedder=[FakeMember("a", vectors=lambda texts, role: None), FakeMember("b")])


def test_an_empty_list_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no member"):
        Accelerator(embedder=[])


def test_what_embeds_nothing_cannot_be_listed() -> None:
    with pytest.raises(ConfigError, match="cannot be a member"):
        Accelerator(embedder=[FakeMember("a"), len])


def test_members_of_one_name_are_told_apart() -> None:
    text = explained(FakeMember("cpu"), FakeMember("cpu"))
    assert "cpu-2: equal vectors" in text
