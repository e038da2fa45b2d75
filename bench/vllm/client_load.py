"""A user alone before vLLM's server: the plain client and the same one, adopted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from bench.measure import Pairs, alternate
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.errors import EngineError

#: Most seconds until the server answers.
_START_S = 240.0
_QUESTION = "Which of these words come before the others, and why do they? Turn {turn}."


@contextmanager
def served(python: Path, model: Path, states: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Give the base URL of a server over a model; it ends with the block.

    Raises:
        EngineError: it ended, or did not answer in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(python), "-m", "vllm_rag_accel.serve", str(model), "--kv-folder", str(states)),
        *("--served-model-name", "random", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--enforce-eager", "--block-size", "32"),
    ]
    variables = {
        **os.environ,
        **env,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=variables, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    late_at = time.monotonic() + _START_S
    while True:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        if process.poll() is not None or time.monotonic() > late_at:
            raise EngineError(
                "vLLM's server did not start",
                where=str(process.args),
                found=f"exit code {process.poll()}",
                hint="start it by hand to see why",
            )
        time.sleep(0.2)


def measure_user(base_url: str, turns: int, tokens: int) -> Pairs[float]:
    """Return the seconds of calls of the plain chain and of the accelerated one, in turn.

    Args:
        base_url: of the server.
        turns: of each.
        tokens: of an answer.
    """
    prompt = ChatPromptTemplate.from_messages([("user", _QUESTION)])
    model = ChatOpenAI(
        model="random",
        base_url=base_url,
        api_key="none",  # type: ignore[arg-type]
        max_tokens=tokens,  # type: ignore[call-arg]
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    plain: Any = prompt | model
    with Accelerator(kv_reuse="full", strict=True) as accelerator:
        fast: Any = accelerate(plain, accelerator=accelerator)
        return alternate(_timed(plain), _timed(fast), turns, warm_up=2)


def _timed(program: Any) -> Any:
    def call(turn: int) -> float:
        began = time.perf_counter()
        program.invoke({"turn": turn})
        return time.perf_counter() - began

    return call
