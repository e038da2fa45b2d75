"""The first token of kvboost, a package that keeps pieces of prompts, beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.arms import bench_accelerator
from bench.baselines.peer_process import PeerProcess, interpreter
from bench.kv.first_token import METRIC, REUSE, Turns, our_arm, ours
from bench.measure import median, rotate
from bench.paired import in_ms
from bench.results import Row, median_row, row_of
from rag_accel.errors import EngineError
from rag_accel.fidelity.prompts import TextCutter
from rag_accel.kv.segments import SegmentedPrompt

ENVIRONMENT = interpreter("kvboost")
SCRIPT = Path(__file__).parents[1] / "baselines" / "kvboost_load.py"
NAME = "kvboost"
#: Its engines by their names in rows: pieces of 128 tokens, or those that it is told.
ENGINES = {f"{NAME}, by itself": "grid", f"{NAME}, told the texts": "spans"}


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured: rows, and our time / that of its faster engine; None if it is missing."""

    rows: list[Row]
    ratio: float | None


@dataclass(frozen=True, slots=True)
class _First:
    """The seconds to a first token, and the share of the prompt that was reused if it is known."""

    seconds: float
    reused: float | None = None


def measure(
    model: Any, tokenizer: Any, texts: Sequence[str], count: int, tokens: int, turns: int
) -> Found:
    """Ask in turn, each turn the same texts in another order, on one thread.

    A turn before all others, which does not count, encodes the texts.

    Args:
        model: of transformers.
        tokenizer: its own.
        texts: that prompts are made of.
        count: of a prompt's texts.
        tokens: of each text.
        turns: that count.
    """
    prompts = Turns(TextCutter(tokenizer, texts), count, tokens)
    with TemporaryDirectory() as folder:
        if ENVIRONMENT.exists():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        try:
            with PeerProcess(ENVIRONMENT, SCRIPT, folder, "1") as process:
                found = _rotated(model, tokenizer, prompts, process, turns)
        except (EngineError, FileNotFoundError) as error:
            return Found([Row(NAME, " ".join(str(error).split()), "missing", 1, None, 1)], None)
    return _found(f"{count} texts of {tokens} tokens, beside {NAME}", found)


def _rotated(
    model: Any, tokenizer: Any, prompts: Turns, process: PeerProcess, turns: int
) -> dict[str, list[_First]]:
    with bench_accelerator(threads=1) as accelerator:
        arm = our_arm(model, tokenizer, REUSE, accelerator)
        arms: dict[str, Callable[[int], _First]] = {
            ours(REUSE): lambda turn: _First(arm(prompts.again(turn)).seconds)
        }
        for name, engine in ENGINES.items():
            arms[name] = _arm(process, engine, tokenizer, prompts)
        return {name: each[1:] for name, each in rotate(arms, turns + 1).items()}


def _arm(
    process: PeerProcess, engine: str, tokenizer: Any, prompts: Turns
) -> Callable[[int], _First]:
    def first(turn: int) -> _First:
        prompt = prompts.again(turn).segmented(tokenizer)
        asked = {"engine": engine, "ids": list(prompt.ids), "spans": pieces(prompt)}
        found = process.ask(asked)
        return _First(found["seconds"], found["reused"])

    return first


def pieces(prompt: SegmentedPrompt) -> list[tuple[int, int]]:
    """Return the ranges of what stands before the texts, and of each text with what follows it.

    Without gaps, since it reuses pieces only as long as one begins where another ends. The last
    text has as many tokens after it as the others, so that it is the same piece in any place.
    """
    starts = [one.start for one in prompt.chunks]
    between = starts[1] - prompt.chunks[0].end if len(starts) > 1 else 0
    last = min(prompt.chunks[-1].end + between, len(prompt.ids) - 1)
    ends = [*starts[1:], last]
    return [(0, starts[0]), *zip(starts, ends, strict=True)]


def _found(workload: str, found: dict[str, list[_First]]) -> Found:
    rows: list[Row] = []
    for name, each in found.items():
        rows.append(row_of(name, workload, METRIC, [in_ms(one.seconds) for one in each]))
        if shares := [one.reused for one in each if one.reused is not None]:
            rows.append(median_row(name, workload, "reused_share", shares))
    faster = min(ENGINES, key=lambda name: median([one.seconds for one in found[name]]))
    pairs = zip(found[ours(REUSE)], found[faster], strict=True)
    return Found(rows, median([mine.seconds / its.seconds for mine, its in pairs]))
