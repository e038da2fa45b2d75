"""Approximate states are never kept as exact, whatever salt an exact request names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from exact_engine import FOREIGN_WARNINGS, EngineAnswer, ExactEngine
from exact_prompts import TOLD_APART, TOLERANCE, TextPrompt
from exact_reference import Reference

from rag_accel.kv.reuse_request import ReuseRequest, ServedReuse

pytestmark = [pytest.mark.filterwarnings(f"ignore::{name}") for name in FOREIGN_WARNINGS]


@dataclass(frozen=True)
class Under:
    """A request under the salt of another.

    Args:
        request: None for one that names no texts.
        other: whose salt it has; None for none.
    """

    request: ReuseRequest | None
    other: ReuseRequest | None

    def params(self) -> dict[str, Any]:
        return {} if self.request is None else self.request.params()

    def salt(self) -> str | None:
        return None if self.other is None else self.other.salt()


@pytest.fixture(scope="module")
def engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactEngine]:
    made = ExactEngine(models / "llama", tmp_path_factory.mktemp("salts"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(models: Path) -> Reference:
    return Reference(models / "llama")


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> TextPrompt:
    """Return a prompt of tokens that no other test has."""
    return TextPrompt.random(random.Random(request.node.name))


def ask(engine: ExactEngine, prompt: TextPrompt, sent: Any) -> EngineAnswer:
    (answer,) = engine.ask([prompt.ids()], [sent])
    return answer


@pytest.mark.parametrize("namespace", ["", "tenant"])
@pytest.mark.parametrize("reuse", ["full", "fused"])
def test_exact_requests_under_an_approximate_salt_leave_nothing(
    engine: ExactEngine,
    reference: Reference,
    prompt: TextPrompt,
    reuse: ServedReuse,
    namespace: str,
) -> None:
    """Neither their own answers nor those of later ones are approximate."""
    shuffled = prompt.ordered((3, 0, 4, 1, 2))
    ask(engine, prompt, prompt.request("full", namespace=namespace))
    theirs = shuffled.request(reuse, namespace=namespace)
    assert shuffled.full(reference, ask(engine, shuffled, theirs)) > TOLD_APART
    exact = shuffled.request("exact", namespace=namespace)
    for request in (exact, shuffled.request("exact"), None, shuffled.request("full", ratio=0.5)):
        answer = ask(engine, shuffled, Under(request, theirs))
        if request is not None and request.salt() == theirs.salt():
            continue
        assert answer.reuse["refused"]
        assert answer.reuse["exact"] is True
        assert answer.cached == 0
        assert shuffled.full(reference, answer) < TOLERANCE
    for _ in range(3):
        answer = ask(engine, shuffled, exact)
        assert "refused" not in answer.reuse
        assert shuffled.full(reference, answer) < TOLERANCE
        engine.reset()
        engine.forget_memory()


def test_a_namespace_without_its_salt_reads_nothing_of_others(
    engine: ExactEngine, reference: Reference, prompt: TextPrompt
) -> None:
    ask(engine, prompt, None)
    answer = ask(engine, prompt, Under(prompt.request("exact", namespace="tenant"), None))
    assert answer.cached == 0
    assert "namespace" in answer.reuse["refused"]
    assert prompt.full(reference, answer) < TOLERANCE


def test_a_head_that_holds_what_was_a_text_is_not_kept(
    engine: ExactEngine, reference: Reference, models: Path
) -> None:
    """The two prompts name the same texts: they share a salt, but not the place of the head."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(models / "llama").encode
    head = "Answer by the context and nothing else, and say so where it is silent about it. " * 3
    text = "The river Aare rises in the glaciers of the Bernese Alps, flows through Thun and Bern. "
    before, question = "<|end|>Context: ", "Where? " * 30
    wanted = ReuseRequest("full", (text * 3,), before=before)
    files = engine.files()
    engine.ask([encode(f"{head}{before}{text * 3}{question}")], [wanted])
    engine.wait_for_files(files + 2)
    longer = encode(f"{head}{before}{text * 2}And then?")
    ids = [*longer, *encode(f"{before}{text * 3}{question}")]
    (reused,) = engine.ask([ids], [wanted])
    assert reused.reuse["encoded_tokens"]
    engine.reset()
    exact = ReuseRequest("exact", spans=((len(longer), len(longer) + 120),), head=len(longer))
    (answer,) = engine.ask([ids], [exact])
    assert TextPrompt(tuple(ids), (), (), ()).full(reference, answer) < TOLERANCE
