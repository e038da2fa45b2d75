"""A group keeps vectors of texts as a single engine does, whichever member computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_members import FakeMember, plain_vectors

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.members import EngineMember
from rag_accel.engines.embedding.vector_cache import VectorCache, kept_in_front


class Counted:
    """Vectors of texts, and the texts that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> Any:
        self.asked += texts
        return plain_vectors(texts, "document")


def ended(
    engine: Any, texts: Sequence[str], role: Any = "document", keep: bool = True, tenant: str = ""
) -> np.ndarray:
    batch = TextBatch(tuple(texts), role, keep=keep)
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, batch, tenant)])
    for _ in range(100):
        for output in engine.step(StepBudget(10.0)):
            assert output.error is None
            return output.value
    raise AssertionError("it did not end")


def pair(counted: Counted, kept_bytes: int = 1 << 20) -> DeviceGroup:
    """Return a group of two engines over one function, which has embedded nothing but probes."""
    engines = [CallableEmbeddingEngine(counted, pure=True, kept_bytes=kept_bytes) for _ in range(2)]
    group = DeviceGroup([EngineMember(one, f"m{at}") for at, one in enumerate(engines)])
    counted.asked.clear()
    return group


PATHS = tuple(f"a -> r{number} -> b" for number in range(20))


@pytest.mark.parametrize(
    "make", [pair, lambda counted: CallableEmbeddingEngine(counted, pure=True)]
)
def test_ten_questions_over_twenty_known_paths_embed_as_many_texts_as_with_one_engine(
    make: Callable[[Counted], Any],
) -> None:
    counted = Counted()
    engine = make(counted)
    ended(engine, PATHS)
    counted.asked.clear()
    for number in range(10):
        ended(engine, (f"question {number}",), "query", keep=False)
        found = ended(engine, PATHS)
        np.testing.assert_array_equal(found, plain_vectors(PATHS, "document"))
    assert counted.asked == [f"question {number}" for number in range(10)]
    assert engine.counts["kept_vector_hits"] == 200
    engine.close()


@pytest.mark.parametrize("other", [{"tenant": "another"}, {"role": "query"}])
def test_tenants_and_roles_share_no_vectors(other: dict[str, Any]) -> None:
    counted = Counted()
    group = pair(counted)
    ended(group, ("a",))
    ended(group, ("a",), **other)
    assert counted.asked == ["a", "a"]
    group.close()


def test_a_group_whose_first_member_keeps_nothing_keeps_nothing() -> None:
    member = FakeMember()
    group = DeviceGroup([member])
    member.calls.clear()
    for _ in range(2):
        ended(group, ("a",))
    assert member.calls == [["a"], ["a"]]
    assert "kept_vector_hits" not in group.counts
    group.close()


def test_vectors_are_forgotten_when_the_model_of_any_member_changes() -> None:
    is_same = {"first": True, "second": True}
    memories = [VectorCache(100, lambda name=name: lambda: is_same[name]) for name in is_same]
    kept = kept_in_front([*memories, None])
    assert kept is not None
    kept.max_bytes = 1 << 20
    for changed in is_same:
        kept.keep(kept.look_up_texts("", "document", ["a"]), [np.ones(2, np.float32)])
        assert kept.look_up_texts("", "document", ["a"]).missing == ()
        is_same[changed] = False
        assert kept.look_up_texts("", "document", ["a"]).missing == (0,)
        is_same[changed] = True
