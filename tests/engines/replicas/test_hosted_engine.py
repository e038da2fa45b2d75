"""An engine hosted in actors: its contract, its work in flight, and its losses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import hosted_engines
import numpy as np
import pytest
from in_process_cluster import BRINGS_WORK, PlainCluster

from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import (
    Capability,
    Document,
    Engine,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Handle,
    IngestBatch,
    Message,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.ray import RayEngine, RayOptions
from rag_accel.errors import ConfigError, EngineError, EngineLostError
from rag_accel.testing import EngineContract, ManualClock

FAKE = "hosted_engines:fake"
GATED = "hosted_engines:GatedEngine"
LONG_S = 30.0


def embedding(number: int, *texts: str, **fields: Any) -> EngineRequest:
    payload = TextBatch(texts or (f"text {number}",))
    size = len(payload.texts)
    return EngineRequest(
        WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload, size=size, **fields
    )


def decoding(number: int, **fields: Any) -> EngineRequest:
    payload = GenerationInput((Message("user", f"question {number}"),))
    return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.DECODING, payload, **fields)


class TestHostedFake(EngineContract):
    def make_engine(self) -> Engine:
        return RayEngine(FAKE, cluster=PlainCluster())

    def make_request(self, number: int) -> EngineRequest:
        return embedding(number)

    def make_bad_request(self) -> EngineRequest:
        return replace(embedding(99), handle=Handle("no such"))


class TestHostedSteps(EngineContract):
    def make_engine(self) -> Engine:
        return RayEngine(FAKE, {"steps": 3}, RayOptions(replicas=2), cluster=PlainCluster())

    def make_request(self, number: int) -> EngineRequest:
        return replace(decoding(number), stream=True)


class TestGatedEngine(EngineContract):
    def make_engine(self) -> Engine:
        engine = RayEngine(GATED, {"name": "contract"}, cluster=PlainCluster())
        hosted_engines.made["contract"][-1].is_open = True
        return engine

    def make_request(self, number: int) -> EngineRequest:
        return decoding(number)

    def make_waiting_request(self) -> EngineRequest:
        hosted_engines.made["contract"][-1].is_open = False
        return decoding(0)


class Hosted:
    """An engine of a test with its cluster, and the engines made in it."""

    def __init__(self, factory: str, name: str, options: RayOptions, **arguments: Any) -> None:
        self.cluster = PlainCluster()
        self.name = name
        self.seen: list[EngineOutput] = []
        clock = arguments.pop("clock", None)
        self.engine = RayEngine(
            factory, {"name": name, **arguments}, options, cluster=self.cluster, clock=clock
        )

    @property
    def made(self) -> list[Any]:
        return hosted_engines.made[self.name]

    def step(self) -> None:
        """Step once; the outputs are those of the next ``until``."""
        self.seen += self.engine.step(StepBudget(0.01))

    def until(self, done: Callable[[list[EngineOutput]], object]) -> list[EngineOutput]:
        """Step until the outputs since the last call are what is awaited."""
        guard = threading.Timer(LONG_S, self.engine.interrupt)
        guard.start()
        try:
            while not done(self.seen):
                assert guard.is_alive(), f"only {self.seen}"
                self.step()
        finally:
            guard.cancel()
        outputs, self.seen = self.seen, []
        return outputs

    def wait(self, holds: Callable[[], object]) -> None:
        """Step until something holds."""
        seen = self.until(lambda _: holds())
        self.seen = seen

    def ends(self, number: int = 1) -> dict[str, EngineOutput]:
        """Step until so many pieces of work have ended; return their ends."""
        outputs = self.until(lambda found: len(_ends(found)) >= number)
        return {output.id: output for output in _ends(outputs)}


def _ends(outputs: list[EngineOutput]) -> list[EngineOutput]:
    return [output for output in outputs if output.kind in ("final", "error")]


def _holds_work(hosted: Hosted, processes: int) -> bool:
    return len(hosted.made) == processes and bool(hosted.made[-1].held)


Maker = Callable[..., Hosted]


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Maker]:
    made: list[Hosted] = []

    def make(factory: str = FAKE, **arguments: Any) -> Hosted:
        options = arguments.pop("options", RayOptions())
        name = f"{request.node.name}-{len(made)}"
        made.append(Hosted(factory, name, options, **arguments))
        return made[-1]

    yield make
    for hosted in made:
        hosted.engine.close()


def test_the_profile_is_the_hosted_engines_for_two_steps_of_each_replica(host: Maker) -> None:
    hosted = host(options=RayOptions(replicas=2), kinds=frozenset({PrimitiveKind.EMBEDDING}))
    profile, own = hosted.engine.profile, hosted.made[0].profile
    assert profile.kinds == own.kinds
    assert profile.max_batch == 4 * own.max_batch
    assert (profile.max_threads, profile.stepped, profile.interruptible) == (0, True, True)
    assert profile.pure
    assert profile.capabilities == own.capabilities | {Capability.BOUNDS_ITS_WORK}


def test_an_actor_computes_on_the_cores_set_aside_for_it(host: Maker) -> None:
    hosted = host(options=RayOptions(num_cpus=3))
    hosted.engine.submit([embedding(0)])
    hosted.ends()
    assert hosted.made[0].threads_granted == [3]


def test_work_goes_to_the_replica_with_the_least_in_flight(host: Maker) -> None:
    hosted = host(GATED, options=RayOptions(replicas=2))
    hosted.engine.submit([embedding(0, *"abc"), embedding(1), embedding(2), embedding(3)])
    for engine in hosted.made:
        engine.open_gate()
    assert len(hosted.ends(4)) == 4
    assert sorted(len(engine.deadlines) for engine in hosted.made) == [1, 3]


def test_new_work_joins_while_a_step_runs(host: Maker) -> None:
    hosted = host(GATED)
    hosted.engine.submit([decoding(0, stream=True)])
    hosted.until(lambda found: [output.kind for output in found] == ["partial"])
    hosted.engine.submit([decoding(1, stream=True)])
    joined = hosted.until(lambda found: bool(found))
    assert [(output.id, output.kind) for output in joined] == [("w1", "partial")]
    hosted.made[0].open_gate()
    assert set(hosted.ends(2)) == {"w0", "w1"}


def test_no_step_of_the_hosted_engine_has_more_than_its_batch(host: Maker) -> None:
    hosted = host(max_batch=3)
    hosted.engine.submit([embedding(number) for number in range(6)])
    assert len(hosted.ends(6)) == 6
    assert max(map(len, hosted.made[0].batches)) <= 3


def test_a_step_that_raises_fails_the_bad_item_alone(host: Maker) -> None:
    hosted = host("hosted_engines:breaking")
    hosted.engine.submit([embedding(0), embedding(1, "bad"), embedding(2)])
    ends = hosted.ends(3)
    assert {id: end.kind for id, end in ends.items()} == {
        "w0": "final",
        "w1": "error",
        "w2": "final",
    }


def test_deadlines_arrive_as_what_is_left_of_them(host: Maker) -> None:
    here = ManualClock(1e9)  # what the clocks of two machines show has nothing in common
    hosted = host(GATED, clock=here)
    there = MonotonicClock().now()
    hosted.engine.submit([decoding(0, arrived_at=1e9 - 5, deadline=1e9 + 600), decoding(1)])
    hosted.made[0].open_gate()
    hosted.ends(2)
    (arrived, deadline), (_, none) = hosted.made[0].deadlines
    assert deadline == pytest.approx(there + 600, abs=LONG_S)
    assert arrived == pytest.approx(there - 5, abs=LONG_S)
    assert none is None


def test_a_handle_resumes_at_the_replica_that_made_it(host: Maker) -> None:
    hosted = host(options=RayOptions(replicas=2), steps=2)
    hosted.engine.submit([decoding(number) for number in range(4)])
    outputs = hosted.until(lambda found: len(_ends(found)) == 4)
    handles = [output.handle for output in outputs if output.handle is not None]
    assert len(set(handles)) == len(handles) >= 4
    hosted.engine.submit([decoding(10 + n, handle=handle) for n, handle in enumerate(handles)])
    ends = hosted.ends(len(handles))
    assert all(end.kind == "final" for end in ends.values())
    hosted.engine.release(handles)
    hosted.engine.submit([decoding(30)])
    hosted.ends()
    later = [handle for engine in hosted.made for handle in engine.live_handles]
    assert len(later) <= 2 * (len(handles) + 1)


def test_cancelled_work_is_cancelled_in_the_actor(host: Maker) -> None:
    hosted = host(GATED)
    hosted.engine.submit([decoding(0, stream=True), decoding(1, stream=True)])
    hosted.until(lambda found: len(found) == 2)
    hosted.engine.cancel([WorkId("w0")])
    hosted.engine.submit([decoding(2, stream=True)])
    hosted.until(lambda found: any(output.id == "w2" for output in found))
    hosted.made[0].open_gate()
    assert set(hosted.ends(2)) == {"w1", "w2"}
    assert len(hosted.made[0].cancelled) == 1


def test_a_lost_actor_ends_only_what_had_streamed(host: Maker) -> None:
    hosted = host(GATED)
    hosted.engine.submit([decoding(0, stream=True), decoding(1)])
    hosted.until(lambda found: bool(found))
    hosted.cluster.actors[0].kill()
    hosted.wait(lambda: len(hosted.made) == 2)
    hosted.made[1].open_gate()
    ends = hosted.ends(2)
    assert isinstance(ends["w0"].error, EngineLostError)
    assert ends["w1"].value == "first last"


def test_work_of_a_lost_actor_goes_to_another_replica(host: Maker) -> None:
    hosted = host(GATED, options=RayOptions(replicas=2, max_restarts=0))
    hosted.engine.submit([decoding(0), decoding(1)])
    hosted.cluster.actors[0].kill()
    hosted.made[1].open_gate()
    hosted.made[0].open_gate()
    ends = hosted.ends(2)
    assert {end.value for end in ends.values()} == {"first last"}
    health = hosted.engine.health()
    assert health.is_ready
    assert sorted(part.state for part in health.parts) == ["lost", "ready"]


def test_work_is_not_sent_again_for_ever(host: Maker) -> None:
    hosted = host(GATED, options=RayOptions(resends=1))
    hosted.engine.submit([decoding(0)])
    for number in (1, 2):
        hosted.wait(partial(_holds_work, hosted, number))
        hosted.cluster.actors[0].kill()
    end = hosted.ends()["w0"]
    assert isinstance(end.error, EngineLostError)


POISONED = "hosted_engines:PoisonedEngine"


def _poison(hosted: Hosted, *, kills: bool = True) -> list[str]:
    """Let poison kill its actor, or hang until the actor is ended; return the deaths' list."""
    deaths: list[str] = []

    def dies(engine: Any) -> None:
        made = ((actor, actor.hosts[-1]._thread.made) for actor in hosted.cluster.actors)
        actor = next(actor for actor, its in made if its.done() and its.result() is engine)
        host = actor.hosts[-1]
        deaths.append(engine.__class__.__name__)
        if kills:
            threading.Thread(target=actor.kill).start()
        while actor.hosts[-1] is host and not actor.is_gone:
            threading.Event().wait(0.001)

    make = hosted_engines.PoisonedEngine.__init__

    def made(engine: Any, name: str = "") -> None:
        make(engine, name)
        engine.dies = dies

    hosted_engines.PoisonedEngine.__init__ = made  # type: ignore[method-assign]
    for engine in hosted.made:
        engine.dies = dies
    return deaths


@pytest.fixture
def _poison_as_before() -> Iterator[None]:
    make = hosted_engines.PoisonedEngine.__init__
    yield
    hosted_engines.PoisonedEngine.__init__ = make  # type: ignore[method-assign]


@pytest.mark.usefixtures("_poison_as_before")
@pytest.mark.parametrize(("poisons", "most"), [((25,), 3), ((3, 17, 30, 48), 10)])
def test_work_that_kills_its_actor_ends_in_an_error_alone(
    host: Maker, poisons: tuple[int, ...], most: int
) -> None:
    hosted = host(POISONED, options=RayOptions(replicas=2))
    deaths = _poison(hosted)
    work = [embedding(n, *["poison"] * (n in poisons)) for n in range(50)]
    hosted.engine.submit(work)
    ends = hosted.ends(50)
    assert {id for id, end in ends.items() if end.kind == "error"} == {f"w{n}" for n in poisons}
    assert all(isinstance(ends[f"w{n}"].error, EngineLostError) for n in poisons)
    assert len(deaths) <= most
    hosted.engine.submit([embedding(60)])
    assert hosted.ends()["w60"].kind == "final"


@pytest.mark.usefixtures("_poison_as_before")
def test_work_whose_step_hangs_ends_in_an_error_alone(host: Maker) -> None:
    hosted = host(POISONED, options=RayOptions(work_timeout_s=2.0))
    deaths = _poison(hosted, kills=False)
    hosted.engine.submit([embedding(n, *["poison"] * (n == 2)) for n in range(6)])
    ends = hosted.ends(6)
    assert {id for id, end in ends.items() if end.kind == "error"} == {"w2"}
    assert "work_timeout_s" in str(ends["w2"].error)
    assert len(deaths) == 2


def test_suspects_that_were_cancelled_are_not_sent_again(host: Maker) -> None:
    hosted = host(GATED)
    actor = hosted.cluster.actors[0]
    hosted.engine.submit([decoding(number) for number in range(3)])
    actor.may_restart.clear()
    actor.kill()
    hosted.wait(lambda: len(hosted.engine._suspects) == 3)
    hosted.engine.cancel([WorkId("w0"), WorkId("w2")])
    actor.may_restart.set()
    hosted.wait(partial(_holds_work, hosted, 2))
    hosted.made[1].open_gate()
    assert set(hosted.ends()) == {"w1"}
    assert len(hosted.made[1].deadlines) == 1


@pytest.mark.parametrize(("healthy_s", "state"), [(3599.0, "lost"), (3600.0, "ready")])
def test_restarts_are_forgotten_after_an_hour_of_health(
    host: Maker, healthy_s: float, state: str
) -> None:
    clock = ManualClock()
    hosted = host(GATED, clock=clock, options=RayOptions(max_restarts=1))
    hosted.cluster.actors[-1].kill()
    hosted.engine.submit([decoding(0)])
    hosted.wait(partial(_holds_work, hosted, 2))
    hosted.made[-1].open_gate()
    hosted.ends()
    clock.advance(healthy_s)
    hosted.cluster.actors[-1].kill()
    number = len(hosted.made) + (state == "ready")
    hosted.wait(lambda: len(hosted.made) == number and hosted.engine.health().state == state)
    if state == "ready":
        assert [actor.is_gone for actor in hosted.cluster.actors] == [True, False]
        hosted.cluster.actors[-1].kill()
        hosted.wait(lambda: len(hosted.made) == 4)


def test_an_ingestion_is_never_sent_twice(host: Maker) -> None:
    gate = threading.Event()
    hosted = host()
    hosted.cluster.actors[0].before = lambda method: (
        gate.wait(LONG_S) if method in BRINGS_WORK else None
    )
    batch = IngestBatch((Document("a", "text"),), np.zeros((1, 2), np.float32))
    hosted.engine.submit([EngineRequest(WorkId("w0"), "r", PrimitiveKind.INGESTION, batch)])
    hosted.cluster.actors[0].kill()
    gate.set()
    assert isinstance(hosted.ends()["w0"].error, EngineLostError)


def test_a_handle_of_a_lost_process_is_an_error_of_that_work(host: Maker) -> None:
    hosted = host(steps=2)
    hosted.engine.submit([decoding(0)])
    outputs = hosted.until(lambda found: len(_ends(found)) == 1)
    handle = next(output.handle for output in outputs if output.handle is not None)
    hosted.cluster.actors[0].kill()
    hosted.engine.submit([decoding(1)])
    assert hosted.ends()["w1"].kind == "final"
    hosted.engine.submit([decoding(2, handle=handle)])
    assert isinstance(hosted.ends()["w2"].error, EngineLostError)


def test_all_actors_lost_ends_waiting_and_later_work(host: Maker) -> None:
    hosted = host(GATED, options=RayOptions(max_restarts=0))
    hosted.engine.submit([decoding(0)])
    hosted.cluster.actors[0].kill()
    assert isinstance(hosted.ends()["w0"].error, EngineLostError)
    hosted.engine.submit([decoding(1)])
    assert isinstance(hosted.ends()["w1"].error, EngineLostError)
    assert hosted.engine.health().state == "lost"


def test_health_is_paused_while_the_only_actor_starts_again(host: Maker) -> None:
    hosted = host(GATED)
    actor = hosted.cluster.actors[0]
    actor.may_restart.clear()
    actor.kill()
    hosted.wait(lambda: not hosted.engine.health().is_ready)
    assert hosted.engine.health().state == "paused"
    hosted.engine.submit([decoding(0)])
    actor.may_restart.set()
    hosted.wait(partial(_holds_work, hosted, 2))
    hosted.made[1].open_gate()
    assert hosted.ends()["w0"].kind == "final"


def test_texts_are_forgotten_by_a_process_that_starts_before_it_takes_work(host: Maker) -> None:
    hosted = host(GATED)
    actor = hosted.cluster.actors[0]
    hosted.engine.forget(["one"], "tenant")
    actor.may_restart.clear()
    actor.kill()
    hosted.wait(lambda: not hosted.engine.health().is_ready)
    hosted.engine.forget(["two"], "tenant")
    actor.may_restart.set()
    hosted.engine.submit([decoding(0)])
    hosted.wait(partial(_holds_work, hosted, 2))
    assert hosted.made[0].forgotten == [(("one",), "tenant")]
    assert hosted.made[1].forgotten == [(("two",), "tenant")]
    hosted.made[1].open_gate()
    hosted.ends()


def test_an_actor_that_does_not_answer_is_started_again(host: Maker) -> None:
    stuck = threading.Event()
    hosted = host(GATED, options=RayOptions(lost_after_s=0.001))
    actor = hosted.cluster.actors[0]
    first = hosted.made[0]
    actor.before = lambda method: (
        stuck.wait(LONG_S) if method == "poll" and len(actor.hosts) == 1 else None
    )
    hosted.engine.submit([decoding(0)])
    hosted.wait(lambda: len(hosted.made) > 1)
    stuck.set()
    hosted.wait(lambda: hosted.made[-1].held)
    hosted.made[-1].open_gate()
    assert hosted.ends()["w0"].kind == "final"
    assert hosted.made[-1] is not first


def test_replicas_follow_the_queue_and_go_when_idle(host: Maker) -> None:
    options = RayOptions(replicas=1, max_replicas=2, scale_at=2, idle_s=0.0)
    hosted = host(GATED, options=options)
    hosted.engine.submit([decoding(number) for number in range(4)])
    hosted.wait(lambda: len(hosted.made) == 2)
    for engine in hosted.made:
        engine.open_gate()
    hosted.ends(4)
    pause = threading.Event()
    while len(hosted.engine.health().parts) > 1:  # nobody steps an engine without work
        pause.wait(0.005)
    hosted.engine.submit([decoding(9)])
    assert hosted.ends()["w9"].kind == "final"


def test_a_replica_with_state_stays(host: Maker) -> None:
    options = RayOptions(replicas=1, max_replicas=2, scale_at=1, idle_s=0.0)
    hosted = host(steps=2, options=options)
    gate = threading.Event()
    hosted.cluster.actors[0].before = lambda method: (
        gate.wait(LONG_S) if method in BRINGS_WORK else None
    )
    hosted.engine.submit([decoding(0)])
    hosted.wait(lambda: len(hosted.made) == 2)
    gate.set()
    hosted.wait(lambda: all(part.is_ready for part in hosted.engine.health().parts))
    outputs = hosted.until(lambda found: _ends(found))
    handles = [output.handle for output in outputs if output.handle is not None]
    pinned = [replica for replica in hosted.engine._replicas if replica.pins]
    hosted.engine._scale_in()
    hosted.engine._scale_in()
    assert all(replica.state == "ready" for replica in pinned)
    hosted.engine.submit([decoding(1, handle=handles[-1])])
    assert hosted.ends()["w1"].kind == "final"


def test_state_of_work_that_was_cancelled_too_late_is_freed(host: Maker) -> None:
    hosted = host(steps=2)
    gate = threading.Event()
    hosted.cluster.actors[0].before = lambda method: (
        gate.wait(LONG_S) if method == "cancel" else None
    )
    hosted.engine.submit([decoding(0)])
    hosted.engine.cancel([WorkId("w0")])
    hosted.engine.submit([decoding(1)])
    outputs = hosted.until(lambda found: _ends(found))
    gate.set()
    assert {output.id for output in outputs} == {"w1"}
    hosted.engine.release([output.handle for output in outputs if output.handle is not None])
    pause = threading.Event()
    while hosted.made[0].live_handles:
        pause.wait(0.005)


def test_replicas_take_no_ingestion(host: Maker) -> None:
    hosted = host(options=RayOptions(replicas=2))
    assert PrimitiveKind.INGESTION not in hosted.engine.profile.kinds


def test_two_tenants_keep_their_namespaces(host: Maker) -> None:
    hosted = host()
    hosted.engine.submit([embedding(0, namespace="a"), embedding(1, namespace="b")])
    hosted.ends(2)
    assert {r.namespace for batch in hosted.made[0].served for r in batch} == {"a", "b"}


def test_a_payload_that_cannot_travel_is_an_error_of_that_work(host: Maker) -> None:
    hosted = host()
    bad = replace(embedding(0), payload=lambda: None)
    hosted.engine.submit([bad, embedding(1)])
    ends = hosted.ends(2)
    assert isinstance(ends["w0"].error, EngineError)
    assert ends["w1"].kind == "final"


@pytest.mark.parametrize(
    ("factory", "arguments", "told"),
    [
        ("embeding", {}, "did you mean 'embedding'"),
        ("no_such_module_here:Engine", {}, "no_such_module_here"),
        ("hosted_engines:absent", {}, "unknown engine factory"),
        ("hosted_engines:made", {}, "unknown engine factory"),
        ("hosted_engines:not_an_engine", {}, "makes no engine"),
        (FAKE, {"name": lambda: None}, "argument 'name'"),
        (FAKE, [1], "by name"),
        (FAKE, {"steps": 0}, "bad number of steps"),
    ],
)
def test_an_engine_that_cannot_be_hosted_is_named(factory: str, arguments: Any, told: str) -> None:
    with pytest.raises((ConfigError, ImportError), match=told):
        RayEngine(factory, arguments, cluster=PlainCluster())


def test_a_local_function_is_no_factory() -> None:
    def local() -> Any: ...

    with pytest.raises(ConfigError, match="cannot be imported"):
        RayEngine(local, cluster=PlainCluster())


def test_a_function_of_a_module_is_found_by_its_path() -> None:
    engine = RayEngine(hosted_engines.fake, cluster=PlainCluster())
    try:
        assert repr(engine) == "RayEngine('hosted_engines:fake')"
    finally:
        engine.close()


def test_an_actor_without_room_is_named_before_it_waits() -> None:
    options = RayOptions(num_cpus=6, num_gpus=1, replicas=2)
    with pytest.raises(ConfigError, match=r"room for 0 of 2.*CPU: 8.*CPU: 6, GPU: 1"):
        RayEngine(FAKE, options=options, cluster=PlainCluster())


def test_an_actor_that_takes_too_long_is_named_and_ended() -> None:
    cluster, gate = PlainCluster(), threading.Event()
    options = RayOptions(start_timeout_s=0.01)
    slow = cluster.host

    def host(spec: Any, given: Any) -> Any:
        actor = slow(spec, given)
        actor.before = lambda method: gate.wait(LONG_S) if method == "start" else None
        threading.Timer(0.3, gate.set).start()
        return actor

    cluster.host = host  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="within start_timeout_s"):
        RayEngine(FAKE, options=options, cluster=cluster)
    assert cluster.actors[0].is_gone


def test_another_version_on_a_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"Python": "2.7", "rag-accel": "0", "ray": "absent"}
    monkeypatch.setattr("rag_accel.engines.replicas.replica.versions_here", lambda: here)
    with pytest.raises(ConfigError, match="another version"):
        RayEngine(FAKE, cluster=PlainCluster())


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 0},
        {"replicas": 3, "max_replicas": 2},
        {"num_cpus": -1},
        {"num_cpus": None},
        {"resources": ["shard"]},
        {"resources": {"GPU": 1}},
        {"resources": {"x": "many"}},
        {"start_timeout_s": 0},
        {"max_restarts": -1},
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"RayOptions.{list(options)[-1]}"):
        RayOptions(**options)
