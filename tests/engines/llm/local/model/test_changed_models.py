"""Engines of model objects that are changed afterwards, behind a graph."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_chat
import torch
from fake_runner import tokenizer
from tiny_chat import TOKENS

from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.config import Options
from rag_accel.engines.llm.local.choice import local_model
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName

QUESTION = "How high is it?"


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


def _data(program: Program) -> None:
    program.model.lm_head.weight.data.mul_(-1)


def _norm(program: Program) -> None:
    program.model.model.norm.weight.data[:] = 2.0


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
    "weights past torch's counter": _data,
    "a norm past torch's counter": _norm,
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
