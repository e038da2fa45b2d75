"""Measure the time to the first token of prompts whose texts were seen before, in another order.

The model of the first part is a Llama of random weights in bfloat16 (hidden size 768, 10 layers, 12
heads of 64 and 4 of keys and values, SwiGLU of 2048) with the tokenizer of SmolLM2, on one torch
thread. A prompt has 10 texts of 512 tokens in an order that no prompt had before, and a question of
its own. Plain is the model's own forward of transformers, with scaled dot product attention; ours
is a call of ``ChatRagAccel``, from the call through driver and engine to the end of an answer of
one token. The full prefill that ratios are taken against is the faster of plain and our engine's
exact mode. Texts are kept in memory; in other arms in files, and memory keeps nothing (the
operating system may); in those of new texts they were never seen. CacheBlend
(``bench.baselines.cacheblend``) is called without an engine or a driver before it.

kvboost, which keeps pieces of prompts, is asked the same questions in an environment and a process
of its own (``make peers``; without it a row says ``missing`` and the ratio is left out), by itself
and told where the texts begin and end; the faster of the two counts. The clock is its process's,
from its call to its first token.

Prompts of 4 texts and 128 to 2,048 tokens (1,024 in the quick form) are asked of the exact mode and
of fused reuse, which computes a prompt whole where it has learnt that this takes less time. Shorter
prompts have more turns, up to four times as many. How many requests a second 8 users are answered
who ask at once, about 10 texts of 128 tokens, are rows without a ratio.

The second part is SmolLM2 135M Instruct, in bfloat16 and on the threads that each arm takes by
itself: a LangChain chain over langchain_huggingface's pipeline and a LlamaIndex query engine over
HuggingFaceLLM, whose model is swapped for ours and which are wrapped by ``accelerate``. A search
finds the same 10 texts in another order each time, some 5000 tokens.

Arms take turns. Reuse is approximate: how many first tokens are plain's is a row, and not demanded;
of random weights they say little. ``kv_fidelity`` measures how far distributions are apart.

Ratios:
    reuse_vs_full: against the faster of transformers' prefill and our exact mode: its time to the
        first token / that of full reuse; median over turns.
    fused15_vs_full: against the faster of transformers' prefill and our exact mode: its time to the
        first token / ours with 15 % of the texts' tokens computed again; median over turns.
    fused15_vs_cacheblend15: against CacheBlend with 15 % of the texts' tokens computed again, over
        our attention kernel: its time to the first token / that of ours with 15 %; median over
        turns.
    reuse_vs_kvboost: against kvboost over the same model, the faster of its own pieces and of those
        it is told: our time to the first token with full reuse / its (lower is better); median over
        turns.
    auto_never_slower: against our exact mode: its time to the first token / that of fused reuse
        which decides by itself, median over turns; the lowest over lengths of prompts.
    cold_fused_vs_full: against the faster of transformers' prefill and our exact mode: its time to
        the first token / ours with 15 % computed again where no text was seen before; median over
        turns.
    swap_in_ttft: against the faster of the framework's own Hugging Face model and our exact mode:
        its time to the first token / ours with 15 % computed again; median over turns, the lower of
        both frameworks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.kv import break_even, first_token, kvboost, swap_in, users
from bench.kv.break_even import Length
from bench.kv.first_token import CACHEBLEND, FUSED, REUSE, FirstTokens, Shape, ours
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.fidelity.prompts import TextCutter
from rag_accel.sample import read_corpus, smollm2_folder

_CHUNKS = 2000

_logger = logging.getLogger("bench.kv_ttft")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        shape: of the model of random weights.
        texts: of a prompt.
        tokens: of each text.
        turns: of the model of random weights.
        kvboost_turns: of kvboost beside ours.
        auto_texts: of a prompt that may be computed whole.
        auto_tokens: of all texts of such a prompt, one measurement each.
        auto_turns: of the longest of them.
        users: who ask at once.
        user_tokens: of each text of their prompts.
        user_turns: questions of each of them.
        swap_tokens: of each text of a chain or query engine.
        swap_turns: of each of them.
    """

    shape: Shape = field(default_factory=Shape)
    texts: int = 10
    tokens: int = 512
    turns: int = 9
    kvboost_turns: int = 7
    auto_texts: int = 4
    auto_tokens: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    auto_turns: int = 9
    users: int = 8
    user_tokens: int = 128
    user_turns: int = 5
    swap_tokens: int = 490
    swap_turns: int = 7


QUICK = Sizes(
    turns=3,
    kvboost_turns=1,
    auto_tokens=(128, 256, 512, 1024),
    auto_turns=3,
    user_turns=1,
    swap_turns=1,
)
FULL = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """A checkpoint's folder and the texts that prompts are made of; tests give small ones."""

    folder: str
    texts: Sequence[str]


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or _real_material()
    tokenizer = _tokenizer(given.folder)
    model = chosen.shape.model(len(tokenizer))
    random = _random_weights(chosen, given, model, tokenizer)
    lengths = _lengths(chosen, given, model, tokenizer)
    swapped = _swapped(chosen, given, tokenizer)
    rows: list[Row] = [row for one in (random, *lengths, *swapped) for row in one.rows()]
    rows += _users(chosen, given, model, tokenizer)
    ratios = {**_ratios(random, swapped), **_ratios_of_lengths(lengths)}
    beside = _kvboost(chosen, given, model, tokenizer)
    rows += beside.rows
    if beside.ratio is not None:
        ratios["reuse_vs_kvboost"] = beside.ratio
    return SuiteResult("kv_ttft", tuple(rows), ratios, sizes=sizes_of(chosen))


def _ratios(random: FirstTokens, swapped: Sequence[FirstTokens]) -> dict[str, float]:
    return {
        "reuse_vs_full": random.gain(ours(REUSE)),
        "fused15_vs_full": random.gain(ours(FUSED)),
        "fused15_vs_cacheblend15": random.ratio(CACHEBLEND, ours(FUSED)),
        "cold_fused_vs_full": random.gain(ours(FUSED, is_cold=True)),
        "swap_in_ttft": min(one.gain(ours(FUSED)) for one in swapped),
    }


def _ratios_of_lengths(lengths: Sequence[Length]) -> dict[str, float]:
    return {"auto_never_slower": min(one.gain for one in lengths)} if lengths else {}


def _lengths(sizes: Sizes, material: Material, model: Any, tokenizer: Any) -> list[Length]:
    with little_garbage():
        found = break_even.measure(
            *(model, tokenizer, material.texts),
            *(sizes.auto_texts, sizes.auto_tokens, sizes.auto_turns),
        )
    _logger.info("%s", {one.workload: round(one.gain, 3) for one in found})
    return found


def _users(sizes: Sizes, material: Material, model: Any, tokenizer: Any) -> list[Row]:
    with little_garbage():
        return users.measure(
            *(model, tokenizer, material.texts),
            *(sizes.users, sizes.texts, sizes.user_tokens, sizes.user_turns),
        )


def _kvboost(sizes: Sizes, material: Material, model: Any, tokenizer: Any) -> kvboost.Found:
    with little_garbage():
        found = kvboost.measure(
            *(model, tokenizer, material.texts, sizes.texts, sizes.tokens, sizes.kvboost_turns)
        )
    _logger.info("%s", found)
    return found


def _random_weights(sizes: Sizes, material: Material, model: Any, tokenizer: Any) -> FirstTokens:
    with little_garbage():
        found = first_token.measure(
            *(model, tokenizer, material.texts, sizes.texts, sizes.tokens, sizes.turns)
        )
    _logger.info("%s", {name: round(found.gain(name), 2) for name in found.found})
    return found


def _swapped(sizes: Sizes, material: Material, tokenizer: Any) -> list[FirstTokens]:
    cutter = TextCutter(tokenizer, material.texts)
    texts = [cutter.text(sizes.swap_tokens) for _ in range(sizes.texts)]
    tokens = sizes.texts * sizes.swap_tokens
    found: list[FirstTokens] = []
    for name, arms_of in (
        ("LangChain chain", swap_in.langchain_arms),
        ("LlamaIndex query engine", swap_in.llama_index_arms),
    ):
        with little_garbage(), bench_accelerator() as accelerator:
            arms = arms_of(material.folder, texts, accelerator)
            found.append(swap_in.measure(f"{name}, {tokens} tokens", arms, sizes.swap_turns))
        _logger.info("%s: %s", name, {arm: round(found[-1].gain(arm), 2) for arm in arms})
    return found


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _real_material() -> Material:
    return Material(str(smollm2_folder()), [one.text for one in read_corpus(_CHUNKS).documents])
