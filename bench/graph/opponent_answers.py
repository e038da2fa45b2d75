"""Answers by other ways to keep states of paths, against those of the same prompts computed anew.

Each way has seen every second path of a prompt before, in the reverse order, or, where it keeps
beginnings alone, all but the last path. A radix cache and texts of paths are compared with flat
text, DepCache with its own tree in pre-order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.arms import bench_accelerator
from bench.baselines.depcache import DepCache
from bench.graph.first_token import Chats, Retrieved
from bench.graph.opponents import CHUNKS, DEPCACHE, RADIX, UNMOVED, preorder_of
from bench.graph.tree_answers import TOKENS, Answer, ask
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel_demo.load import torch_threads

_ROOM = 1 << 28

Ask = Callable[[Retrieved], Answer]


def equal_answers(model: Any, tokenizer: Any, asked: Sequence[Retrieved]) -> dict[str, int]:
    """Return of each way how many of its greedy answers are those of prompts computed anew.

    All are computed by the runner on torch, which is ready sooner.

    Args:
        model: of transformers, in float32: rounding then leaves the tokens alone.
        tokenizer: its own.
        asked: the paths of each prompt, none of them in two.
    """
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer, accelerator, runner="torch")
        plain = _chat(chats, kv_reuse="exact", prefix_lanes=0)
        flat = [plain(found) for found in asked]
        radix = _chat(chats, kv_reuse="exact")
        texts = _chat(chats, kv_reuse="full", reuse_always=True)
        equal = {
            RADIX: _equal([_after(radix, found, found.paths[:-1]) for found in asked], flat),
            CHUNKS: _equal([_after(texts, found, _halved(found)) for found in asked], flat),
        }
        runner = load(model, tokenizer, options=LocalOptions(runner="torch")).runner
        anew = [_depcache(runner, tokenizer, True)(found) for found in asked]
        for name, re_encodes in ((DEPCACHE, True), (UNMOVED, False)):
            kept = [
                _after(_depcache(runner, tokenizer, re_encodes), found, _halved(found))
                for found in asked
            ]
            equal[name] = _equal(kept, anew)
    return equal


def _halved(found: Retrieved) -> tuple[tuple[str, ...], ...]:
    return found.paths[::-2]


def _after(ask_it: Ask, found: Retrieved, before: Sequence[tuple[str, ...]]) -> Answer:
    """Return the answer to a prompt after one of other paths."""
    ask_it(Retrieved(tuple(before)))
    return ask_it(found)


def _equal(kept: Sequence[Answer], anew: Sequence[Answer]) -> int:
    return sum(one.tokens == other.tokens for one, other in zip(kept, anew, strict=True))


def _chat(chats: Chats, **options: Any) -> Ask:
    chat = chats.chat(max_tokens=TOKENS, **options)
    return lambda found: ask(chat, found)


def _depcache(runner: Any, tokenizer: Any, re_encodes: bool) -> Ask:
    """Return an empty DepCache that answers."""
    cache, prompting = DepCache(runner, _ROOM, re_encodes=re_encodes), Prompting(tokenizer)

    def answer(found: Retrieved) -> Answer:
        prompt = preorder_of(prompting, found)
        with torch_threads(1):
            given = cache.answer(prompt, TOKENS)
        logprobs = given.logits.log_softmax(-1)
        return Answer(
            tuple(tokenizer.convert_ids_to_tokens(given.tokens)),
            tuple(float(row[token]) for row, token in zip(logprobs, given.tokens, strict=True)),
            given.reused_tokens / len(prompt.tree.ids),
        )

    return answer
