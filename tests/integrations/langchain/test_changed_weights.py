"""Pipelines whose model is changed after an engine on paged attention was made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")
pytest.importorskip("openvino")

import torch
from fake_runner import tokenizer
from hf_callers import QUESTIONS, own_model, own_pipeline
from langchain_huggingface import HuggingFacePipeline
from numpy.typing import NDArray

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.engines import LocalLLM
from rag_accel.engines.llm.local.paged.runner import PagedForm


@torch.no_grad()
def _weights(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight.mul_(-2)


def _state(model: Any) -> None:
    model.load_state_dict({name: -value for name, value in model.state_dict().items()})


def _replaced(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())


CHANGES: dict[str, Callable[[Any], None]] = {
    "weights": _weights,
    "another checkpoint": _state,
    "a weight replaced": _replaced,
    "dtype": lambda model: model.to(torch.bfloat16),
    "training": lambda model: model.train(),
}


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the rows of each forward on paged attention."""
    rows: list[int] = []
    run = PagedForm.run

    def noted(form: PagedForm, inputs: dict[str, NDArray[Any]]) -> Any:
        rows.append(inputs["input_ids"].shape[1])
        return run(form, inputs)

    monkeypatch.setattr(PagedForm, "run", noted)
    return rows


@pytest.fixture
def llm() -> Iterator[tuple[HuggingFacePipeline, Any]]:
    """Yield a pipeline, and the same one accelerated, whose model runs on paged attention."""
    made = HuggingFacePipeline(pipeline=own_pipeline(own_model()))
    bounds = LocalLLM(made.pipeline.model, tokenizer(), runner="paged", pool_bytes=1 << 24)
    with Accelerator(llm=bounds) as accelerator:
        yield made, accelerate(made, accelerator=accelerator)


def answers(llm: Any) -> list[Any]:
    return [*llm.batch(QUESTIONS[:2]), [*llm.stream(QUESTIONS[2])]]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_answers_are_those_of_the_model_as_it_is_now(
    change: Callable[[Any], None], llm: tuple[HuggingFacePipeline, Any], forwards: list[int]
) -> None:
    plain, fast = llm
    expected = answers(HuggingFacePipeline(pipeline=own_pipeline(own_model())))
    assert answers(fast) == expected
    assert forwards
    change(plain.pipeline.model)
    now = HuggingFacePipeline(pipeline=own_pipeline(plain.pipeline.model))
    assert answers(fast) == answers(now)
