"""The time to the first token where all texts, or all paths, of a prompt were seen before."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from bench.arms import bench_accelerator
from bench.gpu.decoding import is_far
from bench.gpu.device import PartRun, need
from bench.gpu.models import (
    LLAMA_1B,
    LLAMA_8B,
    TINY_LLAMA,
    DecoderShape,
    make_decoder,
    make_tokenizer,
    paths_of,
    prompt_of,
    texts_of,
)
from bench.gpu.recomputed import check_reuse
from bench.measure import median
from bench.paired import in_ms
from bench.results import median_row, row_of
from rag_accel.adoption.local_calls import LocalCalls
from rag_accel.engines.llm.local.local_llm import LocalLLM
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.fidelity.prompts import TextPrompt

PLAIN, EXACT, REUSED = "transformers' prefill", "accelerated, exact", "accelerated, all seen before"
#: Room of the pool and of kept texts, in prompts.
_ROOM = 3


@dataclass(frozen=True, slots=True)
class ReuseSizes:
    """How much is measured.

    Args:
        shapes: of models.
        words: tokens of a text.
        texts: of the prompts, by the end of a ratio's name.
        entities: whose paths a prompt has.
        paths: of each of them.
        turns: of each prompt's size.
    """

    shapes: tuple[DecoderShape, ...] = (LLAMA_1B, LLAMA_8B)
    words: int = 512
    texts: tuple[tuple[str, int], ...] = (("4k", 8), ("16k", 32), ("27k", 53))
    entities: int = 64
    paths: int = 8
    turns: int = 9


TINY = ReuseSizes((TINY_LLAMA,), 32, (("4k", 4),), 4, 4, 2)


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """Texts or paths that are asked about again and again.

    Args:
        key: the ratio's name.
        way: of reuse.
        workload: in rows.
        texts: of each prompt.
    """

    key: str
    way: str
    workload: str
    texts: tuple[str, ...]

    def prompt(self, turn: int) -> TextPrompt:
        """Return a prompt with a question and an order of its own."""
        return prompt_of(Random(turn).sample(self.texts, len(self.texts)), turn)


@dataclass(frozen=True, slots=True)
class FirstOfAnswer:
    """A first token and what it took.

    Args:
        seconds: from the call to its end.
        text: of the token; of a model's own forward there is none.
        logits: ``[vocabulary], float32``, of a model's own forward.
        reused: the share of a prompt's tokens that were not computed for it.
    """

    seconds: float
    text: str = ""
    logits: Any = None
    reused: float = 0.0


def measure(run: PartRun) -> None:
    """Compare reused states with computed ones, then measure each shape and size of prompts."""
    sizes = TINY if run.device.is_tiny else ReuseSizes()
    for shape in sizes.shapes:
        check_reuse(shape, run)
    for at, shape in enumerate(() if run.wrong else sizes.shapes):
        own = run.within(1 / (len(sizes.shapes) - at))
        own.attempt(REUSED, shape.name, partial(_measure_shape, shape, sizes, own))


def _measure_shape(shape: DecoderShape, sizes: ReuseSizes, run: PartRun) -> None:
    model, vocabulary = make_decoder(shape, run.device), shape.vocabulary
    paths = paths_of(sizes.entities, sizes.paths, vocabulary, 6)
    asked = [
        AskedAgain(
            f"reuse_{shape.key}_{key}",
            "full",
            f"{shape.name}, {count} texts of {sizes.words} tokens",
            texts_of(count, sizes.words, vocabulary, 5),
        )
        for key, count in sizes.texts
    ]
    asked.append(
        AskedAgain(
            f"trees_{shape.key}", "dependency", f"{shape.name}, {len(paths)} relation paths", paths
        )
    )
    for at, one in enumerate(asked):
        own = run.within(1 / (len(asked) - at))
        own.attempt(
            REUSED, one.workload, partial(_measure_prompts, model, shape, one, sizes.turns, own)
        )


def _measure_prompts(
    model: Any, shape: DecoderShape, asked: AskedAgain, turns: int, run: PartRun
) -> None:
    """Ask about the same texts, in another order each turn."""
    tokenizer = make_tokenizer(shape.vocabulary)
    tokens = len(Prompting(tokenizer).whole(asked.prompt(0).messages))
    room = _ROOM * tokens * shape.token_bytes
    bounds: dict[str, Any] = {"runner": "torch", "pool_bytes": room, "chunk_bytes": room}
    with bench_accelerator() as accelerator:

        def ours(kv_reuse: str) -> Callable[[int], FirstOfAnswer]:
            llm = LocalLLM(model, tokenizer, kv_reuse=kv_reuse, **bounds)
            calls = LocalCalls(llm, llm, accelerator)

            def answer(turn: int) -> FirstOfAnswer:
                prompt = asked.prompt(turn)
                payload = prompt.generation_input(1, paths_first=kv_reuse == "dependency")
                started = clock.perf_counter()
                said = calls.generate(payload)
                seconds = clock.perf_counter() - started
                reused = said.use.from_chunks / said.prompt_tokens if said.use else 0.0
                return FirstOfAnswer(seconds, said.text, reused=reused)

            return answer

        arms: dict[str, Callable[[int], FirstOfAnswer]] = {
            PLAIN: lambda turn: _own_first(model, tokenizer, asked.prompt(turn)),
            EXACT: ours("exact"),
            REUSED: ours(asked.way),
        }
        each = run.turns(arms, turns, warm_up=2)
    workload = f"{asked.workload}, prompts of {tokens}"
    if not each[PLAIN]:
        run.note(REUSED, workload, "no time")
        return
    far = sum(
        is_far(plain.logits, tokenizer.convert_tokens_to_ids(exact.text.strip()), model.dtype)
        for exact, plain in zip(each[EXACT], each[PLAIN], strict=True)
    )
    run.check(not far, EXACT, workload, "tokens_far_from_the_best", far)
    for name, answers in each.items():
        times = [in_ms(one.seconds) for one in answers]
        run.rows.append(row_of(name, workload, "first_token_ms", times))
    shares = [100 * one.reused for one in each[REUSED]]
    run.rows.append(median_row(REUSED, workload, "reused_percent", shares))
    best = min((PLAIN, EXACT), key=lambda name: median([one.seconds for one in each[name]]))
    pairs = zip(each[best], each[REUSED], strict=True)
    run.ratios[asked.key] = median([full.seconds / reused.seconds for full, reused in pairs])


def _own_first(model: Any, tokenizer: Any, prompt: TextPrompt) -> FirstOfAnswer:
    """Return what a model's own forward gives, whose keys and values are kept."""
    torch = need("torch")
    started = clock.perf_counter()
    ids = torch.tensor([Prompting(tokenizer).whole(prompt.messages)], device=model.device)
    with torch.inference_mode():
        output = model(ids, use_cache=True, logits_to_keep=1)
        text = tokenizer.decode([int(output.logits[0, -1].argmax())])
    seconds = clock.perf_counter() - started
    return FirstOfAnswer(seconds, text, output.logits[0, -1].float().cpu())
