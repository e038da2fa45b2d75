"""Engines of model objects that are changed afterwards, behind a graph."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import tiny_chat
import torch
from fake_runner import tokenizer
from tiny_chat import TOKENS
from tiny_models import ids_of, own_logits, part

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.config import Options
from rag_accel.engines.llm.local.choice import local_model
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName
from rag_accel.engines.llm.local.paged.runner import PagedRunner
from rag_accel.engines.torch_threads import thread_count

QUESTION = "How high is it?"
IDS = ids_of(30, 1)


class Program:
    """A graph on an engine of a model and a tokenizer of the program's own."""

    def __init__(self, accelerator: Accelerator, model: Any, words: Any) -> None:
        self.accelerator, self.model, self.tokenizer = accelerator, model, words
        self.graph = RAGraph()
        self.graph.add_generation("answer", prompt="{input}", max_tokens=TOKENS)
        self.graph.add_edge(START, "answer").add_edge("answer", END)

    def ask(self) -> Any:
        return self.accelerator.run(self.graph, input=QUESTION)


@pytest.fixture(params=["torch", "paged"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    runner: RunnerName = request.param
    if runner == "paged":
        pytest.importorskip("openvino")
    model, words = copy.deepcopy(tiny_chat.model()), copy.deepcopy(tokenizer())
    bounds = LocalOptions(runner=runner, max_threads=2)
    local = local_model(model, words, bounds=bounds)
    with Accelerator(llm=local.make(Options())) as accelerator:
        yield Program(accelerator, model, words)


@torch.no_grad()
def _weights(program: Program) -> None:
    program.model.lm_head.weight.mul_(-1)


@torch.no_grad()
def _norm(program: Program) -> None:
    program.model.model.norm.weight[:] = 2.0


def _state(program: Program) -> None:
    model = program.model
    model.load_state_dict({name: -value for name, value in model.state_dict().items()})


def _dtype(program: Program) -> None:
    program.model.to(torch.bfloat16)


def _config(program: Program) -> None:
    program.model.config.rms_norm_eps = 0.5


def _penalty(program: Program) -> None:
    program.model.generation_config.repetition_penalty = 1.5


def _ends(program: Program) -> None:
    program.model.generation_config.eos_token_id = [1, 7]


def _template(program: Program) -> None:
    program.tokenizer.chat_template = program.tokenizer.chat_template.replace("turn", "s")


CHANGES: dict[str, Callable[[Program], None]] = {
    "weights": _weights,
    "a norm": _norm,
    "another checkpoint": _state,
    "another dtype": _dtype,
    "configuration": _config,
    "repetition penalty": _penalty,
    "end tokens": _ends,
    "chat template": _template,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_request_after_a_change_is_refused_by_name(
    change: Callable[[Program], None], program: Program
) -> None:
    assert program.ask()
    change(program)
    for _ in range(2):
        with pytest.raises(ConfigError, match="the model was changed after its engine was made"):
            program.ask()


def test_after_a_change_that_was_taken_back_requests_are_answered(program: Program) -> None:
    before = program.ask()
    _penalty(program)
    with pytest.raises(ConfigError, match="was changed"):
        program.ask()
    program.model.generation_config.repetition_penalty = None
    assert program.ask() == before


def test_a_model_in_training_answers_as_in_evaluation(program: Program) -> None:
    before = program.ask()
    program.model.train()
    assert program.ask() == before


def test_a_model_that_its_program_gives_up_answers_on(program: Program) -> None:
    before = program.ask()
    del program.model
    gc.collect()
    assert program.ask() == before


def test_weights_that_were_there_for_a_while_are_in_no_later_form(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("openvino")
    model = copy.deepcopy(tiny_chat.model())
    loaded = load(model, needs_tokenizer=False, options=LocalOptions(runner="paged", max_threads=2))
    runner = cast("PagedRunner", loaded.runner)
    expected = own_logits(tiny_chat.model(), IDS)
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}

    def on_one_thread() -> torch.Tensor:
        lane = runner.pool.take(len(IDS))
        with thread_count(1):
            found = runner.run([part(lane, IDS, 0, len(IDS))])
        runner.forms.wait(60.0)
        return found

    for weight in model.parameters():
        weight.detach().mul_(-2)
    assert not loaded.is_same()
    on_one_thread()  # of an answer that is under way: a form for one thread would be made now
    for name, weight in model.named_parameters():
        weight.detach().copy_(kept[name])
    assert not loaded.is_same()  # torch counts writes, and does not know what was there
    assert float((on_one_thread() - expected).abs().max()) <= 1e-5
    assert "the model was changed after its engine was made" in caplog.text
