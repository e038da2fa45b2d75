"""Calls of ``generate`` are read as transformers reads them, greedy and sampled ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))

import torch
from hf_callers import own_model
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import MaxTimeCriteria

from rag_accel.adoption.generation import GenerateCall
from rag_accel_adapters.libraries.hf_generation import read_call
from rag_accel_adapters.libraries.hf_pipelines import stop_tokens

IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture(scope="module")
def model() -> Any:
    """Give a model that tests leave as it is."""
    return own_model()


def read(model: Any, **kwargs: Any) -> GenerateCall | None:
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), **kwargs}
    return read_call(stop_tokens, model, given)


LENGTHS: dict[str, dict[str, Any]] = {
    "new tokens": {"max_new_tokens": 7},
    "length": {"max_length": 9},
    "both": {"max_length": 9, "max_new_tokens": 7},
    "default": {},
    "configuration": {"generation_config": GenerationConfig(max_length=11)},
}


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default:UserWarning")
@pytest.mark.parametrize("name", LENGTHS)
def test_the_most_tokens_are_those_that_transformers_makes(name: str, model: Any) -> None:
    call = read(model, eos_token_id=[339], pad_token_id=0, **LENGTHS[name])
    assert call is not None
    made = model.generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        eos_token_id=[339],
        pad_token_id=0,
        **LENGTHS[name],
    )
    assert call.most == made.shape[1] - IDS.shape[1]


def test_ends_are_those_of_the_generation_configuration(model: Any) -> None:
    call = read(model, max_new_tokens=3)
    assert call is not None
    assert call.ends == frozenset(model.generation_config.eos_token_id)


def test_padding_on_the_left_is_left_out(model: Any) -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    call = read(model, input_ids=IDS.repeat(2, 1), attention_mask=mask, max_new_tokens=3)
    assert call is not None
    assert call.prompts == ((5, 6), (3, 4, 5, 6))


def test_shorter_completions_are_filled_up(model: Any) -> None:
    ids = IDS.repeat(2, 1)
    call = read(model, input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=9)
    assert call is not None
    assert call.result([[7], [7, 8]]).tolist() == [[3, 4, 5, 6, 7, 9], [3, 4, 5, 6, 7, 8]]


class Received:
    """A streamer that keeps what it is given, the prompt first."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.values.append([])


def went_on(model: Any, tokens: list[int], **options: Any) -> tuple[list[int], list[list[int]]]:
    """Return all tokens of a call that goes on behind two, and what it gave its streamer."""
    received = Received()
    call = read(model, streamer=received, **options)
    assert call is not None
    return call.plain(tokens[:2])[0, IDS.shape[1] :].tolist(), received.values


@pytest.fixture(scope="module")
def tokens(model: Any) -> list[int]:
    """Give nine tokens behind the prompt."""
    call = read(model, max_new_tokens=9, eos_token_id=[339], pad_token_id=0)
    assert call is not None
    return call.plain(())[0, IDS.shape[1] :].tolist()


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default:UserWarning")
@pytest.mark.parametrize("name", LENGTHS)
def test_a_call_goes_on_behind_tokens_that_its_streamer_was_given(
    name: str, model: Any, tokens: list[int]
) -> None:
    options: dict[str, Any] = {"eos_token_id": [339], "pad_token_id": 0, **LENGTHS[name]}
    call = read(model, **options)
    assert call is not None
    whole = call.plain(())[0, IDS.shape[1] :].tolist()
    assert went_on(model, tokens, **options) == (whole, [*([one] for one in whole[2:]), []])


def test_a_call_that_goes_on_sees_its_own_tokens_and_ends_at_its_ends(
    model: Any, tokens: list[int]
) -> None:
    last = next(at for at in range(3, 9) if tokens.index(tokens[at]) == at)
    options: dict[str, Any] = {
        "attention_mask": None,  # transformers would leave out what is the padding's token
        "pad_token_id": tokens[0],
        "eos_token_id": [tokens[last]],
        "max_new_tokens": 9,
    }
    assert went_on(model, tokens, **options)[0] == tokens[: last + 1]


SAMPLED = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
SAMPLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "greedy with bounds": ({"top_p": 0.5, "temperature": 0.3, "typical_p": 0.5}, {}),
    "penalty": ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    "sampled": ({"do_sample": True}, SAMPLED),
    "configuration": (
        {"generation_config": GenerationConfig(do_sample=True, top_p=0.9, temperature=0.7)},
        {**SAMPLED, "temperature": 0.7, "top_p": 0.9},
    ),
    "sampled with bounds": (
        {"do_sample": True, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.2},
        {**SAMPLED, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.2},
    ),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_choice_of_tokens_is_that_of_transformers(name: str, model: Any) -> None:
    asked, sampling = SAMPLINGS[name]
    call = read(model, max_new_tokens=3, **asked)
    assert call is not None
    assert call.sampling == sampling
    assert call.is_sampled == ("temperature" in sampling)


OTHERS: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 2},
    "several": {"do_sample": True, "num_return_sequences": 2},
    "typical": {"do_sample": True, "typical_p": 0.9},
    "cutoff": {"do_sample": True, "epsilon_cutoff": 0.01},
    "other cutoff": {"do_sample": True, "eta_cutoff": 0.01},
    "top_h": {"do_sample": True, "top_h": 0.5},
    "no temperature": {"do_sample": True, "temperature": 0.0},
    "whole penalty": {"repetition_penalty": 2},
    "renormalised": {"do_sample": True, "renormalize_logits": True},
    "processors": {"logits_processor": LogitsProcessorList([object()])},
    "criteria": {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])},
    "stop strings": {"stop_strings": ["a"], "tokenizer": object()},
    "time": {"max_time": 1.0},
    "assistant": {"prompt_lookup_num_tokens": 3},
    "cache": {"cache_implementation": "static"},
    "embeddings": {"inputs_embeds": torch.zeros(1, 1, 64)},
    "unknown": {"no_such_option": 1},
    "padding on the right": {"attention_mask": torch.tensor([[1, 1, 1, 0]])},
    "no room": {"max_length": 4},
    "custom": {"custom_generate": "somebody/else"},
    "configuration": {"generation_config": GenerationConfig(do_sample=True, typical_p=0.5)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_call_is_not_read(name: str, model: Any) -> None:
    most = {} if "max_length" in OTHERS[name] else {"max_new_tokens": 3}
    assert read(model, **most) is not None
    assert read(model, **most, **OTHERS[name]) is None


def test_nothing_is_read_under_autocast(model: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert read(model, max_new_tokens=3) is None


@pytest.mark.parametrize("name", ["generate", "prepare_inputs_for_generation", "_sample"])
def test_nothing_is_read_of_a_model_whose_methods_were_replaced(
    name: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(type(model), name)
    monkeypatch.setattr(type(model), name, lambda *args, **kwargs: own(*args, **kwargs))
    assert read(model, max_new_tokens=3) is None
