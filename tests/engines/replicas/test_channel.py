"""The calls between an engine and its actor: how many, and what becomes of work in each."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from in_process_cluster import PlainCall, PlainCluster

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines.ray.engine import RayOptions
from rag_accel.engines.replicas.host import EngineHost, EngineSpec, HostedWork, unpack_outputs
from rag_accel.engines.replicas.processes import HostGoneError, WorkChannel

LONG_S = 30.0


def hosted_work(number: int) -> HostedWork:
    payload = TextBatch((f"text {number}",))
    request = EngineRequest(WorkId("w"), "r", PrimitiveKind.EMBEDDING, payload)
    return HostedWork.of(number, request, None, 0.0)


class Channel:
    """A channel to an actor in this process, and the calls of it."""

    def __init__(self) -> None:
        spec = EngineSpec.of("hosted_engines:fake", {}, "a test")
        self.actor = PlainCluster().host(spec, RayOptions())
        self.actor.call("start").result(LONG_S)
        self.calls: list[str] = []
        self.actor.before = self.calls.append
        self.channel = WorkChannel(self.actor, LONG_S)
        #: set when the collecting thread has looked for work
        self.looked = threading.Event()

    def is_idle(self) -> bool:
        self.looked.set()
        return True

    def send_to_idle(self, work: HostedWork) -> list[str]:
        """Send work while a thread waits for some; return the ids of the outputs."""
        sent: list[Any] = []

        def send() -> None:
            self.looked.wait(LONG_S)
            sent.append(self.channel.send([work]))

        sender = threading.Thread(target=send)
        sender.start()
        ids: list[str] = []
        while not ids:
            reports = self.channel.collect(self.is_idle)
            ids = [output.id for body in reports.reports for output in unpack_outputs(body)]
        sender.join(LONG_S)
        return ids


@pytest.fixture
def channel() -> Any:
    made = Channel()
    yield made
    made.actor.end(restart=False)


def test_work_for_an_idle_actor_and_its_outputs_are_one_call(channel: Channel) -> None:
    assert channel.send_to_idle(hosted_work(1)) == ["1"]
    assert channel.calls.count("exchange") == 1
    assert "submit" not in channel.calls


def test_outputs_come_once(channel: Channel) -> None:
    assert channel.send_to_idle(hosted_work(1)) == ["1"]
    channel.looked.clear()
    assert channel.send_to_idle(hosted_work(2)) == ["2"]
    assert channel.channel.collect(lambda: False).reports == ()


def test_work_that_found_nobody_waiting_is_polled_for(channel: Channel) -> None:
    channel.channel.send([hosted_work(1)])
    reports = channel.channel.collect(lambda: False)
    assert [output.id for output in unpack_outputs(reports.reports[0])] == ["1"]
    assert channel.calls == ["submit", "poll"]


def test_a_call_that_cannot_bring_its_work_leaves_the_actor_alone(channel: Channel) -> None:
    def refuse(method: str) -> None:
        if method == "exchange":
            raise ValueError("unreadable")

    channel.actor.before = refuse
    calls: list[PlainCall | None] = []

    def send() -> None:
        channel.looked.wait(LONG_S)
        call: Any = channel.channel.send([hosted_work(1)])
        calls.append(call)

    sender = threading.Thread(target=send)
    sender.start()
    assert channel.channel.collect(channel.is_idle).reports == ()
    sender.join(LONG_S)
    assert calls[0] is not None


def test_an_actor_that_goes_with_the_work_is_noticed(channel: Channel) -> None:
    def die(method: str) -> None:
        if method == "exchange":
            channel.actor.end(restart=False)

    channel.actor.before = die
    # Its pool cannot be joined from within.
    channel.actor.pool.shutdown = lambda: None  # type: ignore[method-assign,assignment]
    with pytest.raises(HostGoneError):
        channel.send_to_idle(hosted_work(1))


def test_a_process_that_was_not_started_takes_no_work_of_the_one_before() -> None:
    host = EngineHost(EngineSpec.of("hosted_engines:fake", {"name": "unstarted"}, "a test"), 1)
    assert host.exchange([hosted_work(1)], 7, 0.0).reports == ()
    host.start()
    assert host.poll(0, 0.05).reports == ()
    host.close()


def test_nobody_waits_where_there_is_work_or_at_the_end(channel: Channel) -> None:
    assert channel.channel.collect(lambda: False).reports == ()
    channel.channel.end()
    assert channel.channel.collect(lambda: True).reports == ()
    sent = channel.channel.send([hosted_work(1)])
    assert sent is not None
    sent.result(LONG_S)
    assert channel.calls == ["poll", "poll", "submit"]
