"""A fake of vLLM's asynchronous engine: tokens without a model, a cache of beginnings by salt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from transformers import LlamaConfig

from rag_accel.engines.llm.vllm.library import VllmLibrary

CONTEXT = 512
#: The first token that is generated; each further one is the next.
FIRST = 5


class FakeDeadError(Exception):
    """The engine's processes have ended."""


@dataclass
class FakeVllm:
    """The state of the fake, shared with a test.

    Args:
        params: what the connector says at the end of a request.
        cached: tokens of each prompt that were not computed; None for those of the same beginning.
        fault: raised by each request.
        start_fault: raised by the start.
        end: the token after which a completion stops by itself, by number.
        reason: how a request ends that does not stop by itself.
    """

    params: dict[str, Any] | None = None
    cached: int | None = None
    fault: Exception | None = None
    start_fault: Exception | None = None
    end: int | None = None
    reason: str = "length"
    #: requests end only once it is set
    gate: asyncio.Event | None = None
    config: Any = None
    calls: list[SimpleNamespace] = field(default_factory=list[SimpleNamespace])
    aborted: list[str] = field(default_factory=list[str])
    seen: list[tuple[str | None, tuple[int, ...]]] = field(
        default_factory=list[tuple[str | None, tuple[int, ...]]]
    )
    errored: bool = False
    shutdowns: int = 0


@dataclass
class FakeArguments:
    """Those of ``AsyncEngineArgs`` that are used."""

    model: str = ""
    dtype: str = "auto"
    max_num_seqs: int = 0
    max_model_len: int = CONTEXT
    scheduling_policy: str = "fcfs"
    kv_cache_memory_bytes: int | None = None
    kv_transfer_config: Any = None
    worker_cls: str = "auto"
    disable_log_stats: bool = False
    enable_log_requests: bool = True

    def create_engine_config(self) -> Any:
        """Return what the engine is made of."""
        model = SimpleNamespace(
            max_model_len=self.max_model_len,
            hf_text_config=LlamaConfig(sliding_window=None),
            use_mla=self.model.endswith("mla"),
            uses_mrope=False,
        )
        return SimpleNamespace(
            arguments=self,
            model_config=model,
            kv_transfer_config=self.kv_transfer_config,
            cache_config=SimpleNamespace(cache_dtype="auto"),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        )


def fake_library(vllm: FakeVllm) -> VllmLibrary:
    """Return vLLM's classes as the fake has them."""

    class FakeAsyncLLM:
        @classmethod
        def from_vllm_config(cls, config: Any, **_: Any) -> FakeAsyncLLM:
            if vllm.start_fault is not None:
                raise vllm.start_fault
            vllm.config = config
            return cls()

        @property
        def errored(self) -> bool:
            return vllm.errored

        def shutdown(self, timeout: float | None = None) -> None:
            vllm.shutdowns += 1

        async def generate(
            self, prompt: Mapping[str, Any], params: Any, id: str, *, priority: int = 0
        ) -> AsyncIterator[Any]:
            ids, salt = tuple(prompt["prompt_token_ids"]), prompt.get("cache_salt")
            vllm.calls.append(
                SimpleNamespace(ids=ids, salt=salt, id=id, priority=priority, **params)
            )
            if vllm.fault is not None:
                raise vllm.fault
            try:
                if vllm.gate is not None:
                    await vllm.gate.wait()
                cached = _known(vllm, salt, ids) if vllm.cached is None else vllm.cached
                vllm.seen.append((salt, ids))
                for output in _outputs(vllm, params, cached):
                    await asyncio.sleep(0)
                    yield output
            except asyncio.CancelledError:
                vllm.aborted.append(id)
                raise

    return VllmLibrary(
        engine=FakeAsyncLLM,
        arguments=FakeArguments,
        sampling=dict,
        transfer=SimpleNamespace,
        delta="delta",
        final="final",
        lost=(FakeDeadError,),
        version="0.32.0",
    )


def _known(vllm: FakeVllm, salt: str | None, ids: tuple[int, ...]) -> int:
    """Return the tokens of the longest beginning of an earlier prompt of the same salt."""
    longest = 0
    for other, earlier in vllm.seen:
        if other == salt:
            pairs = zip(ids, earlier, strict=False)
            same = next(
                (at for at, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(earlier))
            )
            longest = max(longest, same)
    return min(longest, len(ids) - 1)


def _outputs(vllm: FakeVllm, params: Mapping[str, Any], cached: int) -> list[Any]:
    most = params["max_tokens"]
    count = most if vllm.end is None else min(most, vllm.end)
    reason = "stop" if vllm.end is not None and vllm.end <= most else vllm.reason
    tokens = range(FIRST, FIRST + count)
    pieces = [[token] for token in tokens] if params["output_kind"] == "delta" else [list(tokens)]
    return [
        SimpleNamespace(
            outputs=[
                SimpleNamespace(
                    text="".join(f" {token}" for token in piece),
                    token_ids=piece,
                    logprobs=[{token: SimpleNamespace(logprob=-0.5)} for token in piece]
                    if "logprobs" in params
                    else None,
                    finish_reason=reason if at == len(pieces) - 1 else None,
                )
            ],
            num_cached_tokens=cached,
            kv_transfer_params=vllm.params if at == len(pieces) - 1 else None,
        )
        for at, piece in enumerate(pieces)
    ]
