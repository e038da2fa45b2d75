"""Prompts of token ids: their completions are the tokens that ``generate`` chooses."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import ids_of, runner_for, shared

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.tokens import TokenInput

PROMPTS = [ids_of(5, 1), ids_of(30, 2), ids_of(11, 3)]


def chosen(model: Any, ids: list[int], ends: list[int]) -> tuple[int, ...]:
    """Return the tokens that ``generate`` chooses."""
    prompt = torch.tensor([ids])
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=9,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
    )
    return tuple(made[0, len(ids) :].tolist())


def outputs(payloads: list[GenerationInput], *, stream: bool = False) -> list[EngineOutput]:
    """Return all that an engine reports of works submitted together."""
    engine = LocalLLMEngine(runner_for(shared("llama")), None, eos=())
    requests = [
        EngineRequest(
            id=WorkId(str(at)),
            request_id="r",
            kind=PrimitiveKind.DECODING,
            payload=payload,
            stream=stream,
        )
        for at, payload in enumerate(payloads)
    ]
    engine.submit(requests)
    found: list[EngineOutput] = []
    while sum(one.kind != "partial" for one in found) < len(payloads):
        found += engine.step(StepBudget(threads=1))
    return found


def test_each_prompt_ends_at_tokens_of_its_own() -> None:
    model = shared("llama")
    ends = [[], [chosen(model, PROMPTS[1], [])[3]], [chosen(model, PROMPTS[2], [])[0]]]
    payloads: list[GenerationInput] = [
        TokenInput(ids=tuple(ids), ends=frozenset(end), most=9)
        for ids, end in zip(PROMPTS, ends, strict=True)
    ]
    made: dict[str, Any] = {one.id: one.value for one in outputs(payloads)}
    for at, (ids, end) in enumerate(zip(PROMPTS, ends, strict=True)):
        assert made[str(at)].tokens == chosen(model, ids, end or [-1])


def test_a_stream_gives_token_numbers() -> None:
    found = outputs([TokenInput(ids=tuple(PROMPTS[0]), ends=frozenset(), most=9)], stream=True)
    pieces: list[Any] = [one.value for one in found if one.kind == "partial"]
    assert tuple(map(int, "".join(pieces).split())) == chosen(shared("llama"), PROMPTS[0], [-1])


def test_an_engine_without_a_tokenizer_refuses_messages() -> None:
    (found,) = outputs([GenerationInput((Message("user", "What?"),))])
    assert found.kind == "error"
    assert "no tokenizer" in str(found.error)
