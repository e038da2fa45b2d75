"""Greedy text of a tiny random model is that of ``generate``, however it came to be computed."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from fake_runner import finish, prompt_ids, tokenizer, value, work
from tiny_models import LLAMA3, MIXED, SIZES
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions

HEAD = "A lane holds keys and values of one sequence of tokens, said the guide."
TEXTS = [f"{HEAD[: 8 * at]} Which of the documents says {at}?" for at in range(8)]
TOKENS = 24
FAMILIES = ["llama", "qwen2_mixed"]


@cache
def model(family: str) -> Any:
    sizes = {**SIZES, "vocab_size": len(tokenizer()), "eos_token_id": 1, "bos_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=LLAMA3)).eval()
        return Qwen2ForCausalLM(Qwen2Config(**sizes, **MIXED)).eval()


@cache
def generated(family: str, *texts: str) -> str:
    """Return what ``generate`` makes of a prompt."""
    ids = torch.tensor([prompt_ids(*texts)])
    made = model(family).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return tokenizer().decode(made[0, ids.shape[1] :], skip_special_tokens=True)


def engine_of(family: str, **options: Any) -> LocalLLMEngine:
    loaded = load(model(family), tokenizer(), pool_bytes=1 << 24)
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, options=LocalOptions(**options))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("step_tokens", [40, 512])
def test_eight_together(family: str, step_tokens: int) -> None:
    engine = engine_of(family, step_tokens=step_tokens)
    engine.submit([work(str(at), text, max_tokens=TOKENS) for at, text in enumerate(TEXTS)])
    outputs = finish(engine, *map(str, range(8)))
    for at, text in enumerate(TEXTS):
        assert value(outputs, str(at)).text == generated(family, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_another_prompt_that_begins_alike(family: str) -> None:
    engine = engine_of(family)
    engine.submit([work("a", HEAD, max_tokens=TOKENS)])
    finish(engine, "a")
    engine.submit([work("b", HEAD, "And then?", max_tokens=TOKENS)])
    found = value(finish(engine, "b"), "b")
    assert found.text == generated(family, HEAD, "And then?")
    assert found.use.from_prefix >= len(prompt_ids(HEAD)) - 10


@pytest.mark.parametrize("family", FAMILIES)
def test_resumed_from_a_handle(family: str) -> None:
    engine = engine_of(family, step_tokens=16)
    engine.submit([work("p", HEAD, kind=PrimitiveKind.PARTIAL_PREFILLING)])
    (end,) = finish(engine, "p")
    for id in "ab":
        engine.submit([work(id, HEAD, handle=end.handle, max_tokens=TOKENS)])
        found = value(finish(engine, id), id)
        assert found.text == generated(family, HEAD)
        assert (found.use.from_prefix > 16) == (id == "b")  # the first is what it was computed for
    engine.close()
    assert engine.held_bytes == 0
