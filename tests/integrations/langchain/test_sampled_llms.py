"""Sampled calls of LangChain's Hugging Face models share steps where ``adopt_llm`` is batched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

import torch
from fake_runner import tokenizer
from hf_callers import (
    QUESTIONS,
    Meeting,
    count_owned,
    own_model,
    own_pipeline,
)
from langchain_core.messages import BaseMessage
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from tiny_models import VOCABULARY, fresh, tiny_tokenizer
from transformers import pipeline

from langchain_rag_accel import accelerate, coverage, explain
from rag_accel import Accelerator

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "top_p": 0.9}


@pytest.fixture(scope="module")
def llm() -> HuggingFacePipeline:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model(), **SAMPLED))


def chat_of(llm: HuggingFacePipeline) -> ChatHuggingFace:
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny")


@pytest.fixture
def fast(llm: HuggingFacePipeline) -> Iterator[Any]:
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        yield accelerate(llm, accelerator=accelerator)


def seeded(llm: Any, seed: int = 5) -> str:
    torch.manual_seed(seed)
    return text_of(llm.invoke(QUESTIONS[0]))


def text_of(answer: str | BaseMessage) -> str:
    return answer if isinstance(answer, str) else str(answer.content)


@pytest.mark.parametrize("wrap", [lambda llm: llm, chat_of], ids=["text", "chat"])
def test_a_seed_of_torch_gives_a_text_again_among_others(
    wrap: Any, llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(wrap(llm), accelerator=accelerator)
        alone = seeded(fast)
        sizes = count_owned(monkeypatch)
        streams = [fast.stream(one) for one in QUESTIONS[1:]]
        for stream in streams:  # each has drawn its seed, and the engine goes on with it
            next(stream)
        assert seeded(fast) == alone
        for stream in streams:
            list(stream)
    assert max(sizes) > 1


def test_users_of_a_sampled_chat_model_share_steps(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        fast = accelerate(chat_of(llm), accelerator=accelerator)
        assert "greedy and sampled calls of all requests share steps" in explain(fast)
        fast.invoke(QUESTIONS[0])  # its engine is there
        meeting = Meeting(monkeypatch, 2)
        with ThreadPoolExecutor(2) as users:
            first, second = users.map(fast.invoke, QUESTIONS[:1] * 2)
    assert max(meeting.sizes) == 2
    assert first.content != second.content


REFUSED: dict[str, dict[str, Any]] = {
    "no temperature": {"temperature": 0.0},
    "top_p": {"top_p": -0.1},
    "top_k": {"top_k": -3},
    "unknown": {"no_such_option": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_generate_refuses_is_its_error_and_others_go_on(
    name: str, llm: HuggingFacePipeline, fast: Any
) -> None:
    torch.manual_seed(5)
    alone = list(fast.stream(QUESTIONS[0]))
    torch.manual_seed(5)
    stream = fast.stream(QUESTIONS[0])
    pieces = [next(stream)]
    errors = []
    for each in (llm, fast):
        with pytest.raises(ValueError) as error:  # noqa: PT011  # both arms' are compared
            each.invoke(QUESTIONS[1], pipeline_kwargs=REFUSED[name])
        errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]
    assert [*pieces, *stream] == alone


def test_the_prompts_of_a_list_have_their_seeds_in_order(fast: Any) -> None:
    torch.manual_seed(5)
    first = fast.generate(QUESTIONS).generations
    torch.manual_seed(5)
    assert fast.generate(QUESTIONS).generations == first


WARPED: dict[str, Any] = {"do_sample": True, "temperature": 0.5, "top_k": 0, "max_new_tokens": 40}
BOUNDS: dict[str, float] = {"top_k": 24, "top_p": 0.9, "min_p": 0.1}
WITHOUT: dict[str, float] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
#: A right sampler is below it once in a million runs.
LEAST_CHANCE = 1e-6


@pytest.fixture(scope="module")
def constant_model() -> Any:
    """Give a model whose next token has the same probabilities wherever it stands."""
    made = fresh("llama")
    with torch.no_grad():
        made.model.embed_tokens.weight[:] = made.model.embed_tokens.weight[0].clone()
    made.generation_config.eos_token_id = None
    return made


def probabilities(model: Any, **settings: Any) -> torch.Tensor:
    """Return those that ``generate`` draws by: ``[vocabulary]``, float32, on the CPU."""
    ids = torch.tensor([[7]])
    options = {**WARPED, "max_new_tokens": 1, "pad_token_id": 0, **settings}
    given = {"attention_mask": torch.ones_like(ids), "return_dict_in_generate": True}
    return model.generate(ids, **given, output_scores=True, **options).scores[0][0].softmax(-1)


def chance(drawn: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how often chi-square is as large for these counts of tokens as they are drawn."""
    expected = drawn.sum() * expected.double()
    is_possible = expected > 0
    if drawn[~is_possible].any():
        return 0.0
    counts = expected[is_possible]
    square = ((drawn[is_possible] - counts) ** 2 / counts).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, square / 2))


@pytest.mark.parametrize("name", BOUNDS)
def test_tokens_come_as_often_as_generate_draws_them(
    name: str, constant_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny_tokenizer()
    words.pad_token = "0"
    made = pipeline("text-generation", model=constant_model, tokenizer=words, batch_size=250)
    sizes = count_owned(monkeypatch)
    with Accelerator(strict=True, adopt_llm="batched") as accelerator:
        llm = HuggingFacePipeline(pipeline=made, batch_size=250)
        fast = accelerate(llm, accelerator=accelerator)
        torch.manual_seed(0)
        options = {**WARPED, name: BOUNDS[name], "return_full_text": False}
        found = fast.generate(["7"] * 250, pipeline_kwargs=options).generations
    tokens = [int(word) for (one,) in found for word in one.text.split()]
    drawn = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY)
    assert (len(tokens), max(sizes)) == (10_000, 64)
    right = {name: BOUNDS[name]}
    assert chance(drawn, probabilities(constant_model, **right)) > LEAST_CHANCE
    for wrong in ({**right, "temperature": 0.57}, {name: WITHOUT[name]}):
        assert chance(drawn, probabilities(constant_model, **wrong)) < LEAST_CHANCE


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
