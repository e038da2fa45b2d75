"""Servers that become another model between two comparisons: probes among the texts of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
from embeddings_server import DIMENSION, EmbeddingsServer, vector_of
from fake_members import FakeMember
from returning_groups import ended, group, request, served_vectors, state_of

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine, EngineMember, MemberLimits, RemoteMember
from rag_accel.engines.devices.fidelity import probe_texts
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.testing import ManualClock

EVERY = 64
SLOW = MemberLimits(first_pause_s=60.0, longest_pause_s=60.0)


def other(text: str) -> list[float]:
    return vector_of(text + "!")


@contextmanager
def served(
    limits: MemberLimits = SLOW,
    max_texts: int = 128,
    vector: Callable[[str], list[float]] = vector_of,
    is_first: bool = True,
    tolerance: float | None = None,
) -> Iterator[tuple[EmbeddingsServer, DeviceGroup]]:
    """Open a group of a server and a member here, for queries alone; no time passes."""
    here = FakeMember("here", vectors=served_vectors)
    here.roles = frozenset({"query"})  # type: ignore[attr-defined]
    with EmbeddingsServer() as server:
        server.vector = vector
        remote = RemoteMember(server.base_url, "m", max_texts=max_texts)
        members = (remote, here) if is_first else (here, remote)
        more = {"slo_s": 60.0, "limits": limits, "tolerance": tolerance, "clock": ManualClock()}
        with group(*members, **more) as engine:
            server.calls.clear()
            yield server, engine


def scaled(by: float) -> Callable[[str], list[float]]:
    return lambda text: [by * value for value in vector_of(text)]


def noise_of(key: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION)


def turned(cosine: float, key: str = "") -> Callable[[str], list[float]]:
    """Return vectors of the same lengths, of this cosine with those of before."""

    def vector(text: str) -> list[float]:
        own = np.array(vector_of(text))
        length = float(np.linalg.norm(own))
        aside = noise_of(text + key)
        aside -= aside @ own / length**2 * own
        aside *= length / float(np.linalg.norm(aside))
        return (cosine * own + np.sqrt(1 - cosine**2) * aside).tolist()

    return vector


def bits(count: int) -> Callable[[str], list[float]]:
    """Return vectors of float32 numbers with so few bits of their mantissas."""

    def vector(text: str) -> list[float]:
        words = np.array(vector_of(text), np.float32).view(np.uint32)
        return (words >> (23 - count) << (23 - count)).view(np.float32).tolist()

    return vector


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


CHANGES = {
    "of another model": other,
    "three times as long": scaled(3.0),
    "a hundredth as long": scaled(0.01),
    "half a percent longer": scaled(1.005),
    "turned to a cosine of 0.99995": turned(0.99995),
    "turned to a cosine of 0.9987": turned(0.9987),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("is_first", [True, False])
def test_vectors_of_another_length_or_direction_are_found_within_64_texts(
    change: str, is_first: bool
) -> None:
    limits = MemberLimits(60.0, 60.0, absent_s=0.0)
    with served(limits, is_first=is_first) as (server, engine):
        role = "query" if is_first else "document"  # that the server is given
        server.vector = CHANGES[change]
        for number in range(EVERY):
            ended(engine, request(f"w{number}", role=role))
        assert "another model" in state_of(engine, "remote").why
        assert is_right(ended(engine, request("after")), "text after")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_that_embeds_with_few_bits_stays(is_first: bool) -> None:
    with served(vector=bits(8), is_first=is_first, tolerance=0.02) as (server, engine):
        for number in range(4 * EVERY):
            ended(engine, request(f"w{number}", role="document"))
        assert state_of(engine, "remote").is_ready
        assert set(texts_of(server)) & set(probe_texts())


def test_a_first_server_whose_vectors_of_a_text_differ_from_call_to_call_stays() -> None:
    calls = count()

    def vector(text: str) -> list[float]:
        return turned(1 - 2e-6, str(next(calls)))(text)

    here = FakeMember("here", vectors=served_vectors)
    with EmbeddingsServer() as server:
        server.vector = vector
        with group(RemoteMember(server.base_url, "m"), here, clock=ManualClock()) as engine:
            for number in range(4 * EVERY):
                ended(engine, request(f"w{number}"))
            assert state_of(engine, "remote").is_ready


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
