"""Sampled calls of LangChain's Hugging Face models share steps where ``adopt_llm`` is batched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

import torch
from fake_runner import tokenizer
from hf_callers import (
    CALLERS,
    QUESTIONS,
    count_owned,
    end_streams,
    own_model,
    own_pipeline,
    record_plain,
)
from langchain_huggingface import HuggingFacePipeline

from langchain_rag_accel import accelerate, coverage, explain
from rag_accel import Accelerator

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "top_p": 0.9}


@pytest.fixture(scope="module")
def llm() -> HuggingFacePipeline:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model(), **SAMPLED))


@pytest.fixture
def fast(llm: HuggingFacePipeline) -> Iterator[Any]:
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        yield accelerate(llm, accelerator=accelerator)


def seeded(llm: Any, seed: int = 5) -> str:
    torch.manual_seed(seed)
    return llm.invoke(QUESTIONS[0])


def test_a_seed_of_torch_gives_a_text_again_among_others(
    fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = seeded(fast)
    sizes = count_owned(monkeypatch)
    streams = [fast.stream(one) for one in QUESTIONS[1:]]
    for stream in streams:  # each has drawn its seed, and the engine goes on with it
        next(stream)
    assert seeded(fast) == alone
    for stream in streams:
        list(stream)
    assert max(sizes) > 1


def test_equal_prompts_are_drawn_apart(fast: Any) -> None:
    assert len(set(fast.batch(QUESTIONS[:1] * CALLERS))) > 1


def test_the_prompts_of_a_list_have_their_seeds_in_order(fast: Any) -> None:
    torch.manual_seed(5)
    first = fast.generate(QUESTIONS).generations
    torch.manual_seed(5)
    assert fast.generate(QUESTIONS).generations == first


def test_tokens_come_as_often_as_generate_draws_them(fast: Any, llm: HuggingFacePipeline) -> None:
    model, count = llm.pipeline.model, 300
    ids = torch.tensor([tokenizer()(QUESTIONS[0])["input_ids"]])
    one = {"max_new_tokens": 1, "top_k": 8, "temperature": 2.0}
    scores = {"return_dict_in_generate": True, "output_scores": True}
    mask = torch.ones_like(ids)
    found = model.generate(ids, attention_mask=mask, **{**SAMPLED, **one}, **scores)
    expected = count * found.scores[0][0].softmax(-1)
    torch.manual_seed(0)
    options = {**one, "return_full_text": False}
    texts = fast.batch(QUESTIONS[:1] * count, pipeline_kwargs=options)
    drawn, wanted = Counter(texts), Counter[str]()
    for token in expected.nonzero()[:, 0].tolist():
        wanted[tokenizer().decode([token], skip_special_tokens=True)] += float(expected[token])
    assert drawn.keys() <= wanted.keys()
    assert len(wanted) > 3
    square = sum((drawn[text] - often) ** 2 / often for text, often in wanted.items())
    assert square < 3 * len(wanted)  # of this seed; a temperature of 1 in place of 2 has more


def test_a_padded_batch_is_drawn_from_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_owned(monkeypatch)
    padded = own_pipeline(own_model(), batch_size=4, **SAMPLED)
    llm = HuggingFacePipeline(pipeline=padded, batch_size=4)
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        torch.manual_seed(5)
        first = fast.generate(QUESTIONS[:4]).generations
        torch.manual_seed(5)
        assert fast.generate(QUESTIONS[:4]).generations == first
    assert max(sizes) == 4


def test_a_stream_whose_engine_fails_goes_on_behind_its_tokens(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = record_plain(monkeypatch)
    with Accelerator(adopt_llm="batched") as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        end_streams(monkeypatch, RuntimeError)
        assert "".join(fast.stream(QUESTIONS[1]))
    ((_, tokens),) = plain
    assert len(tokens) == 2


def test_by_default_the_draws_are_transformers_own(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = seeded(llm)
    sizes = count_owned(monkeypatch)
    assert seeded(accelerate(llm, accelerator=accelerator)) == plain
    assert sizes == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_option_that_would_share_is_named(dtype: str, accelerator: Accelerator) -> None:
    made = own_model(getattr(torch, dtype))
    made.generation_config.do_sample = True
    fast = accelerate(
        HuggingFacePipeline(pipeline=own_pipeline(made, **SAMPLED)), accelerator=accelerator
    )
    with coverage(fast) as seen:
        fast.invoke(QUESTIONS[0])
    for text in (explain(fast), str(seen)):
        assert 'samples; adopt_llm="batched" shares its steps' in text
    with Accelerator(strict=True, adopt_llm="batched") as batched:
        said = explain(accelerate(fast, accelerator=batched))
    assert "greedy and sampled calls of all requests share steps" in said
