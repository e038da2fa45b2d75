"""Prompts of relation paths by the public calls, over an accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_runner import tokenizer
from tiny_chat import model

from rag_accel import Accelerator, ConfigError, EngineError
from rag_accel.dependency import (
    DepPrompt,
    LinearNode,
    TreeNode,
    compute_depkv,
    generate_with_depkv,
)
from rag_accel.engines import LocalLLM

PATHS = (
    ("guide", " -> in ->", " it"),
    ("guide", " -> in ->", " lane"),
    ("guide", " -> of ->", " it"),
)
PROMPT = DepPrompt.chain("Answer by the documents.\n", PATHS, "How high is it?")


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    with Accelerator() as made:
        yield made


def local(**bounds: object) -> LocalLLM:
    return LocalLLM(model(), tokenizer(), **{"kv_reuse": "dependency", **bounds})


def test_what_was_computed_is_reused_by_every_answer(accelerator: Accelerator) -> None:
    kv = compute_depkv(local(), PROMPT, accelerator=accelerator)
    first, second = (generate_with_depkv(kv, max_tokens=5) for _ in range(2))
    assert first.text == second.text != ""
    for answer in (first, second):
        assert answer.use is not None
        assert answer.use.from_chunks == answer.use.approximate > 0
    other = DepPrompt.chain("Answer by the documents.\n", PATHS[::-1], "Which guide?")
    found = generate_with_depkv(compute_depkv(kv.calls.llm, other, accelerator=accelerator))
    assert found.use is not None
    assert found.use.from_chunks == found.use.approximate


def test_contexts_that_do_not_see_each_other_are_one_forest(accelerator: Accelerator) -> None:
    nodes = (
        LinearNode("system", "Answer by the documents.\n"),
        TreeNode("of guides", PATHS[:2], depends_on=("system",)),
        LinearNode("note", "It is of metres.\n", depends_on=("system",)),
        LinearNode("task", "How high?", depends_on=("of guides", "note")),
    )
    kv = compute_depkv(local(), DepPrompt(nodes), accelerator=accelerator)
    assert generate_with_depkv(kv, max_tokens=3).completion_tokens == 3


def test_another_way_of_reuse_is_refused_by_name(accelerator: Accelerator) -> None:
    with pytest.raises(EngineError, match="does not compute relation paths as a tree"):
        compute_depkv(local(kv_reuse="full"), PROMPT, accelerator=accelerator)


def test_what_is_no_local_model_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="by a local language model"):
        compute_depkv("smollm2", PROMPT)  # type: ignore[arg-type]


def test_a_bad_option_is_refused_and_the_prompt_stays(accelerator: Accelerator) -> None:
    kv = compute_depkv(local(), PROMPT, accelerator=accelerator)
    with pytest.raises(ConfigError):
        generate_with_depkv(kv, temperature=-1.0)
    assert generate_with_depkv(kv, max_tokens=2).completion_tokens == 2
