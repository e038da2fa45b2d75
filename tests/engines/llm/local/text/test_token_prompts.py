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
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput, TokenOutput
from rag_accel.kv.segments import Segment, SegmentedPrompt

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


def outputs(
    payloads: list[GenerationInput], *, stream: bool = False, engine: LocalLLMEngine | None = None
) -> list[EngineOutput]:
    """Return all that an engine reports of works submitted together."""
    engine = engine or LocalLLMEngine(runner_for(shared("llama")), None, eos=())
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


HEAD, CHUNK, OTHER, ASKED = (tuple(ids_of(size, at)) for at, size in enumerate((6, 40, 30, 9), 4))


def prompt_of(*chunks: tuple[int, ...]) -> TokenInput:
    """Return a prompt of the head, texts and a question."""
    segments = [Segment("head", HEAD, 0)]
    for ids in chunks:
        segments.append(Segment("chunk", ids, segments[-1].end))
    made = SegmentedPrompt((*segments, Segment("glue", ASKED, segments[-1].end)))
    return TokenInput(ids=made.ids, ends=frozenset(), most=9, segments=made)


def engine_with(**bounds: Any) -> LocalLLMEngine:
    """Return an engine of a model whose keys can be moved."""
    runner = load(shared("llama"), needs_tokenizer=False).runner
    return LocalLLMEngine(runner, None, eos=(), options=LocalOptions(**bounds))


def value_of(payload: TokenInput, engine: LocalLLMEngine) -> TokenOutput:
    (found,) = outputs([payload], engine=engine)
    assert isinstance(found.value, TokenOutput)
    return found.value


def test_a_text_behind_its_own_head_gives_what_generate_chooses() -> None:
    engine = engine_with(kv_reuse="full", reuse_always=True)
    payload = prompt_of(CHUNK)
    assert value_of(prompt_of(CHUNK, OTHER), engine).use is not None
    again = value_of(payload, engine)
    assert again.use is not None
    assert again.use.from_chunks == len(CHUNK)
    assert again.tokens == chosen(shared("llama"), list(payload.ids), [-1])


def test_texts_that_do_not_pay_are_computed_in_the_prompt() -> None:
    engine = engine_with(kv_reuse="fused")
    payload = prompt_of(CHUNK[:6])  # two passes over the question take longer
    found = value_of(payload, engine)
    assert found.use is not None
    assert found.use.is_exact
    assert found.tokens == chosen(shared("llama"), list(payload.ids), [-1])
