"""An engine of vLLM's in this process with the connector and the worker of ours."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.reuse_request import ReuseRequest

#: Of torch's and vLLM's own code, which every engine runs.
FOREIGN_WARNINGS = ("DeprecationWarning", "FutureWarning", "UserWarning", "ResourceWarning")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The tokens of an answer.

    Args:
        ids: generated.
        logprobs: of each, those of the likeliest tokens by id.
        cached: tokens of the prompt that were not computed in the server's own steps.
        reuse: what the connector says of the prompt's texts.
    """

    ids: list[int]
    logprobs: list[dict[int, float]]
    cached: int
    reuse: dict[str, Any]


class ExactEngine:
    """An ``LLM`` of float32 over a folder of states."""

    def __init__(
        self, model: Path, folder: Path, extra: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        from vllm_rag_accel.serve import transfer_config
        from vllm_rag_accel.worker import PATH

        transfer = transfer_config(str(folder))
        transfer["kv_connector_extra_config"] = {"folder": str(folder), **(extra or {})}
        given: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 1024,
            "disable_log_stats": True,
            "worker_cls": PATH,
            "kv_transfer_config": KVTransferConfig(**transfer),
        }
        self._folder = folder
        self.llm: Any = LLM(str(model), **(given | options))

    @property
    def rows(self) -> Any:
        """The worker's ``VirtualRows``."""
        return self.loading.rows

    @property
    def loading(self) -> Any:
        """The worker's ``Loading``."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._loading

    def reset(self) -> None:
        """Forget the server's own prefix cache."""
        assert self.llm.reset_prefix_cache()

    def forget_memory(self) -> None:
        """Forget the states in memory: those of files are left."""
        self.loading.forget()

    def record_choices(self, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
        """Return a list of the places that are chosen from now on, prompt by prompt."""
        found: list[list[int]] = []
        choose: Callable[..., list[list[int]]] = self.rows.choose

        def recorded(*given: object) -> list[list[int]]:
            made = choose(*given)
            found.extend(made)
            return made

        monkeypatch.setattr(self.rows, "choose", recorded)
        return found

    def files(self) -> int:
        """Return the number of states in files."""
        return len(ChunkFolder(self._folder).files())

    def wait_for_files(self, count: int) -> None:
        """Wait until the thread that writes states has written so many."""
        ends = time.monotonic() + 60
        while self.files() < count and time.monotonic() < ends:
            threading.Event().wait(0.01)
        assert self.files() == count

    def ask(
        self,
        prompts: Sequence[Sequence[int]],
        wanted: Sequence[ReuseRequest | None],
        tokens: int = 4,
    ) -> list[EngineAnswer]:
        """Return the answers of prompts that are sent together."""
        from vllm import SamplingParams, TokensPrompt

        given: list[Any] = []
        params: list[Any] = []
        for prompt, request in zip(prompts, wanted, strict=True):
            salt = None if request is None else request.salt()
            made: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
            given.append(TokensPrompt(prompt_token_ids=list(prompt), **made))
            extra = None if request is None else {"kv_transfer_params": request.params()}
            params.append(
                SamplingParams(
                    temperature=0, max_tokens=tokens, logprobs=5, ignore_eos=True, extra_args=extra
                )
            )
        return [_answer(output) for output in self.llm.generate(given, params, use_tqdm=False)]

    def close(self) -> None:
        """End the engine; another one may be started."""
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        self.llm.llm_engine.engine_core.shutdown()
        self.llm = None
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
        gc.collect()


def _answer(output: Any) -> EngineAnswer:
    made = output.outputs[0]
    params = output.kv_transfer_params or {}
    return EngineAnswer(
        list(made.token_ids),
        [{id: found.logprob for id, found in step.items()} for step in made.logprobs],
        output.num_cached_tokens,
        params.get("rag_accel", {}),
    )


def difference(answer: EngineAnswer, first: torch.Tensor, run: Any) -> float:
    """Return the greatest difference between an answer's logprobs and a reference's.

    Args:
        answer: of the engine.
        first: log probabilities behind the prompt, ``[token]``.
        run: computes log probabilities behind one more token, given its id and index.
    """
    worst, expected = 0.0, first
    for index, (id, found) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
        worst = max(worst, *(abs(float(expected[at]) - value) for at, value in found.items()))
        expected = run(id, index)
    return worst
