"""The suite on fidelity measures what engines really do, against full attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.kv.fidelity import (
    FULL,
    Divergence,
    Fidelity,
    Reader,
    divergence,
    options_of,
)
from rag_accel.engine_api import Document
from rag_accel.errors import EngineError
from rag_accel.fidelity.prompts import TextPrompt

DOCUMENTS = tuple(
    Document(name, f"{name}. {text} " * 3, {"title": name})
    for name, text in {
        "Fuji": "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
        "Crane": "A crane lifts loads by a rope over a pulley, and lets them down by it.",
        "Filter": "The filter of the pump is cleaned every month, or when the water is no more.",
        "Lane": "A lane holds keys and values of one sequence of tokens that came before others.",
    }.items()
)
PROMPT = TextPrompt((DOCUMENTS[0].text, DOCUMENTS[1].text), "How high is it?")


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(tiny_chat.model(), tokenizer(), 1024, 1, (0.15,))


def test_full_reuse_by_definition_is_what_the_engine_gives(reader: Reader) -> None:
    case, full = reader.case(PROMPT, 3)
    arms = reader.arms(0)
    ours, theirs = arms[FULL](case), arms["full reuse by definition"](case)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert divergence(full, ours).kl_mean > 1e-6


def test_full_attention_is_over_the_joined_ranges(reader: Reader) -> None:
    case, full = reader.case(PROMPT, 3)
    ids = (*case.segments.ids, *case.answer[:-1])
    with torch.inference_mode():
        plain = tiny_chat.model()(torch.tensor([ids])).logits[0, -len(case.answer) :]
    torch.testing.assert_close(full, plain.float(), atol=1e-4, rtol=1e-4)
    assert case.answer == tuple(plain.argmax(-1).tolist())


def test_an_engine_that_had_another_prompt_is_refused(reader: Reader) -> None:
    case, _ = reader.case(PROMPT, 3)
    other = TextPrompt((*PROMPT.texts, DOCUMENTS[2].text), PROMPT.question)
    wrong = replace(case, prompt=other)
    with pytest.raises(EngineError, match="another prompt"):
        reader.arms(0)[FULL](wrong)


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
    each = {FULL: full, "other": other}
    return Fidelity(
        "2 prompts", {name: [Divergence(kl, kl, 1.0) for kl in kls] for name, kls in each.items()}
    )


def test_what_is_recovered_is_a_share_of_full_reuses_divergence() -> None:
    assert fidelity([0.2, 0.2], [0.1, 0.0]).recovers("other") == pytest.approx(0.75)
    assert fidelity([0.2, 0.2], [0.3, 0.3]).recovers("other") == pytest.approx(-0.5)


def test_the_error_of_what_is_recovered_is_that_between_prompts() -> None:
    assert fidelity([0.2, 0.4], [0.1, 0.2]).recovery_error("other") == pytest.approx(0, abs=1e-9)
    assert fidelity([0.2, 0.2], [0.2, 0.0]).recovery_error("other") == pytest.approx(0.5)


def test_texts_are_reused_also_where_that_is_slower() -> None:
    options = options_of({"kv_reuse": "full"})
    assert options.kv_reuse == "full"
    assert getattr(options, "reuse_always", True) is True
