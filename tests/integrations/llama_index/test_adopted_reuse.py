"""Engines over a HuggingFaceLLM that a program has already compute no node twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("llama_index.llms.huggingface")

from fake_runner import tokenizer
from hf_callers import GREEDY, own_model
from li_reuse_programs import TEXTS, WHOLE, ask, synthesized
from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface import HuggingFaceLLM
from reuse_kit import num_tokens, reused

from llama_index_rag_accel import accelerate, explain
from rag_accel import Accelerator

Build = Callable[[Any], Any]
compact = synthesized("compact")


@pytest.fixture(scope="module")
def model() -> Any:
    """Give a model that tests leave as it is."""
    return own_model()


@pytest.fixture
def reusing() -> Iterator[Accelerator]:
    with Accelerator(kv_reuse="full", strict=True) as made:
        yield made


def llm_of(model: Any) -> HuggingFaceLLM:
    return HuggingFaceLLM(
        model=model,
        tokenizer=tokenizer(),
        max_new_tokens=4,
        generate_kwargs=GREEDY,
        context_window=2048,
    )


@pytest.mark.parametrize("build", WHOLE, ids=lambda one: one.__name__)
def test_nodes_are_found_and_not_computed_again(
    model: Any, reusing: Accelerator, build: Build
) -> None:
    engine = accelerate(build(llm_of(model)), accelerator=reusing)
    ask(engine, "abc of these")
    assert reused(reusing) == 0
    ask(engine, "cab of these")
    assert reused(reusing) >= num_tokens(*(TEXTS[name] for name in "abc"))


# What was reused is said


CALLS: dict[str, Callable[[Any, str], Any]] = {
    "complete": lambda llm, text: llm.complete(text),
    "chat": lambda llm, text: llm.chat([ChatMessage(content=text)]),
    "stream_complete": lambda llm, text: list(llm.stream_complete(text))[-1],
    "stream_chat": lambda llm, text: list(llm.stream_chat([ChatMessage(content=text)]))[-1],
    "acomplete": lambda llm, text: asyncio.run(llm.acomplete(text)),
    "achat": lambda llm, text: asyncio.run(llm.achat([ChatMessage(content=text)])),
    "astream_complete": lambda llm, text: asyncio.run(_last(llm.astream_complete(text))),
    "astream_chat": lambda llm, text: asyncio.run(
        _last(llm.astream_chat([ChatMessage(content=text)]))
    ),
}


async def _last(stream: Any) -> Any:
    return [one async for one in await stream][-1]


@pytest.mark.parametrize("name", CALLS)
def test_a_response_says_how_its_prompt_was_computed(
    name: str, model: Any, reusing: Accelerator
) -> None:
    llm = llm_of(model)
    plain, found = (
        CALLS[name](one, "Which one?") for one in (llm, accelerate(llm, accelerator=reusing))
    )
    assert found.additional_kwargs.pop("kv_reuse") == {
        "mode": "full",
        "recipe": "neighbours",
        "ratio": 0.0,
        "reused_tokens": 0,
        "recomputed_tokens": 0,
        "preprocessed_tokens": 0,
        "approximate_tokens": 0,
        "exact": True,
    }
    assert found.additional_kwargs == plain.additional_kwargs
    assert str(found) == str(plain)


def test_explain_says_how_the_model_reuses_texts(model: Any, reusing: Accelerator) -> None:
    said = explain(accelerate(compact(llm_of(model)), accelerator=reusing))
    (line,) = [one for one in said.splitlines() if ": HuggingFaceLLM: " in one]
    assert "owned engine" in line
    assert "kv_reuse is full" in line
