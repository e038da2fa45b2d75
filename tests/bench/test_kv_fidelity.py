"""The suite on fidelity measures what engines really do, against full attention."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
import tiny_chat
import torch
from fake_runner import tokenizer

from bench.kv.fidelity import (
    ALONE,
    ALONE_15,
    BY_QUESTION_15,
    EPIC_15,
    FULL,
    FUSED_15,
    PROPHETKV_15,
    Case,
    Corpus,
    Divergence,
    Fidelity,
    Reader,
    divergence,
)
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextPrompt

TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by it.",
    "The filter of the pump is cleaned every month, or when the water is no more.",
    "A lane holds keys and values of one sequence of tokens that came before others.",
)
PROMPT = TextPrompt(TEXTS[:2], "How high is it?")


def embed(texts: Any) -> Any:
    """Place the texts in the order of their numbers, a question where its last text is."""
    at = [TEXTS.index(text) if text in TEXTS else 1.2 for text in texts]
    angles = np.array(at, dtype=np.float32) / 4
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(TEXTS, embed, passages=2)


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(tiny_chat.model(), tokenizer(), 1024)


@pytest.fixture(scope="module")
def case(reader: Reader, corpus: Corpus) -> Case:
    (found,) = reader.cases([PROMPT], corpus, 3, corpus.search)
    return found


def test_a_search_finds_the_nearest_texts_first(corpus: Corpus) -> None:
    assert list(corpus.search("What does a crane do?")) == [TEXTS[1], TEXTS[2]]


def test_random_passages_are_the_nearest_text_among_others(corpus: Corpus) -> None:
    questions = [f"What does crane {at} do?" for at in range(20)]
    found = [corpus.among_random(question) for question in questions]
    assert all(len(set(texts)) == 2 and TEXTS[1] in texts for texts in found)
    assert {text for texts in found for text in texts} == set(TEXTS)
    assert found == [corpus.among_random(question) for question in questions]


def test_a_text_was_found_for_the_text_nearest_to_it_before(corpus: Corpus) -> None:
    assert corpus.earlier(TEXTS[0], corpus.search) == [TEXTS[1], TEXTS[0]]
    assert corpus.earlier(TEXTS[0], lambda _: [TEXTS[3], TEXTS[2]]) == [TEXTS[3], TEXTS[0]]


@pytest.mark.parametrize(
    ("arm", "options"),
    [
        (FULL, {"kv_reuse": "full"}),
        (FUSED_15, {"kv_reuse": "fused"}),
        (ALONE, {"kv_reuse": "full", "kv_recipe": "alone"}),
        (ALONE_15, {"kv_reuse": "fused", "kv_recipe": "alone"}),
    ],
)
def test_what_is_measured_is_what_the_engine_gives(
    reader: Reader, corpus: Corpus, case: Case, arm: str, options: dict[str, Any]
) -> None:
    given = LocalOptions(reuse_always=True, prefix_lanes=0, runner="torch", **options)
    loaded = load(tiny_chat.model(), tokenizer(), context=1024, options=given)
    engine = ForcedEngine(loaded, given, threads=1)
    for text in PROMPT.texts:
        earlier = TextPrompt(tuple(corpus.earlier(text, corpus.search)), "?")
        engine.answer(earlier.generation_input(1), len(earlier.segmented(tokenizer()).ids))
    asked, answer = PROMPT.generation_input(len(case.full.tokens)), case.full.tokens
    _, theirs = engine.answer(asked, len(case.prompt.ids), answer)
    engine.close()
    ours = reader.logits(case, reader.arms()[arm])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert divergence(case.full.logits, ours).kl_mean > 1e-6


def test_full_attention_is_over_the_joined_ranges(case: Case) -> None:
    ids = (*case.prompt.ids, *case.full.tokens[:-1])
    with torch.inference_mode():
        plain = tiny_chat.model()(torch.tensor([ids])).logits[0, -len(case.full.tokens) :]
    torch.testing.assert_close(case.full.logits, plain.float(), atol=1e-4, rtol=1e-4)
    assert case.full.tokens == tuple(plain.argmax(-1).tolist())


def test_peers_choose_as_many_tokens_over_texts_alone(reader: Reader, case: Case) -> None:
    arms = reader.arms()
    number = len(arms[FUSED_15](case)[1])
    for name in (BY_QUESTION_15, PROPHETKV_15, EPIC_15):
        states, again = arms[name](case)
        assert states is case.alone.states
        assert abs(len(again) - number) <= 1, name
    assert arms[BY_QUESTION_15](case)[1] != arms[PROPHETKV_15](case)[1]


def test_equal_logits_do_not_diverge() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    found = divergence(logits, logits + 2)
    assert found.kl_first == pytest.approx(0.0, abs=1e-6)
    assert found.kl_mean == pytest.approx(0.0, abs=1e-6)
    assert found.top1 == 1.0


def test_divergence_is_kullback_leibler_from_full_attention() -> None:
    full = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    other = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    first = 0.75 * torch.tensor(3.0).log() - 0.25 * torch.tensor(3.0).log()
    found = divergence(full, other)
    assert found.kl_first == pytest.approx(float(first), rel=1e-5)
    assert found.kl_mean == pytest.approx(float(first) / 2, rel=1e-5)
    assert found.top1 == 0.5


def fidelity(full: list[float], other: list[float]) -> Fidelity:
    each = {ALONE: full, "other": other}
    return Fidelity(
        "2 prompts", {name: [Divergence(kl, kl, 1.0) for kl in kls] for name, kls in each.items()}
    )


def test_what_is_recovered_is_a_share_of_full_reuses_divergence() -> None:
    assert fidelity([0.2, 0.2], [0.1, 0.0]).recovers("other") == pytest.approx(0.75)
    assert fidelity([0.2, 0.2], [0.3, 0.3]).recovers("other") == pytest.approx(-0.5)


def test_the_error_of_what_is_recovered_is_that_between_prompts() -> None:
    assert fidelity([0.2, 0.4], [0.1, 0.2]).recovery_error("other") == pytest.approx(0, abs=1e-9)
    assert fidelity([0.2, 0.2], [0.2, 0.0]).recovery_error("other") == pytest.approx(0.5)
