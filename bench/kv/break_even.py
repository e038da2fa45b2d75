"""The time to the first token of prompts of several lengths, reused as the engine thinks best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.arms import bench_accelerator
from bench.kv.first_token import EXACT, FUSED, METRIC, First, Turns, our_arm, ours
from bench.measure import Pairs, median, ratios, rotate
from bench.paired import in_ms
from bench.results import Row, median_row, row_of
from rag_accel.fidelity.prompts import TextCutter

#: Turns that do not count: texts are encoded, and the engine learns what a row takes.
WARM_UP = 3
#: Shorter prompts have more turns, at most so many times those of the longest.
MOST_TURNS = 4
ARMS = (ours(EXACT), ours(FUSED))


@dataclass(frozen=True, slots=True)
class Length:
    """What both arms took for prompts of one length.

    Args:
        workload: which prompts.
        seconds: exact and fused, turn by turn.
    """

    workload: str
    seconds: Pairs[float]

    @property
    def gain(self) -> float:
        """Return exact's time / fused's: the median over turns."""
        return median(self._gains)

    def rows(self) -> list[Row]:
        """Return the times of both arms, and the gain of each turn."""
        both = zip(ARMS, (self.seconds.plain, self.seconds.other), strict=True)
        times = [
            row_of(name, self.workload, METRIC, [in_ms(one) for one in each]) for name, each in both
        ]
        gains = median_row(f"{ARMS[0]} / {ARMS[1]}", self.workload, "ratio", self._gains)
        return [*times, gains]

    @property
    def _gains(self) -> list[float]:
        return ratios(Pairs(self.seconds.other, self.seconds.plain))


def measure(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    count: int,
    lengths: Sequence[int],
    turns: int,
) -> list[Length]:
    """Ask exact and fused in turn, of texts that were seen before; everything is on one thread.

    Args:
        model: of transformers.
        tokenizer: its own.
        texts: that prompts are made of.
        count: of a prompt's texts.
        lengths: tokens of all texts of a prompt, one measurement each.
        turns: of the longest.
    """
    with bench_accelerator(threads=1) as accelerator:
        arms = [our_arm(model, tokenizer, way, accelerator) for way in (EXACT, FUSED)]
        found: list[Length] = []
        for tokens in lengths:
            prompts = Turns(TextCutter(tokenizer, texts), count, tokens // count)
            times = min(MOST_TURNS, max(lengths) // tokens) * turns
            asked = {
                name: lambda turn, arm=arm, prompts=prompts: arm(prompts.again(turn))
                for name, arm in zip(ARMS, arms, strict=True)
            }
            each = rotate(asked, WARM_UP + times)
            exact, fused = (_seconds(each[name][WARM_UP:]) for name in ARMS)
            found.append(Length(f"{count} texts, {tokens} tokens", Pairs(exact, fused)))
    return found


def _seconds(firsts: Sequence[First]) -> tuple[float, ...]:
    return tuple(one.seconds for one in firsts)
