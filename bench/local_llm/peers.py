"""Engines of others that answer several prompts at once, given the tokens that ours has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench.baselines import token_peers
from bench.baselines.token_peers import PRECISIONS, TokenProcess
from bench.local_llm.answers import Arm
from bench.local_llm.chains import PlainModel
from bench.local_llm.continuous import generate_together
from bench.local_llm.prompts import Asked
from rag_accel_demo.load import Load, torch_threads

CONTINUOUS, GENAI = "transformers generate_batch", "openvino-genai"
GENAI_INT8, LLAMA_CPP = "openvino-genai, int8", "llama.cpp, Q8_0"

PeerArm = Callable[..., Load]
"""An arm; engines that have a process of their own also take other most tokens of an answer."""

Opened = Callable[[PlainModel, int, int], AbstractContextManager[PeerArm]]
"""Opens an engine: the model, most tokens of an answer, threads."""


class PeerError(Exception):
    """Tells why an opponent cannot run here, or failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(f"{type(error).__name__}: {error}".split())[:300])


@contextmanager
def opened(open_peer: Opened, model: PlainModel, tokens: int, threads: int) -> Iterator[PeerArm]:
    """Give an opponent's arm, whose failures of any kind are one error.

    Raises:
        PeerError: it cannot be opened; the arm raises it where an answer fails.
    """
    context = open_peer(model, tokens, threads)
    try:
        arm = context.__enter__()
    except Exception as error:
        raise PeerError(error) from error

    def answer(asked: Sequence[Asked], *most: int) -> Load:
        try:
            return arm(asked, *most)
        except Exception as error:
            raise PeerError(error) from error

    try:
        yield answer
    finally:
        context.__exit__(None, None, None)


@contextmanager
def continuous_batching(model: PlainModel, tokens: int, threads: int) -> Iterator[Arm]:
    """Give transformers' own continuous batching; its manager and cache are made once."""
    causal: Any = model.pipeline.pipeline.model
    tokenizer = model.tokenizer

    def answer(asked: Sequence[Asked]) -> Load:
        ids = [model.ids(one) for one in asked]
        with torch_threads(threads):
            started = time.perf_counter()
            found = generate_together(causal, ids, tokens, tokenizer.pad_token_id)
            wall_s = time.perf_counter() - started
        made = [tokenizer.decode(one, skip_special_tokens=True) for one in found]
        return Load(tuple(made), (wall_s,) * len(made), wall_s)

    try:
        yield answer
    finally:
        causal.destroy_cached_continuous_batching_manager()


def _by_tokens(start: Callable[[PlainModel, str], TokenProcess]) -> Opened:
    """Return what opens an engine that runs in a process of its own, on so many threads."""

    @contextmanager
    def open_peer(model: PlainModel, tokens: int, threads: int) -> Iterator[PeerArm]:
        tokenizer = model.tokenizer
        with start(model, str(threads)) as process:

            def answer(asked: Sequence[Asked], most: int = tokens) -> Load:
                ids = [model.ids(one) for one in asked]
                found = process.answer(ids, most, tokenizer.eos_token_id)
                texts = [tokenizer.decode(one, skip_special_tokens=True) for one in found.answers]
                return Load(tuple(texts), found.latencies_s, found.wall_s)

            yield answer

    return open_peer


PEERS: dict[str, Opened] = {
    CONTINUOUS: continuous_batching,
    GENAI: _by_tokens(
        lambda model, threads: token_peers.GENAI["own"].start(PRECISIONS[model.dtype_name], threads)
    ),
}
#: With weights of 8 bits, and what is computed and cached as they have it by default.
INT8_PEERS: dict[str, Opened] = {
    GENAI_INT8: _by_tokens(lambda _, threads: token_peers.GENAI["int8"].start("default", threads)),
    LLAMA_CPP: _by_tokens(lambda _, threads: token_peers.LLAMA_CPP.start(threads)),
}
