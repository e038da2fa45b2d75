"""Requests a second of users who ask at once, each about known texts in an order of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.arms import bench_accelerator
from bench.kv.first_token import WAYS, Turns, our_arm, ours
from bench.measure import rotate
from bench.results import Row, median_row
from rag_accel.fidelity.prompts import TextCutter


def measure(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    users: int,
    count: int,
    tokens: int,
    turns: int,
) -> list[Row]:
    """Let all users ask one question a turn, of each way of reuse in turn, on one thread.

    Args:
        model: of transformers.
        tokenizer: its own.
        texts: that prompts are made of.
        users: who ask at once.
        count: of a prompt's texts.
        tokens: of each text.
        turns: beside the first, in which texts are encoded.
    """
    prompts = Turns(TextCutter(tokenizer, texts), count, tokens)
    with bench_accelerator(threads=1) as accelerator, ThreadPoolExecutor(users) as pool:

        def rate(way: str) -> Callable[[int], float]:
            arm = our_arm(model, tokenizer, way, accelerator)

            def asked(turn: int) -> float:
                each = [prompts.again(turn * users + user) for user in range(users)]
                started = time.perf_counter()
                list(pool.map(arm, each))
                return users / (time.perf_counter() - started)

            return asked

        found = rotate({ours(way): rate(way) for way in WAYS}, turns + 1)
    workload = f"{users} users, {count} texts of {tokens} tokens"
    return [median_row(name, workload, "requests_per_s", each[1:]) for name, each in found.items()]
