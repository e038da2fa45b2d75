"""LangChain's Hugging Face pipelines and chat models, whose greedy calls share steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")

import torch
from fake_runner import tokenizer
from hf_callers import CALLERS, QUESTIONS, Meeting, count_owned, own_model, own_pipeline
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline

from langchain_rag_accel import accelerate, activate, explain
from rag_accel import Accelerator


@pytest.fixture(scope="module")
def llm() -> HuggingFacePipeline:
    """Give a model that tests leave as it is."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model()))


def chat_of(llm: HuggingFacePipeline) -> ChatHuggingFace:
    return ChatHuggingFace(llm=llm, tokenizer=tokenizer(), model_id="tiny")


def changing(**settings: Any) -> HuggingFacePipeline:
    """Return a model that a test may change."""
    return HuggingFacePipeline(pipeline=own_pipeline(own_model(), **settings))


CALLS: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda llm: llm.invoke(QUESTIONS[0]),
    "batch": lambda llm: llm.batch(QUESTIONS),
    "generate": lambda llm: llm.generate(QUESTIONS).generations,
    "stream": lambda llm: list(llm.stream(QUESTIONS[1])),
    "ainvoke": lambda llm: asyncio.run(llm.ainvoke(QUESTIONS[0])),
    "abatch": lambda llm: asyncio.run(llm.abatch(QUESTIONS)),
    "skip_prompt": lambda llm: llm.invoke(QUESTIONS[2], skip_prompt=True),
    "stop": lambda llm: llm.invoke(QUESTIONS[0], stop=["a"]),
    "stop in a stream": lambda llm: list(llm.stream(QUESTIONS[1], stop=["a", "i", "4", "G"])),
    "only new text": lambda llm: llm.invoke(
        QUESTIONS[3], pipeline_kwargs={"return_full_text": False}
    ),
    "max_length": lambda llm: llm.batch(
        QUESTIONS[:3], pipeline_kwargs={"max_new_tokens": None, "max_length": 40}
    ),
    "penalty": lambda llm: llm.invoke(QUESTIONS[0], pipeline_kwargs={"repetition_penalty": 1.3}),
    "another end": lambda llm: llm.invoke(QUESTIONS[0], pipeline_kwargs={"eos_token_id": [40, 41]}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_it_gives_plainly(
    name: str, llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = CALLS[name](llm)
    sizes = count_owned(monkeypatch)
    assert CALLS[name](accelerate(llm, accelerator=accelerator)) == plain
    assert sizes


@pytest.mark.parametrize("batch_size", [2, 3])
def test_a_padded_batch_gives_what_it_gives_plainly(
    batch_size: int, accelerator: Accelerator
) -> None:
    llm = HuggingFacePipeline(
        pipeline=own_pipeline(own_model(), batch_size=batch_size), batch_size=6
    )
    assert accelerate(llm, accelerator=accelerator).batch(QUESTIONS) == llm.batch(QUESTIONS)


def test_a_chat_model_gives_what_it_gives_plainly(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(llm)
    plain, streamed = chat.invoke(QUESTIONS[0]), list(chat.stream(QUESTIONS[1]))
    sizes = count_owned(monkeypatch)
    fast = accelerate(chat, accelerator=accelerator)
    assert fast.invoke(QUESTIONS[0]).content == plain.content
    assert [one.content for one in fast.stream(QUESTIONS[1])] == [one.content for one in streamed]
    assert sizes


def test_an_activated_program_is_adopted(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(llm)
    plain = llm.invoke(QUESTIONS[0]), chat.invoke(QUESTIONS[0]).content
    sizes = count_owned(monkeypatch)
    with activate(accelerator=accelerator):
        assert (llm.invoke(QUESTIONS[0]), chat.invoke(QUESTIONS[0]).content) == plain
    assert sizes


def test_threads_share_steps(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [llm.invoke(one) for one in QUESTIONS]
    fast = accelerate(llm, accelerator=accelerator)
    fast.invoke(QUESTIONS[0])  # its engine is there
    meeting = Meeting(monkeypatch)
    with ThreadPoolExecutor(CALLERS) as threads:
        assert list(threads.map(fast.invoke, QUESTIONS)) == plain
    assert max(meeting.sizes) == CALLERS


def test_the_prompts_of_a_call_share_steps(
    llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = accelerate(llm, accelerator=accelerator)
    fast.invoke(QUESTIONS[0])
    meeting = Meeting(monkeypatch)
    fast.generate(QUESTIONS)
    assert max(meeting.sizes) == CALLERS


OTHERS: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True, "temperature": 0.9},
    "minimum": {"min_new_tokens": 3},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_call_runs_plainly(
    name: str, llm: HuggingFacePipeline, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_owned(monkeypatch)
    fast = accelerate(llm, accelerator=accelerator)
    options: dict[str, Any] = {"pipeline_kwargs": OTHERS[name]}
    torch.manual_seed(3)
    plain = llm.generate(QUESTIONS[:3], **options).generations
    torch.manual_seed(3)
    assert fast.generate(QUESTIONS[:3], **options).generations == plain
    assert sizes == []


def test_a_call_that_refuses_its_options_raises_what_it_raises_plainly(
    llm: HuggingFacePipeline, accelerator: Accelerator
) -> None:
    options: dict[str, Any] = {"pipeline_kwargs": {"no_such_option": 1}}
    with pytest.raises(ValueError, match="no_such_option"):
        llm.invoke("What?", **options)
    with pytest.raises(ValueError, match="no_such_option"):
        accelerate(llm, accelerator=accelerator).invoke("What?", **options)


def test_bfloat16_stays_plain(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_owned(monkeypatch)
    llm = HuggingFacePipeline(pipeline=own_pipeline(own_model(torch.bfloat16)))
    fast = accelerate(llm, accelerator=accelerator)
    assert fast.invoke(QUESTIONS[0]) == llm.invoke(QUESTIONS[0])
    assert sizes == []
    assert "plain: it computes in bfloat16" in explain(fast)


@pytest.mark.parametrize("off", ["off", False])
def test_adoption_can_be_turned_off(
    off: Any, llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_owned(monkeypatch)
    with Accelerator(strict=True, adopt_llm=off) as accelerator:
        fast = accelerate(llm, accelerator=accelerator)
        assert fast.invoke(QUESTIONS[0]) == llm.invoke(QUESTIONS[0])
        assert sizes == []
        assert "plain: adopt_llm is off" in explain(fast)


def _hook(llm: Any) -> None:
    llm.pipeline.model.lm_head.register_forward_hook(lambda module, args, logits: -logits)


def _weights(llm: Any) -> None:
    with torch.no_grad():
        llm.pipeline.model.lm_head.weight.mul_(-1)


def _generate(llm: Any) -> None:
    own = llm.pipeline.model.generate
    llm.pipeline.model.generate = lambda **kwargs: own(**kwargs)[:, :-1]


def _dtype(llm: Any) -> None:
    llm.pipeline.model.to(torch.bfloat16)


def _training(llm: Any) -> None:
    llm.pipeline.model.train()


CHANGES = {one.__name__: one for one in (_hook, _weights, _generate, _dtype, _training)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_was_changed_runs_plainly(
    name: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = changing()
    fast = accelerate(llm, accelerator=accelerator)
    sizes = count_owned(monkeypatch)
    fast.invoke(QUESTIONS[0])
    before = len(sizes)
    CHANGES[name](llm)
    assert before
    assert fast.invoke(QUESTIONS[0]) == llm.invoke(QUESTIONS[0])
    assert len(sizes) == before


def test_another_model_in_the_pipeline_is_seen(accelerator: Accelerator) -> None:
    llm = changing()
    fast = accelerate(llm, accelerator=accelerator)
    fast.invoke(QUESTIONS[0])
    other = own_model()
    _weights(HuggingFacePipeline(pipeline=own_pipeline(other)))
    llm.pipeline.model = other
    assert fast.invoke(QUESTIONS[0]) == llm.invoke(QUESTIONS[0])


def test_an_engine_that_cannot_be_made_leaves_calls_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rag_accel.engines.llm.local.model import runner_choice

    def failing(model: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(runner_choice, "check_equality", failing)
    llm = changing()
    with Accelerator() as accelerator, caplog.at_level(logging.ERROR):
        fast = accelerate(llm, accelerator=accelerator)
        assert fast.invoke(QUESTIONS[0]) == llm.invoke(QUESTIONS[0])
        assert "its engine could not be made: MemoryError" in explain(fast)


def test_a_stream_whose_engine_fails_goes_on_plainly(
    llm: HuggingFacePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_accel.engines.llm.local.model.runner import PackedRunner

    plain = "".join(llm.stream(QUESTIONS[1]))
    run, forwards = PackedRunner.run, iter(range(1000))

    def failing(runner: Any, rows: Any) -> Any:
        if next(forwards) > 4:
            raise RuntimeError("no more")
        return run(runner, rows)

    monkeypatch.setattr(PackedRunner, "run", failing)
    with Accelerator() as accelerator:
        assert "".join(accelerate(llm, accelerator=accelerator).stream(QUESTIONS[1])) == plain
