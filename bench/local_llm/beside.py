"""Answers while another thread of the process is busy in Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.local_llm.answers import Arm
from bench.local_llm.prompts import Prompts
from bench.measure import median, rotate
from bench.results import Row, median_row

BUSY = "1 user, a busy thread"


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
            rows.append(_ms_per_token(name, BUSY, arm, prompts, lengths))
    return rows


def _ms_per_token(
    name: str, workload: str, arm: Arm, prompts: Prompts, lengths: Sequence[int]
) -> Row:
    load = arm(prompts.asked(lengths))
    tokens = sum(map(prompts.count, load.answers))
    return median_row(name, workload, "ms_per_token", [1000 * load.wall_s / max(1, tokens)])


def compare_beside(
    name: str,
    other: str,
    arms: Mapping[str, Arm],
    prompts: Prompts,
    lengths: Sequence[int],
    turns: int,
) -> tuple[list[Row], float]:
    """Return rows and an arm's tokens a second / another's, both beside such a thread.

    Args:
        name: of the arm.
        other: of the other one.
        arms: by name.
        prompts: of which each turn has others.
        lengths: of one turn's prompts.
        turns: beside the first, in which there is no such thread and which does not count.
    """
    first, *asked = [prompts.asked(lengths) for _ in range(turns + 1)]
    for arm in arms.values():
        arm(first)

    def rate(arm: Arm, turn: int) -> float:
        load = arm(asked[turn])
        return sum(map(prompts.count, load.answers)) / load.wall_s

    with busy_thread():
        found = rotate(
            {each: lambda turn, arm=arm: rate(arm, turn) for each, arm in arms.items()}, turns
        )
    rows = [median_row(each, BUSY, "tokens_per_s", rates) for each, rates in found.items()]
    pairs = zip(found[name], found[other], strict=True)
    return rows, median([ours / theirs for ours, theirs in pairs])
