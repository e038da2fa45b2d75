"""Engines in child processes of this machine: results, lost children, and the end of them all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_chat
from aiohttp import web
from child_processes import await_end, is_there
from fake_runner import tokenizer
from loopback_server import LoopbackServer

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines import LocalLLM, ProcessEngine, ProcessOptions, RemoteLLM
from rag_accel.errors import ConfigError, EngineLostError
from rag_accel.testing import compute

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc"),
]

FAKE = "hosted_engines:fake"
POISONED = "hosted_engines:PoisonedEngine"


def embedding(id: str, text: str = "") -> EngineRequest:
    payload = TextBatch((text or f"text {id}",))
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, payload)


@contextmanager
def hosted(*given: Any, **options: Any) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(*given, options=ProcessOptions(threads=1, **options))
    try:
        yield engine
    finally:
        engine.close()


def ends(engine: ProcessEngine, count: int) -> dict[str, EngineOutput]:
    ended: dict[str, EngineOutput] = {}
    while len(ended) < count:
        for output in engine.step(StepBudget(1.0)):
            if output.kind in ("final", "error"):
                ended[output.id] = output
    return ended


def pids(engine: ProcessEngine) -> list[int]:
    return [replica.info.pid for replica in engine._replicas if replica.info is not None]


def test_an_engine_computes_in_a_child_what_it_computes_here() -> None:
    with hosted(FAKE, {"name": "x"}) as engine:
        work = embedding("a")
        engine.submit([work])
        np.testing.assert_array_equal(ends(engine, 1)["a"].value, compute(work.payload))
        assert pids(engine) != [os.getpid()]


def test_work_of_a_killed_child_is_computed_by_the_one_that_follows() -> None:
    with hosted(FAKE) as engine:
        killed = pids(engine)
        os.kill(killed[0], signal.SIGKILL)
        engine.submit([embedding(str(number)) for number in range(20)])
        assert not [end.error for end in ends(engine, 20).values() if end.error is not None]
        assert pids(engine) != killed


def test_work_that_kills_its_child_ends_in_an_error_alone() -> None:
    with hosted(POISONED) as engine:
        engine.submit([embedding("bad", "poison"), *(embedding(str(n)) for n in range(12))])
        ended = ends(engine, 13)
    failed = {id: end.error for id, end in ended.items() if end.error is not None}
    assert list(failed) == ["bad"]
    assert isinstance(failed["bad"], EngineLostError)
    assert "signal 9" in str(failed["bad"])


def test_a_child_that_may_not_start_again_is_lost_with_how_it_ended() -> None:
    with hosted(FAKE, max_restarts=0) as engine:
        os.kill(pids(engine)[0], signal.SIGKILL)
        engine.submit([embedding("a"), embedding("b")])
        errors = [end.error for end in ends(engine, 2).values()]
        assert all(isinstance(error, EngineLostError) for error in errors)
        assert errors[0] is not errors[1]
        assert engine.health().state == "lost"
        assert "signal 9" in engine.health().parts[0].why


def test_a_factory_that_raises_or_ends_its_child_is_named() -> None:
    with pytest.raises(OSError, match="no such model"), hosted("child_models:broken"):
        pass
    with pytest.raises(EngineLostError, match=r"status 7.*out of cheese"):
        hosted("child_models:dying", max_restarts=0).__enter__()


def test_closed_engines_leave_no_process_no_file_and_no_thread() -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with hosted(FAKE, replicas=2) as engine:
        engine.submit([embedding("a")])
        ends(engine, 1)
        children = pids(engine)
    assert not any(map(is_there, children))
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_forked_child_is_told_and_ends_nothing() -> None:
    with hosted(FAKE) as engine:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                engine.close()
                engine.submit([embedding("in the fork")])
            except Exception as error:
                status = 0 if type(error).__name__ == "ForkedError" else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.submit([embedding("a")])
        assert ends(engine, 1)["a"].error is None


_SCRIPT = """
import os, sys
sys.path[:0] = sys.argv[1:]
from rag_accel.engines import ProcessEngine
engine = ProcessEngine("hosted_engines:fake")
print(engine._replicas[0].info.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_a_program_that_ends_with_an_open_engine_leaves_no_child(end: str) -> None:
    helpers = Path(__file__).parents[1] / "ray"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SCRIPT.format(end=end), helpers],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (-9 if end else 0)
    assert done.stderr == ""
    await_end(int(done.stdout))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ProcessEngine(lambda: None), "cannot be imported"),  # type: ignore[arg-type,return-value]
        (lambda: ProcessEngine(FAKE, {"x": threading.Lock()}), "argument 'x'"),
        (lambda: ProcessOptions(threads=0), "ProcessOptions.threads"),
        (lambda: ProcessOptions(cpus=2), "ProcessOptions.cpus"),  # type: ignore[arg-type]
        (lambda: ProcessEngine(FAKE, options=ProcessOptions(cpus=[9999])), "no cores"),
    ],
)
def test_what_a_child_could_not_use_is_refused_at_once(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


class TinyServer(LoopbackServer):
    """A chat server of the tiny model."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        call = await request.json()
        text = tiny_chat.generated(call["messages"][-1]["content"])
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        )


def test_a_list_of_a_model_here_in_a_process_and_on_a_server_loses_no_request() -> None:
    questions = [f"question {number % 8}" for number in range(64)]
    graph = RAGraph().add_generation("answer", "{input}", max_tokens=tiny_chat.TOKENS)
    graph.add_edge(START, "answer").add_edge("answer", END)
    child = ProcessEngine("hosted_llms:tiny", options=ProcessOptions(threads=1, max_restarts=0))
    with TinyServer() as server:
        here = LocalLLM(tiny_chat.model(), tokenizer())
        llm = [here, child, RemoteLLM(server.base_url, "tiny")]
        with Accelerator(llm=llm) as accelerator:
            handles = [accelerator.submit(graph, input=question) for question in questions]
            handles[1].result()
            os.kill(pids(child)[0], signal.SIGKILL)
            texts = [handle.result() for handle in handles]
    assert texts == [tiny_chat.generated(question) for question in questions]
