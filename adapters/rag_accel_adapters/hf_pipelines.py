"""Pipelines of transformers, and stopping criteria that frameworks make for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

from rag_accel.adoption.generation import AskGenerate, GeneratingClient
from rag_accel.adoption.known_classes import full_name
from rag_accel_adapters.hf_generation import read_greedy

_PIPELINE = "transformers.pipelines.text_generation.TextGenerationPipeline"
#: Criteria by the place where they are written, and the variable that holds their tokens.
_CRITERIA: Mapping[str, str] = {
    "langchain_huggingface.llms.huggingface_pipeline.HuggingFacePipeline._stream.<locals>"
    ".StopOnTokens": "stopping_ids_list",
    "llama_index.llms.huggingface.base.HuggingFaceLLM.__init__.<locals>.StopOnTokens": (
        "stopping_ids_list"
    ),
}


def generating(model: Any, ask: AskGenerate) -> GeneratingClient:
    """Return a client of a model of transformers."""
    return GeneratingClient(model, partial(read_greedy, stop_tokens), ask)


def is_text_generation(pipeline: Any) -> bool:
    """Tell whether a pipeline continues texts by its library's own code."""
    return (
        full_name(type(pipeline)) == _PIPELINE
        and pipeline.task == "text-generation"
        and pipeline.assistant_model is None
        and not any(name in vars(pipeline) for name in ("__call__", "preprocess", "forward"))
        and not isinstance(pipeline.model, GeneratingClient)
    )


def with_client(pipeline: Any, ask: AskGenerate) -> Any:
    """Return a pipeline of the same settings whose model is a client."""
    other = copy.copy(pipeline)
    other.model = generating(pipeline.model, ask)
    return other


def stop_tokens(criterion: Any) -> frozenset[int] | None:
    """Return the tokens at which a framework's own criterion ends; None for any other."""
    name = _CRITERIA.get(full_name(type(criterion)))
    if name is None or vars(criterion):
        return None
    function = type(criterion).__call__
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = cells[name].cell_contents
    return frozenset(one for one in found if isinstance(one, int))
