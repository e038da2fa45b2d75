"""Engines of others that answer several prompts at once, given the tokens that ours has."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench.baselines.genai import Genai
from bench.local_llm.answers import Arm
from bench.local_llm.chains import PlainModel
from bench.local_llm.prompts import Asked
from rag_accel.errors import EngineError
from rag_accel_demo.load import Load, torch_threads

CONTINUOUS, GENAI = "transformers generate_batch", "openvino-genai"
#: Tokens of a page of generate_batch's cache.
PAGE = 256

Opened = Callable[[PlainModel, int, int], AbstractContextManager[Arm]]
"""Opens an engine: the model, most tokens of an answer, threads."""


class PeerError(Exception):
    """Tells why an opponent cannot run here, or failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(f"{type(error).__name__}: {error}".split())[:300])


@contextmanager
def opened(open_peer: Opened, model: PlainModel, tokens: int, threads: int) -> Iterator[Arm]:
    """Give an opponent's arm, whose failures of any kind are one error.

    Raises:
        PeerError: it cannot be opened; the arm raises it where an answer fails.
    """
    context = open_peer(model, tokens, threads)
    try:
        arm = context.__enter__()
    except Exception as error:
        raise PeerError(error) from error

    def answer(asked: Sequence[Asked]) -> Load:
        try:
            return arm(asked)
        except Exception as error:
            raise PeerError(error) from error

    try:
        yield answer
    finally:
        context.__exit__(None, None, None)


@contextmanager
def continuous_batching(model: PlainModel, tokens: int, threads: int) -> Iterator[Arm]:
    """Give transformers' own continuous batching; its manager and cache are made once.

    Made in each call, as is its default, they take 15 seconds of it: the cache takes most of the
    memory there is. This one has a page a prompt more than eight of the longest would fill.
    """
    causal: Any = model.pipeline.pipeline.model
    tokenizer = model.tokenizer
    configuration: Any = importlib.import_module("transformers.generation.configuration_utils")
    greedy = configuration.GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=causal.generation_config.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )

    def answer(asked: Sequence[Asked]) -> Load:
        ids = [model.ids(one) for one in asked]
        pages = sum((len(each) + tokens) // PAGE + 2 for each in ids)
        bounds = configuration.ContinuousBatchingConfig(num_blocks=pages, page_size=PAGE)
        with torch_threads(threads):
            started = time.perf_counter()
            found = causal.generate_batch(
                ids,
                generation_config=greedy,
                continuous_batching_config=bounds,
                persistent_manager=True,
            )
            wall_s = time.perf_counter() - started
        if len(found) != len(ids) or any(one.error for one in found.values()):
            raise EngineError(
                "prompts without an answer", where="generate_batch", found=[*found.values()]
            )
        made = [
            tokenizer.decode(one.generated_tokens, skip_special_tokens=True)
            for one in found.values()
        ]
        return Load(tuple(made), (wall_s,) * len(made), wall_s)

    try:
        yield answer
    finally:
        causal.destroy_cached_continuous_batching_manager()


@contextmanager
def genai(model: PlainModel, tokens: int, threads: int) -> Iterator[Arm]:
    """Give openvino-genai's continuous batching, in a process of its own."""
    tokenizer = model.tokenizer
    with Genai(model.dtype_name, threads) as process:

        def answer(asked: Sequence[Asked]) -> Load:
            ids = [model.ids(one) for one in asked]
            found = process.answer(ids, tokens, tokenizer.eos_token_id)
            texts = [tokenizer.decode(one, skip_special_tokens=True) for one in found.answers]
            return Load(tuple(texts), (found.wall_s,) * len(texts), found.wall_s)

        yield answer


PEERS: dict[str, Opened] = {CONTINUOUS: continuous_batching, GENAI: genai}
