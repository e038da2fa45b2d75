"""Servers that become another model between two comparisons: probes among the texts of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from embeddings_server import EmbeddingsServer, vector_of
from returning_groups import ended, group, request, served_vectors, state_of

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine, EngineMember, MemberLimits, RemoteMember
from rag_accel.engines.devices.fidelity import probe_texts
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.testing import ManualClock
from rag_accel.testing.members import FakeMember

EVERY = 64
SLOW = MemberLimits(first_pause_s=60.0, longest_pause_s=60.0)


def other(text: str) -> list[float]:
    return vector_of(text + "!")


@contextmanager
def served(
    limits: MemberLimits = SLOW, max_texts: int = 128
) -> Iterator[tuple[EmbeddingsServer, DeviceGroup]]:
    """Open a group of a server, preferred, and a member here; no time passes."""
    here = FakeMember("here", vectors=served_vectors)
    with EmbeddingsServer() as server:
        remote = RemoteMember(server.base_url, "m", max_texts=max_texts)
        with group(remote, here, slo_s=60.0, limits=limits, clock=ManualClock()) as engine:
            server.calls.clear()
            yield server, engine


def texts_of(server: EmbeddingsServer) -> list[str]:
    return [text for call in server.calls for text in call]


def is_right(found: np.ndarray, *texts: str) -> bool:
    return bool(np.array_equal(found, served_vectors(texts, "query")))


@pytest.mark.parametrize("size", [1, 5, 30])
def test_a_probe_is_among_64_texts_and_nobody_sees_its_vector(size: int) -> None:
    with served() as (server, engine):
        for number in range(600 // size):
            texts = [f"{number} {at}" for at in range(size)]
            found = ended(engine, request(f"w{number}", *texts))
            assert is_right(found, *texts)
        sent = texts_of(server)
    probes = [text for text in sent if text in probe_texts()]
    assert 0.005 < len(probes) / (len(sent) - len(probes)) < 0.02
    assert len(set(probes)) > 1


def test_a_change_without_a_notice_is_found_within_64_texts() -> None:
    with served() as (server, engine):
        for number in range(10):
            ended(engine, request(f"before {number}"))
        server.vector = other
        wrong = 0
        while state_of(engine, "remote").is_ready:
            wrong += not is_right(ended(engine, request(f"w{wrong}")), f"text w{wrong}")
            assert wrong <= EVERY
        assert "another model" in state_of(engine, "remote").why
        assert 0 < wrong <= EVERY - 10
        assert is_right(ended(engine, request("after")), "text after")


def test_calls_without_room_for_a_probe_are_compared_beforehand() -> None:
    with served(max_texts=4) as (server, engine):
        number = 0
        server.vector = other
        while state_of(engine, "remote").is_ready:
            texts = [f"{number} {at}" for at in range(4)]
            ended(engine, request(f"w{number}", *texts))
            number += 1
            assert number <= 16 * EVERY / 4 + 1
        assert is_right(ended(engine, request("after")), "text after")


def test_how_often_can_be_chosen() -> None:
    with served(MemberLimits(60.0, 60.0, compare_every_texts=0)) as (server, engine):
        server.vector = other
        assert is_right(ended(engine, request("w")), "text w")
    with served(MemberLimits(60.0, 60.0, compare_every_texts=1e9)) as (server, engine):
        for number in range(2 * EVERY):
            ended(engine, request(f"w{number}"))
        assert not set(texts_of(server)) & set(probe_texts())


def test_a_member_of_this_process_holds_no_probes_among_its_texts() -> None:
    member = FakeMember("here")
    with group(member) as engine:
        for number in range(2 * EVERY):
            ended(engine, request(f"w{number}"))
        assert not {text for call in member.calls for text in call} & set(probe_texts())


def kept(id: str, text: str) -> EngineRequest:
    payload = TextBatch((text,), "document", keep=True)
    return EngineRequest(WorkId(id), id, PrimitiveKind.EMBEDDING, payload)


def test_kept_vectors_are_forgotten_when_one_that_gave_some_is_another_model() -> None:
    def computed(texts: list[str]) -> np.ndarray:
        if is_failing:
            raise ConnectionError("not now")
        return served_vectors(texts, "document")

    is_failing = False
    engine = CallableEmbeddingEngine(computed, pure=True, kept_bytes=1 << 20)
    first = EngineMember(engine, "here")
    with EmbeddingsServer() as server:
        remote = RemoteMember(server.base_url, "m")
        with group(first, remote, limits=SLOW, slo_s=60.0) as both:
            is_failing = True  # so that the server computes
            server.vector = other
            known = kept("a", "known")
            assert not is_right(ended(both, known), "known")
            assert both.counts["kept_vector_bytes"] > 0
            server.answers_as = "n"
            ended(both, kept("b", "new"))
            assert both.counts["kept_vector_bytes"] == 0
