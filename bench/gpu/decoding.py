"""Tokens a second of several users of a local model: ours, and transformers' own batching."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.arms import bench_accelerator
from bench.gpu.device import PartRun, is_out_of_memory, need
from bench.gpu.models import (
    LLAMA_1B,
    TINY_LLAMA,
    DecoderShape,
    make_decoder,
    make_tokenizer,
    prompt_of,
    texts_of,
)
from bench.local_llm.continuous import generate_together
from bench.measure import median
from bench.results import Row, median_row
from rag_accel.adoption.local_calls import LocalCalls
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.text.prompting import Prompting

OURS, CONTINUOUS, FAILED = "accelerated", "transformers generate_batch", "failed"
#: How far below the best logit that of a token may lie by rounding alone, of the largest one. Wrong
#: states give other tokens: of 128,256 random logits few lie so near the largest.
NEAR = {"bfloat16": 2**-3, "float32": 1e-4}


@dataclass(frozen=True, slots=True)
class DecodingSizes:
    """How much is measured.

    Args:
        shape: of the model.
        users: who ask at once.
        words: tokens of each prompt's text.
        tokens: of an answer.
        turns: questions of each.
    """

    shape: DecoderShape = LLAMA_1B
    users: int = 8
    words: int = 512
    tokens: int = 128
    turns: int = 9


TINY = DecodingSizes(TINY_LLAMA, 3, 24, 8, 2)


@dataclass(frozen=True, slots=True)
class UsersAnswers:
    """The tokens of each user's answer, and the seconds until all had theirs."""

    tokens: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Return tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds


def measure(run: PartRun) -> None:
    """Let users ask both in turn, and compare every token with the model's own logits."""
    sizes = TINY if run.device.is_tiny else DecodingSizes()
    workload = f"{sizes.shape.name}, {sizes.users} users, {sizes.words} and {sizes.tokens} tokens"
    run.attempt(OURS, workload, lambda: _measure(sizes, workload, run))


def _measure(sizes: DecodingSizes, workload: str, run: PartRun) -> None:
    model = make_decoder(sizes.shape, run.device)
    tokenizer = make_tokenizer(sizes.shape.vocabulary)
    texts = texts_of(sizes.users, sizes.words, sizes.shape.vocabulary, 4)
    prompts = [prompt_of((text,), at) for at, text in enumerate(texts)]
    ids = [list(Prompting(tokenizer).whole(one.messages)) for one in prompts]
    room = 4 * sizes.users * (max(map(len, ids)) + sizes.tokens) * sizes.shape.token_bytes
    with bench_accelerator() as accelerator, ThreadPoolExecutor(sizes.users) as pool:
        llm = LocalLLM(model, tokenizer, pool_bytes=room, runner="torch", prefix_lanes=0)
        calls = LocalCalls(llm, llm, accelerator)

        def ours(_: int) -> UsersAnswers:
            asked = [one.generation_input(sizes.tokens) for one in prompts]
            started = clock.perf_counter()
            said = list(pool.map(calls.generate, asked))
            seconds = clock.perf_counter() - started
            each = (tokenizer(one.text, add_special_tokens=False)["input_ids"] for one in said)
            return UsersAnswers(tuple(map(tuple, each)), seconds)

        def others(_: int) -> UsersAnswers:
            started = clock.perf_counter()
            said = generate_together(model, ids, sizes.tokens, tokenizer.pad_token_id)
            seconds = clock.perf_counter() - started
            return UsersAnswers(tuple(map(tuple, said)), seconds)

        arms: dict[str, Callable[[int], UsersAnswers]] = {OURS: ours, CONTINUOUS: others}
        try:
            ours(0)  # first: a model that holds the other's manager cannot be copied
            try:
                others(0)
            except Exception as error:  # of any kind: what it lacks here says nothing about ours
                if is_out_of_memory(error):
                    raise
                run.note(CONTINUOUS, " ".join(f"{type(error).__name__}: {error}".split()), FAILED)
                del arms[CONTINUOUS]
            turns = run.turns(arms, sizes.turns)
        finally:
            model.destroy_cached_continuous_batching_manager()
    if not turns[OURS]:
        run.note(OURS, workload, "no time")
        return
    answers = zip(ids, turns[OURS][-1].tokens, strict=True)
    far = sum(far_tokens(model, prompt, said) for prompt, said in answers)
    run.check(not far, OURS, workload, "tokens_far_from_the_best", far)
    for name, each in turns.items():
        run.rows.append(median_row(name, workload, "tokens_per_s", [one.rate for one in each]))
    if pairs := list(zip(turns[OURS], turns.get(CONTINUOUS, ()), strict=False)):
        different = sum(
            mine != other
            for ours_, theirs in pairs
            for mine, other in zip(ours_.tokens, theirs.tokens, strict=True)
        )
        count = len(pairs) * sizes.users
        run.rows.append(Row(CONTINUOUS, workload, "other_answers", different, None, count))
        ratios = [ours_.rate / theirs.rate for ours_, theirs in pairs]
        run.ratios["decoding_vs_continuous"] = median(ratios)


def far_tokens(model: Any, prompt: Sequence[int], said: Sequence[int]) -> int:
    """Count tokens of an answer that a model's own forward does not give, but for rounding.

    Each is compared where the answer stood, so that one other choice of two that are nearly as good
    does not spoil what follows.

    Args:
        model: of transformers.
        prompt: its tokens.
        said: those of the answer.
    """
    torch = need("torch")
    ids = torch.tensor([[*prompt, *said]], device=model.device)
    with torch.inference_mode():
        logits = model(ids, use_cache=False, logits_to_keep=len(said) + 1).logits[0, :-1].float()
    pairs = zip(logits, said, strict=True)
    return sum(is_far(each, token, model.dtype) for each, token in pairs)


def is_far(logits: Any, token: int, dtype: Any) -> bool:
    """Tell whether a token is none of those that ``logits: [vocabulary]`` make the best."""
    most = NEAR[str(dtype).removeprefix("torch.")] * max(1.0, float(logits.abs().max()))
    return float(logits.max() - logits[token]) > most
