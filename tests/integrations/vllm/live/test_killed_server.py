"""A server that is killed while it keeps texts, and the one that finds its folder."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from exact_engine import EngineAnswer
from exact_prompts import TOLERANCE, TextPrompt
from exact_reference import Reference
from vllm_server import VllmServer

# vLLM and what it imports warn of their own ways.
pytestmark = pytest.mark.filterwarnings("ignore")


def _ask(base_url: str, prompt: TextPrompt) -> dict[str, Any]:
    import httpx

    body = {
        "model": "tiny",
        "prompt": prompt.ids(),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **prompt.request("full").fields(),
    }
    return httpx.post(f"{base_url}/completions", json=body, timeout=60).json()


def _until(holds: Any) -> None:
    ends = time.monotonic() + 60
    while not holds() and time.monotonic() < ends:
        threading.Event().wait(0.001)
    assert holds()


def test_texts_of_a_killed_server_are_whole_or_computed(models: Path, tmp_path: Path) -> None:
    """Whatever a write was cut off at, the next server gives what the reference gives."""
    folder = tmp_path / "kv"
    prompts = [TextPrompt.random(random.Random(at), (700, 800)) for at in range(6)]
    with VllmServer(models / "llama", folder, tmp_path / "log") as server:

        def send(prompt: TextPrompt) -> None:
            import httpx

            with contextlib.suppress(httpx.HTTPError):  # it is killed
                _ask(server.base_url, prompt)

        threads = [threading.Thread(target=send, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        _until(lambda: len(list(folder.glob("*.kv"))) >= 2)
        os.killpg(server.process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        kept = len(list(folder.glob("*.kv")))
    reference = Reference(models / "llama")
    with VllmServer(models / "llama", folder, tmp_path / "log2") as server:
        reused = 0
        for prompt in prompts:
            answer = _ask(server.base_url, prompt)
            (choice,) = answer["choices"]
            found = choice["logprobs"]["token_logprobs"]
            logprobs = [dict(zip(choice["token_ids"], found, strict=True))]
            said = answer["kv_transfer_params"]["rag_accel"]
            reused += said["reused_tokens"] > 0
            compared = EngineAnswer(choice["token_ids"], logprobs, 0, said)
            assert prompt.reused(reference, compared) < TOLERANCE
    assert kept >= 2
    assert reused >= 1
    assert not list(folder.glob(".*.tmp"))
