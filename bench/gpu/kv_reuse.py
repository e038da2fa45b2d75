"""The time to the first token where all texts, or all paths, of a prompt were seen before."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.arms import bench_accelerator
from bench.gpu.decoding import NEAR
from bench.gpu.device import MeasuredDevice, PartFound, PartTime, need
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
from rag_accel.engine_api import GenerationOutput
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


def measure(device: MeasuredDevice, time: PartTime, found: PartFound) -> None:
    """Compare reused states with computed ones, then measure each shape and size of prompts."""
    sizes = TINY if device.is_tiny else ReuseSizes()
    for shape in sizes.shapes:
        check_reuse(shape, device, found)
    if found.wrong:
        return
    for at, shape in enumerate(sizes.shapes):
        own = time.share(1 / (len(sizes.shapes) - at))
        found.within_memory(
            device,
            REUSED,
            shape.name,
            lambda shape=shape, own=own: _measure_shape(shape, sizes, device, own, found),
        )


def _measure_shape(
    shape: DecoderShape,
    sizes: ReuseSizes,
    device: MeasuredDevice,
    time: PartTime,
    found: PartFound,
) -> None:
    model, vocabulary = make_decoder(shape, device), shape.vocabulary
    paths = paths_of(sizes.entities, sizes.paths, vocabulary, 6)
    given: list[tuple[str, str, str, tuple[str, ...]]] = [
        (
            f"reuse_{shape.key}_{key}",
            "full",
            f"{count} texts of {sizes.words} tokens",
            texts_of(count, sizes.words, vocabulary, 5),
        )
        for key, count in sizes.texts
    ]
    given.append((f"trees_{shape.key}", "dependency", f"{len(paths)} relation paths", paths))
    for at, (key, way, workload, texts) in enumerate(given):
        own = time.share(1 / (len(given) - at))
        named = f"{shape.name}, {workload}"
        found.within_memory(
            device,
            REUSED,
            named,
            lambda key=key, way=way, named=named, texts=texts, own=own: _measure_prompts(
                model, shape, key, way, named, texts, sizes.turns, own, found
            ),
        )


def _measure_prompts(
    model: Any,
    shape: DecoderShape,
    key: str,
    way: str,
    workload: str,
    texts: tuple[str, ...],
    turns: int,
    time: PartTime,
    found: PartFound,
) -> None:
    """Ask about the same texts, in another order each turn."""
    tokenizer = make_tokenizer(shape.vocabulary)

    def prompt(turn: int) -> TextPrompt:
        return prompt_of(Random(turn).sample(texts, len(texts)), turn)

    tokens = len(Prompting(tokenizer).whole(prompt(0).messages))
    room = _ROOM * tokens * shape.token_bytes
    bounds: dict[str, Any] = {"runner": "torch", "pool_bytes": room, "chunk_bytes": room}
    with bench_accelerator() as accelerator:

        def ours(kv_reuse: str) -> Callable[[int], FirstOfAnswer]:
            llm = LocalLLM(model, tokenizer, kv_reuse=kv_reuse, **bounds)
            calls = LocalCalls(llm, llm, accelerator)
            paths_first = kv_reuse == "dependency"

            def answer(turn: int) -> FirstOfAnswer:
                asked = prompt(turn).generation_input(1, paths_first=paths_first)
                started = clock.perf_counter()
                said: GenerationOutput = calls.generate(asked)
                seconds = clock.perf_counter() - started
                reused = said.use.from_chunks / said.prompt_tokens if said.use else 0.0
                return FirstOfAnswer(seconds, said.text, reused=reused)

            return answer

        arms = {
            PLAIN: lambda turn: _own_first(model, tokenizer, prompt(turn)),
            EXACT: ours("exact"),
            REUSED: ours(way),
        }
        each = time.turns(arms, turns, warm_up=2)
    named = f"{workload}, prompts of {tokens} tokens"
    if not each[PLAIN]:
        found.no_time(REUSED, named)
        return
    near = NEAR[str(model.dtype).removeprefix("torch.")]
    far = sum(
        _is_far(tokenizer, exact, plain, near)
        for exact, plain in zip(each[EXACT], each[PLAIN], strict=True)
    )
    found.check(not far, EXACT, named, "tokens_far_from_the_best", far)
    for name, answers in each.items():
        times = [in_ms(one.seconds) for one in answers]
        found.rows.append(row_of(name, named, "first_token_ms", times))
    shares = [100 * one.reused for one in each[REUSED]]
    found.rows.append(median_row(REUSED, named, "reused_percent", shares))
    best = min((PLAIN, EXACT), key=lambda name: median([one.seconds for one in each[name]]))
    pairs = zip(each[best], each[REUSED], strict=True)
    found.ratios[key] = median([full.seconds / reused.seconds for full, reused in pairs])


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


def _is_far(tokenizer: Any, ours: FirstOfAnswer, plain: FirstOfAnswer, near: float) -> bool:
    """Tell whether a token is none of those that a model's own logits make the best."""
    chosen = plain.logits[tokenizer.convert_tokens_to_ids(ours.text.strip() or "<unk>")]
    most = near * max(1.0, float(plain.logits.abs().max()))
    return float(plain.logits.max() - chosen) > most
