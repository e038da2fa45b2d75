"""Texts of the embedder of neo4j-graphrag that computes here share an engine's steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ng_kit import outcome

from neo4j_graphrag_rag_accel import accelerate, activate
from rag_accel import Accelerator

#: What a question may hold.
TEXTS = [
    "When did the bridge open?",
    "",
    "  ",
    "two\nlines",
    "'\"`",
    "MATCH (n) RETURN n",
    "é " * 300,
]


def engines(accelerator: Accelerator) -> list[Any]:
    """Return what is known of the engines that embed."""
    found: Any = accelerator.metrics.snapshot()["engines"]
    return [engine for name, engine in found.items() if name.startswith("embedding#")]


@pytest.mark.parametrize("arm", ["accelerated", "activated"])
def test_vectors_are_those_of_the_object(
    arm: str, local_embedder: Any, accelerator: Accelerator
) -> None:
    expected = [local_embedder.embed_query(text) for text in TEXTS]
    if arm == "accelerated":
        fast = accelerate(local_embedder, accelerator=accelerator)
        found = [fast.embed_query(text) for text in TEXTS]
    else:
        with activate(accelerator):
            found = [local_embedder.embed_query(text) for text in TEXTS]
    for one, other in zip(found, expected, strict=True):
        assert type(one) is list
        assert type(one[0]) is float
        assert one == pytest.approx(other, abs=1e-6)
    (own,) = engines(accelerator)
    assert own["items"] == len(TEXTS)


def test_tasks_of_a_loop_share_steps(local_embedder: Any, accelerator: Accelerator) -> None:
    fast = accelerate(local_embedder, accelerator=accelerator)
    texts = [f"question {number}" for number in range(16)]

    async def embed() -> list[Any]:
        return await asyncio.gather(*map(fast.async_embed_query, texts))

    found = asyncio.run(embed())
    for one, text in zip(found, texts, strict=True):
        assert one == pytest.approx(local_embedder.embed_query(text), abs=1e-6)
    (own,) = engines(accelerator)
    assert own["items"] == 16
    assert own["steps"] <= 2  # the first may begin before the others have asked


@pytest.mark.parametrize("text", [None, 5, ["a"], b"a"], ids=str)
def test_what_is_no_text_is_answered_as_plainly(
    text: Any, local_embedder: Any, accelerator: Accelerator
) -> None:
    fast = accelerate(local_embedder, accelerator=accelerator)
    assert outcome(lambda: fast.embed_query(text)) == outcome(
        lambda: local_embedder.embed_query(text)
    )


def test_an_error_of_the_model_is_the_embedders_own(
    local_embedder: Any, accelerator: Accelerator
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    fast = accelerate(local_embedder, accelerator=accelerator)
    hook = local_embedder.model.register_forward_pre_hook(fail)
    try:
        expected = outcome(lambda: local_embedder.embed_query("a"))
        assert outcome(lambda: fast.embed_query("a")) == expected
    finally:
        hook.remove()
    assert expected[0].__name__ == "EmbeddingsGenerationError"
    assert fast.embed_query("a") == pytest.approx(local_embedder.embed_query("a"), abs=1e-6)


def test_a_model_that_is_put_in_later_is_the_one_that_embeds(
    local_embedder: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def encode(self, texts: list[str]) -> Any:
            return local_embedder.np.ones((1, 2))

    fast = accelerate(local_embedder, accelerator=accelerator)
    monkeypatch.setattr(local_embedder, "model", Other())
    assert fast.embed_query("a") == [1.0, 1.0]
