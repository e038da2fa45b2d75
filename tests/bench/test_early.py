"""The suite on early work: a server that keeps what it computed, and answers that are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bench.early_server import (
    ASKS_LINES,
    BLOCK,
    LINE_TOKENS,
    NUM_LINES,
    TOKENS,
    PromptCache,
    ScriptedPrompts,
    chained,
    pieces,
)
from bench.results import SuiteResult
from bench.suites import early

Ended = Callable[[SuiteResult], int]

TINY = early.Sizes(1, 96, 40, 0.02, 1, 2, 1, 64, 40, 1, 0.0, 2, 0.0)
WORDS = [f"w{number}" for number in range(5 * BLOCK)]


def test_blocks_are_known_by_all_before_them() -> None:
    blocks = list(chained(WORDS))
    assert len(blocks) == 5
    assert list(chained(WORDS[: 3 * BLOCK - 1])) == blocks[:2]
    other = list(chained(["other", *WORDS[1:]]))
    assert not set(other) & set(blocks)


def test_a_cache_tells_what_beginnings_have_paid_for_once() -> None:
    cache, blocks = PromptCache(), list(chained(WORDS))
    cache.keep(blocks[:1], False)
    cache.keep(blocks[:3], True)
    assert cache.known(blocks, True) == (3, 0)
    assert cache.known(blocks, False) == (3, 2)
    assert cache.known(blocks, False) == (3, 0)
    assert cache.known(list(chained(WORDS[1:])), False) == (0, 0)


async def test_what_was_computed_of_a_cancelled_prompt_is_kept() -> None:
    prompts = ScriptedPrompts()
    compute = asyncio.ensure_future(prompts._compute(WORDS, True, 0.0))
    await asyncio.sleep(0)  # its first step of the lane has begun
    compute.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compute
    assert await prompts._compute(WORDS, False, 0.0) == (80, 48)
    assert prompts.take_state() == {
        "prompt": 80, "early": 48, "used": 48, "computed": 80, "decoded": 0
    }  # fmt: skip
    assert prompts.take_state() == dict.fromkeys(
        ("prompt", "early", "used", "computed", "decoded"), 0
    )


def test_lists_have_lines_of_one_length() -> None:
    tokens = list(pieces(f"q {ASKS_LINES}"))
    lines = "".join(tokens).split("\n")
    assert len(set(lines)) == NUM_LINES
    assert {len(line.split()) for line in lines} == {LINE_TOKENS}
    assert len(tokens) == NUM_LINES * LINE_TOKENS
    assert len(list(pieces("q"))) == TOKENS


@pytest.fixture
def without_graders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "_graders", lambda *_: ([], {}))
    monkeypatch.setattr(early, "real_material", lambda *_: None)


@pytest.mark.processes
@pytest.mark.usefixtures("without_graders")
def test_other_answers_fail_the_suite(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    searched = early.Arm._search

    def changed(self: Any, query: str, k: int) -> list[str]:
        is_early = "PARTIAL_PREFILLING" in self._accelerator.explain(self._graph)
        return [*searched(self, query, k), *["more"] * is_early]

    monkeypatch.setattr(early.Arm, "_search", changed)
    found = early.run(True, TINY)
    assert [one.partition(":")[0] for one in found.wrong] == [
        "early on, 1 user",
        "early on, 2 users at once",
    ]
    assert ended(found) == 1
