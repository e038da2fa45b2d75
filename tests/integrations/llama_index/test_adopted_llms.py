"""LlamaIndex's HuggingFaceLLM, whose greedy calls share steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llama_index.llms.huggingface")

import torch
from fake_runner import tokenizer
from hf_callers import CALLERS, GREEDY, QUESTIONS, TOKENS, Meeting, count_owned, own_model
from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator


def llm_of(made: Any, **settings: Any) -> HuggingFaceLLM:
    """Return an LLM over a model."""
    options = {"generate_kwargs": GREEDY, "context_window": 2048, **settings}
    return HuggingFaceLLM(model=made, tokenizer=tokenizer(), max_new_tokens=TOKENS, **options)


@pytest.fixture(scope="module")
def model() -> Any:
    """Give a model that tests leave as it is."""
    return own_model()


@pytest.fixture
def llm(model: Any) -> HuggingFaceLLM:
    return llm_of(model)


def _chat(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content="Be short."), ChatMessage(content=text)]


async def _astreamed(stream: Any) -> list[str]:
    return [one.delta async for one in await stream]


CALLS: dict[str, Callable[[Any], Any]] = {
    "complete": lambda llm: llm.complete(QUESTIONS[0]).text,
    "formatted": lambda llm: llm.complete(QUESTIONS[0], formatted=True).text,
    "chat": lambda llm: llm.chat(_chat(QUESTIONS[1])).message.content,
    "stream_complete": lambda llm: [one.delta for one in llm.stream_complete(QUESTIONS[2])],
    "stream_chat": lambda llm: [one.delta for one in llm.stream_chat(_chat(QUESTIONS[3]))],
    "acomplete": lambda llm: asyncio.run(llm.acomplete(QUESTIONS[4])).text,
    "achat": lambda llm: asyncio.run(llm.achat(_chat(QUESTIONS[5]))).message.content,
    "astream_complete": lambda llm: asyncio.run(_astreamed(llm.astream_complete(QUESTIONS[2]))),
    "raw": lambda llm: llm.complete(QUESTIONS[6]).raw["model_output"].tolist(),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "prompts": {"system_prompt": "Be short.", "query_wrapper_prompt": "Q: {query_str} A:"},
    "stopping_ids": {"stopping_ids": [5, 40, 70, 71, 72, 300]},
    "own wrapper": {"completion_to_prompt": lambda text: f"<|turn|>{text}"},
    "no mask": {
        "tokenizer_outputs_to_remove": ["attention_mask"],
        "generate_kwargs": {"do_sample": False, "pad_token_id": 339},
    },
}


@pytest.mark.cross_product(keep=6)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_it_gives_plainly(
    name: str,
    settings: str,
    model: Any,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = llm_of(model, **SETTINGS[settings])
    plain = CALLS[name](llm)
    sizes = count_owned(monkeypatch)
    assert CALLS[name](accelerate(llm, accelerator=accelerator)) == plain
    assert sizes


def test_threads_share_steps(
    llm: HuggingFaceLLM, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [llm.complete(one).text for one in QUESTIONS]
    fast = accelerate(llm, accelerator=accelerator)
    fast.complete(QUESTIONS[0])
    meeting = Meeting(monkeypatch)
    with ThreadPoolExecutor(CALLERS) as threads:
        assert [one.text for one in threads.map(fast.complete, QUESTIONS)] == plain
    assert max(meeting.sizes) == CALLERS


def test_bfloat16_is_adopted_only_where_batched_texts_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = count_owned(monkeypatch)
    llm = llm_of(own_model(torch.bfloat16))
    with Accelerator(strict=True) as exact:
        accelerate(llm, accelerator=exact).complete(QUESTIONS[0])
        assert sizes == []
    with Accelerator(strict=True, adopt_llm="batched") as batched:
        accelerate(llm, accelerator=batched).complete(QUESTIONS[0])
        assert sizes


def test_a_seed_of_torch_gives_a_text_again_among_others(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_of(model, generate_kwargs={"do_sample": True, "temperature": 1.2, "pad_token_id": 0})
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(llm, accelerator=accelerator)

        def seeded(seed: int) -> str:
            torch.manual_seed(seed)
            return fast.complete(QUESTIONS[0]).text

        alone, other = seeded(5), seeded(6)
        sizes = count_owned(monkeypatch)
        streams = [fast.stream_complete(question) for question in QUESTIONS[1:]]
        for stream in streams:  # each has drawn its seed, and the engine goes on with it
            next(stream)
        assert seeded(5) == alone != other
        for stream in streams:
            list(stream)
    assert max(sizes) > 1


def test_one_model_has_one_engine_in_both_frameworks(
    llm: HuggingFaceLLM, model: Any, accelerator: Accelerator
) -> None:
    hugging_face = pytest.importorskip("langchain_huggingface")
    from hf_callers import own_pipeline

    import langchain_rag_accel

    other = hugging_face.HuggingFacePipeline(pipeline=own_pipeline(model))
    fast = accelerate(llm, accelerator=accelerator)
    fast.complete(QUESTIONS[0])
    beside = langchain_rag_accel.accelerate(other, accelerator=accelerator)
    beside.invoke(QUESTIONS[0])
    engines: Any = accelerator.metrics.snapshot()["engines"]
    assert [name for name in engines if name.startswith("llm#")] == ["llm#1"]
