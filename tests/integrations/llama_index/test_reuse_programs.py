"""Engines of LlamaIndex's shapes compute no node twice, whatever its place in their prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reuse_kit
import tiny_chat
from fake_runner import tokenizer
from li_reuse_programs import APART, TEXTS, WHOLE, ask, narrow, synthesized
from reuse_kit import ReusedTexts, num_tokens, reused

from llama_index_rag_accel import RagAccelLLM, accelerate
from rag_accel import Accelerator

located = reuse_kit.located

Build = Callable[[Any], Any]


def each(builds: list[Build]) -> Any:
    return pytest.mark.parametrize("build", builds, ids=lambda one: one.__name__)


def language_model(accelerator: Accelerator, **options: Any) -> RagAccelLLM:
    return RagAccelLLM(
        tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        accelerator=accelerator,
        **{"kv_reuse": "full", **options},
    )


def tokens(*names: str) -> int:
    return num_tokens(*(TEXTS[name] for name in names))


def fast(build: Build, accelerator: Accelerator, **options: Any) -> Any:
    return accelerate(build(language_model(accelerator, **options)), accelerator=accelerator)


@each(WHOLE)
def test_nodes_are_found_and_not_computed_again(
    accelerator: Accelerator, located: list[list[str]], build: Build
) -> None:
    engine = fast(build, accelerator)
    ask(engine, "abc of these")
    assert reused(accelerator) == 0
    ask(engine, "cab of these")
    assert len(located) == 2
    for prompt in located:
        assert len(prompt) == 3
        for text in TEXTS.values():
            assert any(one.endswith(text) for one in prompt)  # behind lines of metadata perhaps
    assert reused(accelerator) >= tokens(*"abc")


@each(APART)
def test_nodes_are_found_in_prompts_of_their_own(
    accelerator: Accelerator, located: list[list[str]], build: Build
) -> None:
    engine = fast(build, accelerator)
    ask(engine, "abc of these")
    ask(engine, "cab of these")
    assert sorted(located[:3]) == sorted([text] for text in TEXTS.values())
    assert sorted(located[3:]) == sorted([text] for text in TEXTS.values())
    assert reused(accelerator) > 0


@each([*WHOLE, *APART])
def test_without_an_accelerated_run_nothing_is_known_of_nodes(
    accelerator: Accelerator, located: list[list[str]], build: Build
) -> None:
    engine = build(language_model(accelerator))
    assert ask(engine, "abc of these")
    assert ask(engine, "cab of these")
    assert not any(located)
    assert reused(accelerator) == 0


def test_sentences_are_found_of_nodes_that_are_cut(
    accelerator: Accelerator, located: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [f"Sentence number {at} has so many words in it." for at in range(16)]
    monkeypatch.setitem(TEXTS, "a", " ".join(sentences))
    engine = fast(narrow, accelerator)
    ask(engine, "a of these")
    ask(engine, "a of these others")
    assert len(located) > 2
    assert all(one in sentences for prompt in located for one in prompt)
    assert sum(map(len, located)) > len(sentences)
    assert reused(accelerator) > 0


class TestReusedNodes(ReusedTexts):
    texts, edit, ending = TEXTS, ("guide", "leaflet"), " of these"

    def program(self, accelerator: Accelerator) -> Any:
        return fast(synthesized("compact"), accelerator)

    def ask(self, program: Any, question: str) -> Any:
        return program.query(question)

    async def aask(self, program: Any, question: str) -> Any:
        return await program.aquery(question)
