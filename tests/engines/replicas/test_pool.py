"""A pool of engines as one engine: what ends, moves, fails, streams and is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rag_accel import Accelerator
from rag_accel.engine_api import (
    Capability,
    EngineRequest,
    GenerationInput,
    Health,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.replicas.pool import EnginePool
from rag_accel.errors import (
    ClosedError,
    ConfigError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    RagAccelError,
    RemoteEngineError,
)
from rag_accel.testing import FAKE_PROFILE, EngineContract, FakeEngine, Faults, ManualClock, compute

WAIT = StepBudget(10.0, 2)
STEPPED = replace(FAKE_PROFILE, interruptible=True)


def request(id: str, text: str = "", **more: Any) -> EngineRequest:
    payload = GenerationInput((Message("user", text or f"text {id}"),))
    return EngineRequest(WorkId(id), "r", PrimitiveKind.DECODING, payload, **more)


def failing(error: Exception | str, *ids: str) -> Faults:
    return Faults(item=lambda work: error if not ids or work.id in ids else None)  # type: ignore[return-value]


@contextmanager
def pool(*members: FakeEngine, **more: Any) -> Iterator[EnginePool]:
    made = EnginePool(members, **more)
    try:
        yield made
    finally:
        made.close()
        assert all(member.is_closed for member in members)
        assert all(len(member.thread_ids) <= 2 for member in members)


def outcomes(engine: EnginePool, count: int) -> dict[str, Any]:
    """Step until ``count`` works have ended; return their texts or errors."""
    ended: dict[str, Any] = {}
    for _ in range(1000):
        for output in engine.step(WAIT):
            if output.kind in ("final", "error"):
                ended[output.id] = output.error or output.value.text
        if len(ended) == count:
            return ended
    raise AssertionError(f"only {sorted(ended)} ended")


def answer(id: str) -> str:
    return compute(request(id).payload).text


class TestPoolOfTwo(EngineContract):
    def make_engine(self) -> EnginePool:
        return EnginePool([FakeEngine(STEPPED, steps=3), FakeEngine(STEPPED, steps=3)])

    def make_request(self, number: int) -> EngineRequest:
        return request(f"w{number}")

    def make_bad_request(self) -> EngineRequest:
        return replace(request("bad"), kind=PrimitiveKind.INGESTION)


def test_members_share_the_work() -> None:
    first, second = FakeEngine(), FakeEngine()
    with pool(first, second) as engine:
        engine.submit([request(f"w{n}") for n in range(20)])
        found = outcomes(engine, 20)
    assert found == {f"w{n}": answer(f"w{n}") for n in range(20)}
    assert [len(sum(one.batches, ())) for one in (first, second)] == [10, 10]


@pytest.mark.parametrize(
    "error", [ConnectionError("refused"), TimeoutError(), EngineLostError("x")]
)
def test_what_a_dead_member_did_not_begin_goes_elsewhere(error: Exception) -> None:
    with pool(FakeEngine(faults=failing(error)), FakeEngine()) as engine:
        engine.submit([request(f"w{n}") for n in range(6)])
        assert outcomes(engine, 6) == {f"w{n}": answer(f"w{n}") for n in range(6)}
        assert engine.counts["moved_works"] == 3
        assert [part.state for part in engine.health().parts] == ["paused", "ready"]
        assert engine.health().is_ready


DOUBTFUL = {
    **{
        f"HTTP {status}": RemoteEngineError("the server refused the request", status=status)
        for status in (301, 302, 307, 401, 402, 403, 404, 405)
    },
    "an answer that cannot be right": EngineOutputError("a server's ranking cannot be right"),
}
OF_THE_REQUEST = {
    **{f"HTTP {status}": RemoteEngineError("refused", status=status) for status in (400, 413, 422)},
    "misuse": ConfigError("no such option"),
}


@pytest.mark.parametrize("error", DOUBTFUL.values(), ids=list(DOUBTFUL))
def test_a_member_pauses_for_an_error_that_another_does_not_have(error: RagAccelError) -> None:
    clock, is_repaired = ManualClock(), threading.Event()
    faults = Faults(item=lambda work: None if is_repaired.is_set() else error)
    members = [FakeEngine(faults=faults), FakeEngine()]
    with pool(*members, clock=clock) as engine:
        engine.submit([request("a")])
        assert outcomes(engine, 1) == {"a": answer("a")}
        first, second = engine.health().parts
        assert (first.state, second.state) == ("paused", "ready")
        assert f"it failed: {error.what}" in first.why
        engine.submit([request("b")])
        assert outcomes(engine, 1) == {"b": answer("b")}
        assert [len(sum(member.batches, ())) for member in members] == [1, 2]
        is_repaired.set()
        clock.advance(0.5)
        assert engine.health().parts[0].is_ready
        assert "tried again with the next work" in engine.health().parts[0].why
        engine.submit([request("c")])
        assert outcomes(engine, 1) == {"c": answer("c")}
        assert [len(sum(member.batches, ())) for member in members] == [2, 2]
        assert engine.health().parts[0] == Health(engine.names[0])


@pytest.mark.parametrize("error", DOUBTFUL.values(), ids=list(DOUBTFUL))
@pytest.mark.parametrize("other", [*DOUBTFUL.values(), *OF_THE_REQUEST.values()])
def test_where_one_other_member_fails_too_none_pauses_and_the_first_error_is_told(
    error: Exception, other: Exception
) -> None:
    third = FakeEngine()
    failed = [FakeEngine(faults=failing(each)) for each in (error, other)]
    with pool(*failed, third) as engine:
        engine.submit([request("w")])
        assert outcomes(engine, 1) == {"w": error}
        assert engine.health().parts == tuple(map(Health, engine.names))
    assert third.batches == []


@pytest.mark.parametrize("error", OF_THE_REQUEST.values(), ids=list(OF_THE_REQUEST))
def test_an_error_of_the_request_is_not_tried_elsewhere(error: Exception) -> None:
    second = FakeEngine()
    with pool(FakeEngine(faults=failing(error)), second) as engine:
        engine.submit([request("w")])
        assert outcomes(engine, 1) == {"w": error}
        assert engine.health().parts[0].is_ready
    assert second.batches == []


def test_a_dead_member_tells_nothing_of_the_one_in_doubt() -> None:
    wrong = RemoteEngineError("refused", status=404)
    members = [failing(wrong), failing(ConnectionError("dead")), None]
    with pool(*(FakeEngine(faults=faults) for faults in members)) as engine:
        engine.submit([request("w")])
        assert outcomes(engine, 1) == {"w": answer("w")}
        assert [part.state for part in engine.health().parts] == ["paused", "paused", "ready"]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_member_in_doubt_does_not_look_idle(is_cancelled: bool) -> None:
    may_go = threading.Event()
    wrong = FakeEngine(faults=failing(RemoteEngineError("refused", status=404)))
    with pool(wrong, FakeEngine(STEPPED, faults=Faults(hang=may_go))) as engine:
        engine.submit([request("w")])
        while not engine.counts["moved_works"]:
            engine.step(WAIT)
        assert [engine._placement.loads[at].items for at in range(2)] == [1, 1]
        if is_cancelled:
            engine.cancel([WorkId("w")])
        may_go.set()
        if not is_cancelled:
            outcomes(engine, 1)
        assert [engine._placement.loads[at].items for at in range(2)] == [0, 0]
        assert engine.health().parts[0].is_ready == is_cancelled


def test_where_all_fail_the_first_error_is_told() -> None:
    first, second = ConnectionError("first"), ConnectionError("second")
    with pool(FakeEngine(faults=failing(first)), FakeEngine(faults=failing(second))) as engine:
        engine.submit([request("w")])
        assert outcomes(engine, 1)["w"] is first
        assert engine.health().state == "paused"


def test_a_bad_item_fails_alone_everywhere() -> None:
    def members() -> list[FakeEngine]:
        return [FakeEngine(faults=failing("raise", "w3")) for _ in range(2)]

    with pool(*members()) as engine:
        engine.submit([request(f"w{n}") for n in range(8)])
        found = outcomes(engine, 8)
    assert isinstance(found.pop("w3"), EngineError)
    assert found == {id: answer(id) for id in found}


def test_what_has_streamed_is_never_begun_elsewhere() -> None:
    hang = threading.Event()
    second = FakeEngine()
    broken = FakeEngine(
        replace(FAKE_PROFILE, stepped=True), steps=3, faults=Faults(every_nth_step=2)
    )
    with pool(broken, second) as engine:
        engine.submit([request("w", stream=True)])
        pieces: list[str] = []
        ended: dict[str, Any] = {}
        while not ended:
            for output in engine.step(WAIT):
                if output.kind == "partial":
                    pieces.append(output.value)
                elif output.kind in ("final", "error"):
                    ended[output.id] = output.error
        hang.set()
    assert pieces
    assert isinstance(ended["w"], EngineError)
    assert second.batches == []


def test_state_is_resumed_where_it_is() -> None:
    members = [FakeEngine(STEPPED, steps=2) for _ in range(2)]
    with pool(*members) as engine:
        engine.submit([request("a"), request("b")])
        handles = {}
        ended = 0
        while ended < 2:
            for output in engine.step(WAIT):
                if output.kind == "progress":
                    handles[output.id] = output.handle
                ended += output.kind == "final"
        engine.submit([request("c", "text b", handle=handles["b"])])
        outcomes(engine, 1)
        held = [member for member in members if any("b" in batch for batch in member.batches)]
        assert [any("c" in batch for batch in member.batches) for member in held] == [True]
        engine.release(list(handles.values()))
        engine.submit([request("d", handle=handles["a"])])
        assert isinstance(outcomes(engine, 1)["d"], EngineError)


def test_an_unknown_handle_is_refused() -> None:
    with pool(FakeEngine(), FakeEngine()) as engine:
        engine.submit([request("w", handle="7:x"), request("v", handle="x")])
        assert all("unknown handle" in str(error) for error in outcomes(engine, 2).values())


def test_prompts_stay_where_their_beginning_was() -> None:
    members = [FakeEngine(), FakeEngine()]
    keys = lambda work: {work.payload.messages[0].content[:6]: 6}  # noqa: E731
    # Measured times would make one of them the faster, which may take both.
    with pool(*members, keys=keys, clock=ManualClock()) as engine:
        for turn in range(4):
            engine.submit(
                [request(f"a{turn}", f"alpha {turn}"), request(f"b{turn}", f"beta_ {turn}")]
            )
            outcomes(engine, 2)
    served = [{id[0] for batch in member.batches for id in batch} for member in members]
    assert served in ([{"a"}, {"b"}], [{"b"}, {"a"}])


def test_hints_reach_every_member() -> None:
    members = [FakeEngine(), FakeEngine()]
    with pool(*members) as engine:
        engine.hint(["text"])
    assert all("hint" in [call.method for call in member.calls] for member in members)


def test_nothing_is_taken_after_the_end() -> None:
    engine = EnginePool([FakeEngine()])
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        engine.submit([request("w")])
    assert engine.health().state == "lost"


def test_a_pool_whose_members_prepare_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    preparing = Health("member", "preparing", "it compiles")
    monkeypatch.setattr(FakeEngine, "health", lambda _: preparing, raising=False)
    with pool(FakeEngine(), FakeEngine()) as engine:
        assert engine.health().state == "preparing"


def test_a_member_is_given_no_more_than_its_batch() -> None:
    member = FakeEngine(replace(FAKE_PROFILE, max_batch=2))
    with pool(member) as engine:
        engine.submit([request(f"w{n}") for n in range(5)])
        assert len(outcomes(engine, 5)) == 5
    assert max(map(len, member.batches)) == 2


def test_ingestion_is_not_executed() -> None:
    with pool(FakeEngine(), FakeEngine()) as engine:
        assert PrimitiveKind.INGESTION not in engine.profile.kinds


def test_a_pool_has_members() -> None:
    with pytest.raises(ConfigError, match="made of different engines"):
        EnginePool([])
    one = FakeEngine()
    with pytest.raises(ConfigError, match="2 engines, 1 of them different"):
        EnginePool([one, one])


def test_members_do_the_same() -> None:
    embeds = replace(FAKE_PROFILE, capabilities=frozenset({Capability.EMBEDS}))
    with pytest.raises(ConfigError, match="must do the same"):
        EnginePool([FakeEngine(), FakeEngine(embeds)])


@pytest.mark.parametrize("role", ["llm", "index", "reranker"])
def test_an_accelerator_takes_lists_of_engines(role: str) -> None:
    members = [FakeEngine(), FakeEngine()]
    with Accelerator(**{role: members}) as accelerator:
        names = [part.name for part in accelerator.health().parts]
        assert names == [role]
        assert len(accelerator.health().parts[0].parts) == 2
    assert all(member.is_closed for member in members)


def test_a_list_of_anything_else_is_named() -> None:
    with pytest.raises(ConfigError, match=r"a list of engines.*reranker=.*builtin_function"):
        Accelerator(reranker=[FakeEngine(), len])


def test_a_member_whose_step_hangs_is_given_up_and_its_work_goes_elsewhere() -> None:
    may_go, clock = threading.Event(), ManualClock()
    hanging, other = FakeEngine(faults=Faults(hang=may_go)), FakeEngine()
    engine = EnginePool([hanging, other], step_timeout_s=30.0, clock=clock)
    try:
        engine.submit([request("a"), request("b")])
        assert set(outcomes(engine, 1)) == {"b"}
        wait_for_a_step(engine)
        clock.advance(31.0)
        assert outcomes(engine, 1) == {"a": answer("a")}
        assert [part.state for part in engine.health().parts] == ["lost", "ready"]
        engine.submit([request(f"c{n}") for n in range(4)])
        assert len(outcomes(engine, 4)) == 4
    finally:
        may_go.set()
        engine.close()


def test_a_request_ends_where_every_member_hangs() -> None:
    may_go, clock = threading.Event(), ManualClock()
    engine = EnginePool([FakeEngine(faults=Faults(hang=may_go))], step_timeout_s=30.0, clock=clock)
    try:
        engine.submit([request("a")])
        wait_for_a_step(engine)
        clock.advance(31.0)
        assert isinstance(outcomes(engine, 1)["a"], EngineLostError)
        engine.submit([request("b")])
        assert isinstance(outcomes(engine, 1)["b"], EngineLostError)
        assert engine.health().state == "lost"
    finally:
        may_go.set()
        engine.close()


def test_state_of_a_member_that_hangs_is_not_waited_for() -> None:
    may_go, clock = threading.Event(), ManualClock()
    may_go.set()
    members = [FakeEngine(steps=2, faults=Faults(hang=may_go)), FakeEngine()]
    engine = EnginePool(members, step_timeout_s=30.0, clock=clock)
    try:
        engine.submit([request("x")])
        told = [output for _ in range(2) for output in engine.step(WAIT)]
        handle = told[0].handle
        may_go.clear()
        engine.submit([request("a", handle=handle)])
        wait_for_a_step(engine)
        clock.advance(31.0)
        assert isinstance(outcomes(engine, 1)["a"], EngineLostError)
        engine.submit([request("b", handle=handle), request("c", handle=handle)])
        found = outcomes(engine, 2)
        assert all(isinstance(error, EngineLostError) for error in found.values())
        assert found["b"] is not found["c"]
    finally:
        may_go.set()
        engine.close()


def wait_for_a_step(engine: EnginePool) -> None:
    """Return once a member is in a step."""
    for _ in range(4000):
        if any(thread.step_s is not None for thread in engine._threads):
            return
        threading.Event().wait(0.005)
    raise AssertionError("no step has begun")
