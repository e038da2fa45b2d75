"""Whole processes: forks, Ctrl-C, and exits with work in flight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from accel_harness import PATIENCE_S, generation_graph, opened, reply

from rag_accel import ForkedError, shutdown
from rag_accel.accelerator import default_accelerator
from rag_accel.testing import FakeEngine

ROOT = Path(__file__).parents[2]

# A process started in the background of a script inherits that Ctrl-C is ignored.
PREAMBLE = """
import asyncio, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from rag_accel import *
from rag_accel.accelerator import default_accelerator
from rag_accel.testing import *
never = threading.Event()
gone = []

class Hanging(FakeEngine):
    def step(self, budget):
        print("ready", flush=True)
        never.wait()

class Endless(FakeEngine):
    def cancel(self, ids):
        super().cancel(ids)
        gone.extend(ids)

def generation():
    graph = RAGraph()
    graph.add_generation("text", prompt="{input}")
    return graph.add_edge(START, "text").add_edge("text", END)

def function(fn):
    graph = RAGraph()
    graph.add_function("call", fn, inputs="input")
    return graph.add_edge(START, "call").add_edge("call", END)

def hang(text):
    print("ready", flush=True)
    never.wait()

async def ahang(text):
    print("ready", flush=True)
    await asyncio.Event().wait()
"""


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PREAMBLE + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must end well, and return what it printed."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the process did not end:\n{out}\n{err}")
    assert err == "", err
    assert process.returncode == 0
    return out


# Exits ------------------------------------------------------------------------------------------


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize(
    "script",
    [
        """
        Accelerator(llm=FakeEngine()).run(generation(), input="x")
        """,
        """
        acc = Accelerator(llm=Hanging(), shutdown_s=0.1)
        handles = [acc.submit(generation(), input="x") for _ in range(5)]
        time.sleep(0.2)
        """,
        """
        acc = Accelerator(shutdown_s=0.1)
        handle = acc.submit(function(hang), input="x")
        time.sleep(0.2)
        """,
        """
        try:
            default_accelerator().run(function(hang), deadline_s=0.2, input="x")
        except DeadlineError:
            pass
        """,
        """
        acc = Accelerator(llm=Hanging(), shutdown_s=0.1)
        def wait():
            try:
                acc.run(generation(), input="x")
            except ClosedError:
                pass
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.2)
        """,
        """
        acc = Accelerator(llm=Hanging(), shutdown_s=0.1)
        async def main():
            asyncio.ensure_future(acc.arun(generation(), input="x"))
            asyncio.ensure_future(acc.arun(function(ahang), input="x"))
            await asyncio.sleep(0.2)
        asyncio.run(main())
        """,
        """
        acc = Accelerator(llm=FakeEngine(steps=1000))
        pieces = acc.stream(generation(), input="x" * 5000)
        next(pieces)
        """,
        """
        acc = Accelerator(llm=FakeEngine(steps=1000))
        async def main():
            async for piece in acc.astream(generation(), input="x" * 5000):
                break
        asyncio.run(main())
        """,
    ],
    ids=[
        "idle",
        "a hanging engine",
        "a hanging function",
        "a function left behind",
        "a thread that waits",
        "tasks",
        "a stream",
        "an async stream",
    ],
)
def test_a_process_ends_well_with_work_in_flight(script: str) -> None:
    finish(start(script))


# Ctrl-C -----------------------------------------------------------------------------------------


def interrupt(script: str) -> str:
    process = start(script)
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE_S * 2, process.kill)
    watchdog.start()
    assert process.stdout.readline() == "ready\n", process.communicate()
    process.send_signal(signal.SIGINT)
    out = finish(process)
    watchdog.cancel()
    return out


CHECK = """
    while not acc.is_idle:
        time.sleep(0.01)
    print("interrupted", len(gone))
"""


def test_ctrl_c_in_a_blocking_run_cancels_its_work() -> None:
    out = interrupt(
        """
class Telling(Endless):
    def step(self, budget):
        outputs = super().step(budget)
        if len(self.batches) == 3:
            print("ready", flush=True)
        return outputs

acc = Accelerator(llm=Telling(steps=10**9))
try:
    acc.run(generation(), input="x")
except KeyboardInterrupt:
    """
        + CHECK
    )
    assert out == "interrupted 1\n"


@pytest.mark.processes  # a Ctrl-C that finds the caller waiting is the one in `make test`
def test_ctrl_c_just_before_a_caller_waits_is_not_lost() -> None:
    out = finish(
        start(
            """
            import random
            random.seed(1)
            acc, graph = Accelerator(llm=FakeEngine(steps=10**9)), generation()
            def interrupt(delay):
                time.sleep(delay)
                os.kill(os.getpid(), signal.SIGINT)
            for _ in range(300):
                thread = threading.Thread(target=interrupt, args=(random.random() / 250,))
                try:
                    thread.start()
                    acc.run(graph, input="x")
                except KeyboardInterrupt:
                    thread.join()
            while not acc.is_idle:
                time.sleep(0.01)
            print("interrupted")
            """
        )
    )
    assert out == "interrupted\n"


def test_ctrl_c_in_a_stream_cancels_its_work() -> None:
    out = interrupt(
        """
from dataclasses import replace
from rag_accel.engine_api import PrimitiveKind
profile = replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}))
acc = Accelerator(llm=Endless(profile, steps=10**5))
try:
    for place, piece in enumerate(acc.stream(generation(), input="x" * 10**6)):
        if place == 0:
            print("ready", flush=True)
except KeyboardInterrupt:
    """
        + CHECK
    )
    assert out == "interrupted 1\n"


@pytest.mark.parametrize("kind", ["hang", "ahang"])
def test_ctrl_c_in_a_function_of_the_callers_thread(kind: str) -> None:
    out = interrupt(
        f"""
acc = Accelerator()
try:
    acc.run(function({kind}), input="x")
except KeyboardInterrupt:
    """
        + CHECK
    )
    assert out == "interrupted 0\n"


def test_ctrl_c_in_arun() -> None:
    out = interrupt(
        """
acc = Accelerator()
try:
    asyncio.run(acc.arun(function(ahang), input="x"))
except KeyboardInterrupt:
    """
        + CHECK
    )
    assert out == "interrupted 0\n"


def test_ctrl_c_while_waiting_for_a_permit() -> None:
    out = interrupt(
        """
from rag_accel.engine_api import PrimitiveKind
acc = Accelerator()
engine = acc.borrow("chat", PrimitiveKind.DECODING, 1)
with acc.leaves.permit(acc.anonymous(), engine, PrimitiveKind.DECODING):
    try:
        print("ready", flush=True)
        with acc.leaves.permit(acc.anonymous(), engine, PrimitiveKind.DECODING):
            pass
    except KeyboardInterrupt:
        pass
if True:
    """
        + CHECK
    )
    assert out == "interrupted 0\n"


# Forks ------------------------------------------------------------------------------------------

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
ignores = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(check: object) -> None:
    """Run a check in a forked child that also runs its exit handlers."""
    script = os.fork()
    if script == 0:
        import traceback

        status = 1
        try:
            check()  # type: ignore[operator]
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(script, 0)[1]) == 0


@forks
@ignores
def test_an_explicit_accelerator_is_refused_in_a_child_and_the_parent_goes_on() -> None:
    with opened(llm=FakeEngine()) as acc:
        assert acc.run(generation_graph(), input="x") == reply("x")

        def check() -> None:
            assert acc.forked
            for use in (acc.run, acc.submit):
                with pytest.raises(ForkedError):
                    use(generation_graph(), input="x")
            with pytest.raises(ForkedError):
                acc.add_engine("new", FakeEngine())
            acc.close()

        in_child(check)
        assert not acc.forked
        assert acc.run(generation_graph(), input="y") == reply("y")


@forks
@ignores
def test_the_default_is_a_fresh_one_in_a_child() -> None:
    parents = default_accelerator()

    def check() -> None:
        fresh = default_accelerator()
        assert fresh is not parents
        fresh.add_engine("llm", FakeEngine())
        assert fresh.run(generation_graph(), input="x") == reply("x")
        shutdown()

    try:
        in_child(check)
        assert default_accelerator() is parents
        assert not parents.closed
    finally:
        shutdown()


@forks
def test_a_child_forked_with_work_in_flight_ends_well() -> None:
    script = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    acc = Accelerator(llm=FakeEngine(steps=200))
    handles = [acc.submit(generation(), input="x" * 1000) for _ in range(20)]
    default_accelerator()
    child = os.fork()
    if child == 0:
        del acc, handles
        sys.exit(0)  # runs the exit handlers
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for handle in handles:
        handle.result(20)
    """
    finish(start(script))


def test_the_default_is_made_once_and_again_after_shutdown() -> None:
    try:
        first = default_accelerator()
        assert default_accelerator() is first
        shutdown()
        assert first.closed
        second = default_accelerator()
        assert second is not first
        second.close()
        assert default_accelerator() is not second
    finally:
        shutdown()
    shutdown()
