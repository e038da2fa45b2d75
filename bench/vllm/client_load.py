"""A user alone before vLLM's server: the plain client and the same one, adopted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from bench.measure import Pairs, alternate
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engines.llm.vllm.server import VllmServer

#: Most seconds until the server answers.
_START_S = 240.0
_QUESTION = "Which of these words come before the others, and why do they? Turn {turn}."


@contextmanager
def served(python: Path, model: Path, states: Path, env: Mapping[str, str]) -> Iterator[VllmServer]:
    """Give a server over a model; it ends with the block.

    Raises:
        ConfigError: it ended, or did not answer in time.
    """
    arguments = [
        *(str(model), "--kv-folder", str(states), "--served-model-name", "random"),
        *("--dtype", "bfloat16", "--enforce-eager", "--block-size", "32"),
    ]
    variables = {
        **env,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    server = VllmServer("random weights", str(python), tuple(arguments), variables, _START_S)
    server.open()
    try:
        yield server
    finally:
        server.leave()
        server.end_unused()


def measure_user(server: VllmServer, turns: int, tokens: int) -> Pairs[float]:
    """Return the seconds of calls of the plain chain and of the accelerated one, in turn.

    Args:
        server: is open.
        turns: of each.
        tokens: of an answer.
    """
    prompt = ChatPromptTemplate.from_messages([("user", _QUESTION)])
    model = ChatOpenAI(
        model="random",
        base_url=server.base_url,
        api_key=server.api_key,  # type: ignore[arg-type]
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
