"""Members of a group that fail, fall silent, change and come back, and whose texts they get."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from embeddings_server import EmbeddingsServer, Refusal, vector_of
from fake_members import FakeMember, plain_vectors
from returning_groups import (
    PATIENCE_S,
    ended,
    fail,
    group,
    outcomes,
    request,
    served_vectors,
    state_of,
    wait_until_ready,
)

from rag_accel.engine_api import Health, ReportingEngine
from rag_accel.engines import MemberLimits, RemoteMember
from rag_accel.engines.devices.fidelity import probe_texts
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.errors import ConfigError, EngineLostError, RemoteEngineError
from rag_accel.testing import ManualClock

# Away and back.


def test_a_member_that_failed_is_asked_again_while_nothing_is_to_do_and_takes_work() -> None:
    away, here = FakeMember("away"), FakeMember("here")
    with group(away, here, slo_s=60.0) as engine:
        fail(engine, away)
        assert state_of(engine, "away").state == "paused"
        away.calls.clear()
        away.error = None
        wait_until_ready(engine, "away")
        probed = {text for call in away.calls for text in call}
        assert probed == set(probe_texts())  # and no text of any request
        away.calls.clear()
        ended(engine, request("after"))
        assert away.calls == [["text after"]]
        assert engine.counts["away_returned"] == 1


def test_a_member_that_comes_back_as_another_model_takes_no_work() -> None:
    is_other = threading.Event()

    def vectors(texts: Sequence[str], role: str) -> Any:
        return plain_vectors([text + "!" for text in texts] if is_other.is_set() else texts, role)

    away, here = FakeMember("away", vectors=vectors), FakeMember("here")
    with group(away, here, slo_s=60.0) as engine:
        fail(engine, away)
        is_other.set()
        away.error = None
        away.is_asked.clear()
        while "other vectors" not in state_of(engine, "away").why:
            assert away.is_asked.wait(PATIENCE_S)
            away.is_asked.clear()
        assert state_of(engine, "away").state == "paused"
        found = ended(engine, request("w"))
        np.testing.assert_array_equal(found, plain_vectors(["text w"], "query"))
        is_other.clear()
        wait_until_ready(engine, "away")


def test_work_of_a_group_whose_only_member_is_away_is_computed_once_it_is_back() -> None:
    only = FakeMember("only")
    with group(only) as engine:
        fail(engine, only, 2)
        engine.submit([request("third")])  # which is put back, and waits
        while state_of(engine, "only").is_ready:
            threading.Event().wait(0.01)
        engine.submit([request("queued")])
        only.error = None
        found = outcomes(engine, "third", "queued")
    np.testing.assert_array_equal(found[0], plain_vectors(["text third"], "query"))
    np.testing.assert_array_equal(found[1], plain_vectors(["text queued"], "query"))


def test_while_no_member_answers_callers_are_told_why_and_the_group_goes_on_afterwards() -> None:
    limits = MemberLimits(first_pause_s=0.01, longest_pause_s=0.02, absent_s=0.0)
    only = FakeMember("only")
    with group(only, limits=limits) as engine:
        fail(engine, only)
        error = ended(engine, request("w"))
        assert isinstance(error, EngineLostError)
        assert "no member of the device group answers" in str(error)
        assert engine.health().state == "paused"
        only.error = None
        wait_until_ready(engine, "only")
        np.testing.assert_array_equal(
            ended(engine, request("v")), plain_vectors(["text v"], "query")
        )


def test_a_member_that_is_gone_for_good_leaves() -> None:
    gone, here = FakeMember("gone"), FakeMember("here")
    with group(gone, here, slo_s=60.0) as engine:
        gone.error = EngineLostError("cable pulled")
        ended(engine, request("w"))
        assert state_of(engine, "gone") == Health("gone", "lost", "lost: cable pulled")
        assert engine.health().is_ready
        here.error = EngineLostError("too")
        ended(engine, request("v"))
        assert engine.health().state == "lost"


def test_the_health_of_a_group_shows_no_text_of_a_request() -> None:
    def quoting(texts: Sequence[str], role: str) -> Any:
        if any("secret" in text for text in texts):
            raise ValueError(f"cannot embed {texts}")
        return plain_vectors(texts, role)

    quoted = FakeMember("quoted", vectors=quoting)
    slow = MemberLimits(first_pause_s=60.0, longest_pause_s=60.0)
    with group(quoted, FakeMember("here"), slo_s=60.0, limits=slow) as engine:
        assert isinstance(engine, ReportingEngine)
        for number in range(3):
            ended(engine, request(f"w{number}", f"secret {number}"))
        found = state_of(engine, "quoted")
    assert found.state == "paused"
    assert "ValueError" in found.why
    assert "secret" not in str(found)


def test_a_server_that_wants_to_be_asked_later_is_paused() -> None:
    with EmbeddingsServer() as server:
        members = RemoteMember(server.base_url, "m"), FakeMember("here", vectors=served_vectors)
        with group(*members, slo_s=60.0) as engine:
            server.refusals.append(Refusal(429, "60"))
            ended(engine, request("w"))
            assert state_of(engine, "remote").state == "paused"
            assert "asked again in" in state_of(engine, "remote").why


# Silence.


def test_a_text_of_a_silent_member_is_embedded_elsewhere_and_the_silent_one_probed() -> None:
    clock = ManualClock()
    silent, here = FakeMember("silent"), FakeMember("here")
    with group(silent, here, slo_s=60.0, clock=clock) as engine:
        silent.may_go.clear()
        engine.submit([request("w")])
        assert silent.is_asked.wait(PATIENCE_S)
        clock.advance(1.0)
        (found,) = outcomes(engine, "w")
        np.testing.assert_array_equal(found, plain_vectors(["text w"], "query"))
        assert here.calls == [["text w"]]
        assert state_of(engine, "silent").state == "paused"
        silent.calls.clear()
        silent.may_go.set()
        wait_until_ready(engine, "silent")
        assert {text for call in silent.calls for text in call} == set(probe_texts())


def test_while_all_members_are_silent_callers_are_told_and_the_group_goes_on_afterwards() -> None:
    limits = MemberLimits(0.01, 0.02, probe_s=0.2, second_try_s=0.05, silent_s=0.1, absent_s=20.0)
    with EmbeddingsServer() as server, EmbeddingsServer() as other:
        members = [
            RemoteMember(one.base_url, "m", name=name)
            for name, one in (("first", server), ("second", other))
        ]
        with group(*members, limits=limits, slo_s=0.2) as engine:
            server.hangs = other.hangs = True
            error = ended(engine, request("w"))
            assert isinstance(error, RemoteEngineError)
            assert "did not answer in time" in str(error)
            assert engine.health().state == "paused"
            server.hangs = False
            wait_until_ready(engine, "first")
            np.testing.assert_array_equal(
                ended(engine, request("v")), served_vectors(["text v"], "query")
            )
            other.hangs = False


def test_without_a_limit_too_silent_servers_are_given_up_and_asked_again() -> None:
    limits = MemberLimits(0.01, 0.02, probe_s=0.2, silent_without_slo_s=0.2, absent_s=20.0)
    with EmbeddingsServer() as server, EmbeddingsServer() as other:
        members = [
            RemoteMember(one.base_url, "m", name=name)
            for name, one in (("first", server), ("second", other))
        ]
        with group(*members, limits=limits) as engine:
            for turn in range(2):  # once more: nothing of the first silence may be left
                server.hangs = other.hangs = True
                work_items = [request(f"{turn} {at}", role="document") for at in range(3)]
                engine.submit(work_items)
                for error in outcomes(engine, *(work.id for work in work_items)):
                    assert isinstance(error, RemoteEngineError)
                    assert "did not answer in time" in str(error)
                server.hangs = other.hangs = False
                wait_until_ready(engine, "first")
                wait_until_ready(engine, "second")
                np.testing.assert_array_equal(
                    ended(engine, request(f"back {turn}")),
                    served_vectors([f"text back {turn}"], "query"),
                )
            assert not engine._jobs


def test_a_call_that_is_interrupted_ends_and_later_ones_are_answered() -> None:
    with EmbeddingsServer() as server:
        member = RemoteMember(server.base_url, "m")
        try:
            server.hangs = True
            errors: list[Exception] = []

            def embed() -> None:
                try:
                    member.embed(["a"], "query", 0)
                except Exception as error:
                    errors.append(error)

            caller = threading.Thread(target=embed)
            caller.start()
            while not server.calls:
                threading.Event().wait(0.005)
            member.interrupt()
            caller.join(PATIENCE_S)
            server.hangs = False
            assert isinstance(errors[0], RemoteEngineError)
            assert "given up" in str(errors[0])
            np.testing.assert_array_equal(
                member.embed(["b"], "query", 0), served_vectors(["b"], "query")
            )
        finally:
            member.close()


# Another model.


@contextmanager
def served(**more: Any) -> Iterator[tuple[EmbeddingsServer, FakeMember, DeviceGroup]]:
    """Open a group of a server, preferred, and a member here."""
    here = FakeMember("here", vectors=served_vectors)
    with (
        EmbeddingsServer() as server,
        group(RemoteMember(server.base_url, "m"), here, slo_s=60.0, **more) as engine,
    ):
        yield server, here, engine


def test_no_vector_of_an_answer_of_another_model_is_used_until_the_first_one_is_back() -> None:
    with served() as (server, here, engine):
        server.vector = lambda text: vector_of(text + "!")
        server.answers_as = "n"
        found = ended(engine, request("w"))
        np.testing.assert_array_equal(found, served_vectors(["text w"], "query"))
        assert "another model" in state_of(engine, "remote").why
        server.vector = vector_of  # the same vectors by another name: it still stays away
        num_calls = len(server.calls)
        while len(server.calls) < num_calls + 3:
            threading.Event().wait(0.005)
        assert state_of(engine, "remote").state == "paused"
        server.answers_as = None
        wait_until_ready(engine, "remote")
        assert here.calls == [["text w"]]


@pytest.mark.parametrize("after", ["some time", "a failure"])
def test_a_member_is_compared_again_before_it_is_given_a_text(after: str) -> None:
    clock = ManualClock()
    with served(clock=clock) as (server, _, engine):
        ended(engine, request("before"))
        server.vector = lambda text: vector_of(text + "!")
        if after == "some time":
            clock.advance(61.0)
        else:
            server.refusals.append(Refusal(500))
            ended(engine, request("failing"))
        num_calls = len(server.calls)
        found = ended(engine, request("w"))
        np.testing.assert_array_equal(found, served_vectors(["text w"], "query"))
        asked = {text for call in server.calls[num_calls:] for text in call}
        assert asked <= set(probe_texts())


# Whose texts.


def restricted(name: str, roles: Any = None, namespaces: Any = None) -> FakeMember:
    member: Any = FakeMember(name)
    member.roles = None if roles is None else frozenset(roles)
    member.namespaces = None if namespaces is None else frozenset(namespaces)
    return member


def test_texts_go_only_to_members_that_admit_their_role_and_namespace() -> None:
    far, here = restricted("far", ["document"], ["public"]), FakeMember("here")
    with group(far, here, slo_s=60.0) as engine:
        ended(engine, request("q", role="query", namespace="public"))
        ended(engine, request("d", role="document", namespace="private"))
        assert far.calls == []
        ended(engine, request("p", role="document", namespace="public"))
        assert far.calls == [["text p"]]


def test_a_member_that_may_not_have_a_text_does_not_get_it_when_all_others_fail() -> None:
    far, here = restricted("far", namespaces=["public"]), FakeMember("here")
    with group(far, here, slo_s=60.0) as engine:
        here.error = RuntimeError("no")
        error = ended(engine, request("w", namespace="private"))
        assert str(error) == "no"
        assert far.calls == []


def test_texts_that_no_member_may_have_end_with_a_named_error() -> None:
    with group(restricted("far", namespaces=["public"])) as engine:
        error = ended(engine, request("w", namespace="private"))
    assert isinstance(error, ConfigError)
    assert "no member of the device group may be given these texts" in str(error)


@pytest.mark.parametrize(
    "given", [{"roles": "query"}, {"roles": ["both"]}, {"namespaces": "a"}, {"namespaces": []}]
)
def test_a_restriction_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="restricted to what cannot be"):
        RemoteMember("http://127.0.0.1:9/v1", "m", **given)


@pytest.mark.parametrize("in_flight", [0, 65])
def test_a_server_is_asked_a_bounded_number_of_times_at_once(in_flight: int) -> None:
    with pytest.raises(ConfigError, match="so often at once"):
        RemoteMember("http://127.0.0.1:9/v1", "m", in_flight=in_flight)


def test_two_calls_are_sent_to_a_server_at_once() -> None:
    with EmbeddingsServer() as server, group(RemoteMember(server.base_url, "m")) as engine:
        server.awaited = len(server.calls) + 2  # neither is answered before both are there
        engine.submit([request("a")])
        engine.submit([request("b")])
        assert all(isinstance(one, np.ndarray) for one in outcomes(engine, "a", "b"))
