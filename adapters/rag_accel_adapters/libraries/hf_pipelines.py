"""Pipelines of transformers, and stopping criteria that frameworks make for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rag_accel.adoption.generation import (
    GenerateCall,
    GenerateHooks,
    GeneratingClient,
    Report,
    is_called_by_thread,
)
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.hf_generation import read_call

_PIPELINE = "transformers.pipelines.text_generation.TextGenerationPipeline"
#: methods of a pipeline that its calls pass
_STEPS = frozenset(
    [
        "forward",
        "get_iterator",
        "postprocess",
        "preprocess",
        "run_single",
        "_forward",
        "_prepare_generate_kwargs",
        "_sanitize_parameters",
    ]
)
#: parts of a list that are under way at once
_MOST_THREADS = 64
#: Criteria by the place where they are written, and the variable that holds their tokens.
_CRITERIA: Mapping[str, str] = {
    "langchain_huggingface.llms.huggingface_pipeline.HuggingFacePipeline._stream.<locals>"
    ".StopOnTokens": "stopping_ids_list",
    "llama_index.llms.huggingface.base.HuggingFaceLLM.__init__.<locals>.StopOnTokens": (
        "stopping_ids_list"
    ),
}


def generating(model: Any, ask: GenerateHooks, tokenizer: Any) -> GeneratingClient:
    """Return a client of a model of transformers whose prompts a tokenizer makes."""
    return GeneratingClient(model, partial(read_call, stop_tokens), ask, tokenizer)


def pipeline_obstacle(pipeline: Any) -> str | None:
    """Return why no engine runs a pipeline; None if it continues texts by its library's code."""
    if isinstance(pipeline, SpreadPipeline):
        reason = pipeline.model.why_plain(is_sampled=pipeline_samples(pipeline))
        return reason or "it stands in for a pipeline already"
    if full_name(type(pipeline)) != _PIPELINE:
        return f"its pipeline is a {full_name(type(pipeline))}; a {_PIPELINE} runs"
    if pipeline.task != "text-generation":
        return f"its pipeline's task is {pipeline.task}; text-generation runs"
    if pipeline.assistant_model is not None:
        return "its pipeline has an assistant_model; without it, an engine runs the model"
    replaced = sorted(vars(pipeline).keys() & _STEPS)
    return f"{replaced[0]} of its pipeline is replaced" if replaced else None


class SpreadPipeline:
    """A pipeline that works on all parts of a list of prompts at once, if an engine may run them.

    The parts are what it would work on one after another: prompts that are padded to one length
    stay together.

    Args:
        pipeline: one without a ``pipeline_obstacle``; its settings are kept, its model is a client.
        ask: has an engine compute.
        batch: the prompts that its caller hands over at once.
    """

    def __init__(self, pipeline: Any, ask: GenerateHooks, batch: int) -> None:
        self._pipeline, self._batch = copy.copy(pipeline), max(1, batch)
        self._client = generating(pipeline.model, ask, pipeline.tokenizer)
        self._pipeline.model = self._client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the pipeline returns; a list is cut as its caller would have cut it."""
        self._client.is_thread = is_called_by_thread()
        if len(args) != 1 or type(args[0]) is not list or not args[0]:
            return self._pipeline(*args, **kwargs)
        prompts = args[0]
        shared = self._shared_call(prompts[0], kwargs) if len(prompts) > 1 else None
        size = self._batch if shared is None else self._part()
        parts = [prompts[at : at + size] for at in range(0, len(prompts), size)]
        call = partial(self._pipeline, **kwargs)
        if shared is None or len(parts) == 1:
            return [found for part in parts for found in call(part)]
        apart = self._client.apart_for(shared, len(parts))
        with ThreadPoolExecutor(min(_MOST_THREADS, len(parts))) as threads:
            answers = list(threads.map(partial(self._call_apart, kwargs), apart, parts))
        self.reports.extend(report for client in apart for report in client.reports)
        return [found for answer in answers for found in answer]

    @property
    def reports(self) -> list[Report]:
        """Return how the texts of each prompt were computed, see ``GeneratingClient``."""
        return self._client.reports

    def _call_apart(
        self, kwargs: Mapping[str, Any], client: GeneratingClient, part: list[Any]
    ) -> Any:
        pipeline = copy.copy(self._pipeline)
        pipeline.model = client
        return pipeline(part, **kwargs)

    def _part(self) -> int:
        """Return how many prompts the pipeline works on at once."""
        at_once = self._pipeline._batch_size or 1
        return at_once if self._batch % at_once == 0 else self._batch

    def _shared_call(self, prompt: Any, kwargs: Mapping[str, Any]) -> GenerateCall | None:
        """Return a call, if an engine may continue its prompts and threads read them."""
        if self._client.why_plain() is not None:
            return None
        pipeline = self._pipeline
        try:
            reading, asked, _ = pipeline._sanitize_parameters(**kwargs)
            # A tokenizer's settings change with the first text, after which all threads find them.
            pipeline.preprocess(prompt, **{**pipeline._preprocess_params, **reading})
            given = {**pipeline._forward_params, **asked}
            given.pop("prefix_length", None)
            given = pipeline._prepare_generate_kwargs(given)
        except Exception:  # the pipeline is to refuse it, or runs as it does
            return None
        # A streamer is given one answer after another.
        return None if given.get("streamer") is not None else shared_call(self._client, given)


def shared_call(client: GeneratingClient, kwargs: Mapping[str, Any]) -> GenerateCall | None:
    """Return a call with some prompt; None if no engine may continue it under these arguments."""
    import torch

    ids = torch.zeros(1, 1, dtype=torch.long, device=client.device)
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return client.shared_call({**kwargs, **prompt})


def samples(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether ``generate`` draws tokens by chance under these arguments."""
    settings = kwargs.get("generation_config") or model.generation_config
    return kwargs.get("do_sample", getattr(settings, "do_sample", None)) is True


def pipeline_samples(pipeline: Any) -> bool:
    """Tell whether a pipeline draws tokens by chance, which its library's default is."""
    return samples(pipeline.model, pipeline._prepare_generate_kwargs(pipeline._forward_params))


def stop_tokens(criterion: Any) -> frozenset[int] | None:
    """Return the tokens at which a framework's own criterion ends; None for any other."""
    name = _CRITERIA.get(full_name(type(criterion)))
    if name is None or vars(criterion):
        return None
    function = type(criterion).__call__
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    found = cells[name].cell_contents
    return frozenset(token for token in found if isinstance(token, int))
