"""Figures that stand beside the ratios: a busy thread, and continuous batching of transformers."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.local_llm.answers import Arm
from bench.local_llm.chains import PROMPT, PlainModel
from bench.local_llm.prompts import Asked, Prompts
from bench.results import Row, median_row
from langchain_rag_accel.demo.load import Load, torch_threads

GENERATE_BATCH = "transformers generate_batch"
_logger = logging.getLogger("bench.serving")


@contextmanager
def busy_thread() -> Iterator[None]:
    """Keep one other thread of this process in Python code inside the block."""
    ended = threading.Event()

    def count() -> None:
        number = 0
        while not ended.is_set():
            number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def beside_busy_thread(arms: dict[str, Arm], prompts: Prompts, lengths: Sequence[int]) -> list[Row]:
    """Return ms a token of each arm, prompt included, without such a thread and beside one."""
    rows: list[Row] = []
    for name, arm in arms.items():
        rows.append(_ms_per_token(name, "1 user", arm, prompts, lengths))
        with busy_thread():
            rows.append(_ms_per_token(name, "1 user, a busy thread", arm, prompts, lengths))
    return rows


def _ms_per_token(
    name: str, workload: str, arm: Arm, prompts: Prompts, lengths: Sequence[int]
) -> Row:
    load = arm(prompts.asked(lengths))
    tokens = sum(map(prompts.count, load.answers))
    return median_row(name, workload, "ms_per_token", [1000 * load.wall_s / max(1, tokens)])


def continuous_batching(model: PlainModel, tokens: int, threads: int) -> Arm | None:
    """Return the arm of transformers' own continuous batching; None where it cannot run here."""
    made: Any = model.pipeline.pipeline.model
    generate: Callable[..., Any] | None = getattr(made, "generate_batch", None)
    if generate is None:
        return None
    config = importlib.import_module("transformers").GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=made.generation_config.eos_token_id,
        pad_token_id=model.tokenizer.pad_token_id,
    )

    def answer(asked: Sequence[Asked]) -> Load:
        ids = [
            model.tokenizer(model.rendered(PROMPT.invoke(one)), add_special_tokens=False)[
                "input_ids"
            ]
            for one in asked
        ]
        with torch_threads(threads):
            started = time.perf_counter()
            found = generate(ids, generation_config=config, progress_bar=False)
            wall_s = time.perf_counter() - started
        made_ids = [
            one.generated_tokens for _, one in sorted(found.items(), key=lambda item: item[0])
        ]
        answers = tuple(model.tokenizer.decode(one, skip_special_tokens=True) for one in made_ids)
        return Load(answers, (wall_s,) * len(answers), wall_s)

    return answer
