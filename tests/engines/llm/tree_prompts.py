"""Prompts with relation paths, engines that compute them as trees, and what a mask gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fake_runner import tokenizer
from tiny_chat import model
from tiny_models import paged_runner_for, runner_for

from rag_accel.engine_api import (
    ChunkSpan,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.kv.dependency.visibility import dense_mask
from rag_accel.kv.rotation import rotation_of
from rag_accel.kv.segments import SegmentedPrompt

SYSTEM = "Answer by the documents."
QUESTION = "\n\nHow high is it?"
FUJI = (
    "Fuji -> is in -> documents",
    "Fuji -> is in -> metres -> which -> guide",
    "Fuji -> holds -> lane",
)
LANE = ("lane -> holds -> keys", "lane -> holds -> values", "lane -> which -> Mount")
TOKENS = 6


def torch_runner(source: Any) -> Any:
    """Return a runner on torch whose keys can be moved."""
    runner = runner_for(source)
    runner.pool.frequencies = rotation_of(source)
    return runner


RUNNERS: dict[str, Callable[[Any], Any]] = {"torch": torch_runner, "paged": paged_runner_for}


def engine_on(runner: str, source: Any = None, **options: Any) -> LocalLLMEngine:
    """Return an engine that computes relation paths as trees."""
    chosen = LocalOptions(**{"kv_reuse": "dependency", **options})
    return LocalLLMEngine(RUNNERS[runner](source or model()), tokenizer(), options=chosen)


def asked(id: str, *paths: str, question: str = QUESTION, **fields: Any) -> EngineRequest:
    """Return work whose prompt has these paths, a line each, and then a question."""
    head = "Facts:\n"
    spans: list[ChunkSpan] = []
    at = len(head)
    for path in paths:
        spans.append(ChunkSpan(1, at, at + len(path), path[:5]))
        at += len(path) + 1
    payload = GenerationInput(
        (Message("system", SYSTEM), Message("user", head + "\n".join(paths) + question)),
        max_tokens=TOKENS,
        chunk_spans=tuple(spans),
    )
    return EngineRequest(WorkId(id), id, PrimitiveKind.DECODING, payload, **fields)


def tree_of(work: EngineRequest) -> SegmentedPrompt:
    """Return the prompt of a work by its tree."""
    found = Prompting(tokenizer()).tree(work.payload.messages, work.payload.chunk_spans)
    assert found is not None
    return found


@torch.inference_mode()
def masked_answer(work: EngineRequest, source: Any = None, tokens: int = TOKENS) -> str:
    """Return the greedy text of a model's own forward over the whole prompt with a dense mask."""
    source = source or model()
    prompt = tree_of(work)
    ids: list[int] = list(prompt.ids)
    head, behind = len(prompt.head), prompt.slots.stop
    positions = [*range(head), *prompt.positions.positions.tolist()]
    for at in range(tokens):
        size = len(ids)
        mask = np.tril(np.ones((size, size), bool))
        mask[head:behind, :behind] = dense_mask(prompt.tree, past=head)
        first = prompt.positions.behind
        placed = [*positions, *range(first, first + size - behind)]
        logits = logits_of(source, ids, placed, mask)
        ids.append(int(logits[-1].argmax()))
        if ids[-1] == tokenizer().eos_token_id and at < tokens:
            ids.pop()
            break
    return tokenizer().decode(ids[len(prompt.ids) :], skip_special_tokens=True)


def logits_of(
    source: Any, ids: Sequence[int], positions: Sequence[int], mask: np.ndarray[Any, Any]
) -> torch.Tensor:
    additive = torch.zeros(mask.shape).masked_fill_(torch.from_numpy(~mask), -torch.inf)
    return source(
        torch.tensor([list(ids)]),
        position_ids=torch.tensor([list(positions)]),
        attention_mask=additive[None, None],
        use_cache=False,
    ).logits[0]
