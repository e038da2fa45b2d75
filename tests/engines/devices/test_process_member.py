"""A member in a child process: equal vectors, errors as they are, and a child that surely ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import child_models
import numpy as np
import pytest
from child_processes import await_end, is_there
from fake_members import FakeMember, plain_vectors

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import ProcessMember
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.members import Member
from rag_accel.engines.replicas import child_process
from rag_accel.errors import ConfigError, EngineError, EngineLostError
from rag_accel.testing import ManualClock

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")


@contextmanager
def process(model: Any = child_models.plain, **more: Any) -> Iterator[ProcessMember]:
    member = ProcessMember(model, **more)
    try:
        yield member
    finally:
        member.close()


def request(id: str, *texts: str) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, TextBatch(texts))


def ended(group: DeviceGroup) -> Any:
    for _ in range(100):
        for output in group.step(StepBudget(10.0)):
            return output.value if output.kind == "final" else output.error
    raise AssertionError("nothing ended")


def test_its_vectors_are_those_of_the_model() -> None:
    texts = [f"text {number}" for number in range(40)]
    with process() as member:
        found = member.embed(texts, "query", 1)
    assert isinstance(member, Member)
    np.testing.assert_array_equal(found, plain_vectors(texts, "query"))


@pytest.mark.processes
def test_a_real_model_computes_in_the_child_what_it_computes_here(minilm: Any) -> None:
    texts = ["one", "retrieval of vectors " * 20]
    with process(None, runtime="torch") as member:
        found = member.embed(texts, "document", 1)
    np.testing.assert_allclose(found, minilm.encode(texts), rtol=0, atol=1e-6)


def test_what_the_model_raises_is_raised_here() -> None:
    with process() as member:
        with pytest.raises(child_models.OwnError, match="as told"):
            member.embed(["raise"], "query", 1)
        assert len(member.embed(["goes on"], "query", 1)) == 1


def test_an_error_that_cannot_be_sent_is_described() -> None:
    with process() as member, pytest.raises(EngineError, match="bread and butter"):
        member.embed(["raise another"], "query", 1)


def test_what_a_model_prints_gets_between_no_answers() -> None:
    with process(child_models.talkative) as member:
        for _ in range(3):
            assert len(member.embed(["x"], "query", 1)) == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity masks here")
def test_the_child_runs_on_the_cores_it_is_given() -> None:
    allowed = os.sched_getaffinity(0)
    with process(cpus=[max(allowed)]) as member:
        assert member.embed(["cpus"], "query", 1)[0][0] == max(allowed)
        assert member.max_threads == 1
    assert os.sched_getaffinity(0) == allowed


# How it ends.


def test_a_child_that_is_killed_ends_the_call_with_how_it_died() -> None:
    with process() as member:
        with pytest.raises(EngineLostError, match="signal 9"):
            member.embed(["die"], "query", 1)
        with pytest.raises(EngineLostError):
            member.embed(["x"], "query", 1)


def test_a_child_that_dies_while_it_loads_says_its_last_words() -> None:
    said = r"status 7.*out of cheese"
    with process(child_models.dying) as member, pytest.raises(EngineLostError, match=said):
        member.embed(["x"], "query", 1)


def test_a_model_that_cannot_be_loaded_is_an_error_with_the_reason() -> None:
    said = "no such model"
    with process(child_models.broken) as member, pytest.raises(EngineLostError, match=said):
        member.embed(["x"], "query", 1)


@pytest.mark.parametrize(
    ("model", "text", "limit"),
    [
        (child_models.hanging, "x", {"start_timeout_s": 0.1}),
        (child_models.plain, "hang", {"step_timeout_s": 0.1}),
    ],
)
def test_a_child_that_takes_too_long_is_ended(model: Any, text: str, limit: Any) -> None:
    with process(model, **limit) as member:
        with pytest.raises(EngineLostError, match=r"no answer in 0\.1 s"):
            member.embed([text], "query", 1)
        assert member.pid is not None
        await_end(member.pid)


def test_a_member_that_was_aborted_starts_no_child() -> None:
    with process() as member:
        member.abort()
        with pytest.raises(EngineLostError):
            member.embed(["x"], "query", 1)
        assert member.pid is None


def test_close_ends_the_child_and_frees_what_it_had() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with process() as member:
        member.embed(["x"], "query", 1)
        pid = member.pid
        assert pid is not None
    assert not is_there(pid)
    assert len(os.listdir("/proc/self/fd")) == before
    member.close()


def test_close_ends_a_child_that_does_not_end_by_itself() -> None:
    with process() as member:
        member.embed(["x"], "query", 1)
        assert member.pid is not None
        os.kill(member.pid, signal.SIGSTOP)
    assert not is_there(member.pid)


def test_a_forgotten_member_leaves_no_child() -> None:
    member = ProcessMember(child_models.plain)
    member.embed(["x"], "query", 1)
    pid = member.pid
    assert pid is not None
    del member
    gc.collect()
    assert not is_there(pid)


_SCRIPT = """
import os, sys
sys.path[:0] = sys.argv[1:]
import child_models
from rag_accel.engines import ProcessMember
member = ProcessMember(child_models.plain)
member.embed(["x"], "query", 1)
print(member.pid, flush=True)
{end}
"""


@pytest.mark.processes
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_the_child_ends_with_the_interpreter_however_that_ends(end: str) -> None:
    script = _SCRIPT.format(end=end)
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, here, here.parents[1]],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (-9 if "kill" in end else 0)
    assert done.stderr == ""
    await_end(int(done.stdout))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_and_ends_nothing() -> None:
    with process() as member:
        member.embed(["x"], "query", 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                member.embed(["x"], "query", 1)
            except Exception as error:
                status = 0 if type(error).__name__ == "ForkedError" else 2
            finally:
                member.close()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(member.embed(["y"], "query", 1)) == 1


def test_an_interrupt_ends_the_child_so_that_no_answer_comes_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    with process() as member:
        member.embed(["x"], "query", 1)
        monkeypatch.setattr(child_process, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            member.embed(["late"], "query", 1)
        monkeypatch.undo()
        with pytest.raises(EngineLostError):
            member.embed(["next"], "query", 1)


def test_a_text_of_a_class_of_the_callers_is_its_string() -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "something else"

    with process() as member:
        found = member.embed([Text("x"), "\ud800"], "query", 1)
    np.testing.assert_array_equal(found[:1], plain_vectors(["x"], "query"))


# In a group.


def test_pieces_of_a_killed_child_run_on_another_member() -> None:
    with process() as member:
        group = DeviceGroup([member, FakeMember("other")], slo_s=60.0)
        try:
            assert member.pid is not None
            os.kill(member.pid, signal.SIGKILL)
            group.submit([request("w", "a", "b")])
            np.testing.assert_array_equal(ended(group), plain_vectors(["a", "b"], "query"))
            assert "signal 9" in group.describe_parts()[0]
        finally:
            group.close()


@pytest.mark.processes
def test_twenty_kills_leave_no_process_no_file_and_no_thread() -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    pids: list[int] = []
    for number in range(20):
        member = ProcessMember(child_models.plain)
        group = DeviceGroup([FakeMember("first"), member])
        assert member.pid is not None
        pids.append(member.pid)
        texts = [f"{number} {row}" for row in range(300)]
        group.submit([request("w", *texts)])
        os.kill(member.pid, signal.SIGKILL)
        np.testing.assert_array_equal(ended(group), plain_vectors(texts, "query"))
        group.close()
    assert not any(map(is_there, pids))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_group_that_is_closed_does_not_wait_for_a_running_step() -> None:
    member = ProcessMember(child_models.plain, step_timeout_s=600)
    group = DeviceGroup([member])
    group.submit([request("w", "hang")])
    group.close()
    assert member.pid is not None
    await_end(member.pid)


def test_a_child_that_hangs_is_ended_when_its_group_gives_it_up() -> None:
    clock = ManualClock()
    member = ProcessMember(child_models.plain, step_timeout_s=600)
    group = DeviceGroup(
        [member, FakeMember("other")], slo_s=1000.0, step_timeout_s=5.0, clock=clock
    )
    try:
        pid = member.pid
        assert pid is not None
        group.submit([request("w", "hang")])
        clock.advance(6.0)
        np.testing.assert_array_equal(ended(group), plain_vectors(["hang"], "query"))
        await_end(pid)
    finally:
        group.close()


def test_a_model_of_other_vectors_stays_out_and_its_child_ends() -> None:
    member = ProcessMember(child_models.shifted)
    group = DeviceGroup([FakeMember("first"), member])
    try:
        assert "process: stays out: other vectors" in group.describe_parts()[1]
        assert member.pid is not None
        assert not is_there(member.pid)
    finally:
        group.close()


def test_a_first_member_without_a_model_is_refused_and_its_child_ends() -> None:
    member = ProcessMember(child_models.broken)
    with pytest.raises(ConfigError, match=r"cannot embed.*no such model"):
        DeviceGroup([member])
    assert member.pid is not None
    assert not is_there(member.pid)


# What is refused.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProcessMember(lambda: None), "cannot be sent"),
        (lambda: ProcessMember(object()), "a model in memory"),  # type: ignore[arg-type]
        (lambda: ProcessMember(cpus=[]), "no cores"),
        (lambda: ProcessMember(cpus=[100_000]), "no cores"),
    ],
)
def test_what_a_child_could_not_use_is_refused_at_once(
    make: Callable[[], ProcessMember], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_program_without_an_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/app")
    with pytest.raises(ConfigError, match="needs a Python interpreter"):
        ProcessMember()
