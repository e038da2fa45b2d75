"""A model is compiled in the background, used while it is the same, and dropped when it changes."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rag_accel.engines.compiled import compiled_forms
from rag_accel.engines.embedding.compiled_model import MAX_BUILDS, BackgroundRuntime, Output, Tables

PATIENCE_S = 30.0


class FakeCompiled:
    """Be current until told otherwise."""

    modules: Sequence[Any] = ()

    def __init__(self) -> None:
        self.current = True

    def is_current(self) -> bool:
        return self.current

    def prepare(self, texts: Any, prompt: Any) -> Tables:
        return {}

    def start(self, tables: Tables, threads: int, output: Output) -> Callable[[], Any]:
        return dict


def proven(compiled: Any) -> str:
    """Find nothing wrong."""
    return "the same"


def settled(build: Callable[[], Any], prove: Callable[[Any], str] = proven) -> BackgroundRuntime:
    made = BackgroundRuntime(build, prove)
    assert made.current() is None
    made.wait(PATIENCE_S)
    return made


def test_no_call_waits_for_the_compilation() -> None:
    release = threading.Event()

    def build() -> FakeCompiled:
        assert release.wait(PATIENCE_S)
        return FakeCompiled()

    made = BackgroundRuntime(build, proven)
    assert [made.current() for _ in range(100)] == [None] * 100
    assert made.state == "building"
    release.set()
    made.wait(PATIENCE_S)
    assert made.state == "ready"
    assert made.current() is not None
    assert made.describe() == "compiled by OpenVINO, the same"


def test_what_cannot_be_compiled_is_not_tried_again() -> None:
    tries: list[int] = []

    def build() -> FakeCompiled:
        tries.append(1)
        raise ValueError("no such layer")

    made = settled(build)
    assert made.current() is None
    assert (made.state, made.reason, len(tries)) == ("refused", "no such layer", 1)


def test_other_vectors_are_never_used() -> None:
    def refute(compiled: Any) -> str:
        raise RuntimeError("its vectors differ")

    made = settled(FakeCompiled, refute)
    assert made.current() is None
    assert made.describe() == "runs on torch: its vectors differ"


def test_a_changed_model_is_dropped_at_once_and_compiled_again() -> None:
    found: list[FakeCompiled] = []

    def build() -> FakeCompiled:
        found.append(FakeCompiled())
        return found[-1]

    made = settled(build)
    assert made.current() is found[0]
    found[0].current = False
    assert made.current() is None
    made.wait(PATIENCE_S)
    assert made.current() is found[1]


def test_a_model_that_keeps_changing_is_left_alone() -> None:
    builds: list[FakeCompiled] = []

    def build() -> FakeCompiled:
        builds.append(FakeCompiled())
        return builds[-1]

    made = BackgroundRuntime(build, proven)
    for _ in range(10):
        made.current()
        made.wait(PATIENCE_S)
        for one in builds:
            one.current = False
    assert len(builds) == MAX_BUILDS
    assert (made.state, made.reason) == ("refused", "it keeps changing")


def test_a_model_that_changes_while_it_is_compiled_is_compiled_again() -> None:
    builds: list[FakeCompiled] = []

    def build() -> FakeCompiled:
        builds.append(FakeCompiled())
        builds[-1].current = len(builds) > 1
        return builds[-1]

    made = settled(build)
    assert made.current() is None
    made.wait(PATIENCE_S)
    assert made.current() is builds[1]


def test_where_no_thread_can_be_started_torch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made = BackgroundRuntime(FakeCompiled, proven)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert made.current() is None
    assert made.describe() == "runs on torch: can't start new thread"
    assert made.current() is None


def test_a_runtime_goes_with_its_last_user() -> None:
    gc.disable()  # nothing may wait for it: a compiled model is large
    try:
        made = settled(FakeCompiled)
        assert made.current() is not None
        gone = weakref.ref(made)
        del made
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_child_of_a_process_that_has_compiled_does_not() -> None:
    settled(FakeCompiled)
    child = os.fork()
    if child == 0:
        made = settled(FakeCompiled)
        os._exit(0 if made.state == "refused" and "forked" in made.reason else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    compiled_forms.note_start()  # nothing is refused here


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_what_was_compiled_before_a_fork_is_not_used_in_the_child() -> None:
    made = settled(FakeCompiled)
    child = os.fork()
    if child == 0:
        os._exit(0 if made.current() is None and "forked" in made.describe() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made.current() is not None


def test_many_threads_that_notice_a_change_compile_it_once() -> None:
    builds: list[FakeCompiled] = []

    def build() -> FakeCompiled:
        builds.append(FakeCompiled())
        return builds[-1]

    made = settled(build)
    builds[0].current = False
    together = threading.Barrier(8, timeout=PATIENCE_S)

    def look() -> None:
        together.wait()
        made.current()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    made.wait(PATIENCE_S)
    assert len(builds) == 2


class FakeModel:
    """Something that can be seen going."""


def waiting_for(model: FakeModel, builds: list[FakeModel]) -> BackgroundRuntime:
    def build() -> FakeCompiled:
        builds.append(model)
        return FakeCompiled()

    made = BackgroundRuntime(build, proven)
    assert made.current() is None
    return made


def test_models_that_wait_go_with_their_users_and_are_not_compiled() -> None:
    has_begun, release = threading.Event(), threading.Event()

    def build() -> FakeCompiled:
        has_begun.set()
        assert release.wait(PATIENCE_S)
        return FakeCompiled()

    first = BackgroundRuntime(build, proven)
    assert first.current() is None
    assert has_begun.wait(PATIENCE_S)
    builds: list[FakeModel] = []
    kept, dropped = FakeModel(), [FakeModel() for _ in range(8)]
    last = waiting_for(kept, builds)
    others = [waiting_for(model, builds) for model in dropped]
    gone = [weakref.ref(model) for model in dropped]
    tasks = [one._task for one in others]  # pyright: ignore[reportPrivateUsage]
    dropped.clear()
    others.clear()
    gc.collect()
    assert [one() for one in gone] == [None] * 8
    release.set()
    for made in (first, last):
        made.wait(PATIENCE_S)
        assert made.state == "ready"
    for task in tasks:
        assert task is not None
        task.wait(PATIENCE_S)
    assert builds == [kept]


def test_a_model_that_has_gone_before_it_was_proven_is_let_go() -> None:
    has_begun, release = threading.Event(), threading.Event()

    def build() -> FakeCompiled:
        has_begun.set()
        assert release.wait(PATIENCE_S)
        return FakeCompiled()

    made = BackgroundRuntime(build, proven)
    assert made.current() is None
    assert has_begun.wait(PATIENCE_S)
    task, gone = made._task, weakref.ref(made)  # pyright: ignore[reportPrivateUsage]
    del made
    assert gone() is None
    release.set()
    assert task is not None
    task.wait(PATIENCE_S)
