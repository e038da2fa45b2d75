"""Streams of one user: the time to the first text, and the rate of what comes after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.local_llm.answers import OURS, PLAIN
from bench.local_llm.chains import Chain, Streamed, streamed
from bench.local_llm.prompts import Asked, Prompts
from bench.measure import Pairs, median, rotate
from bench.paired import in_ms
from bench.results import Row, median_row, row_of
from rag_accel_demo.load import torch_threads

METRIC = "first_text_ms"
RATE = "tokens_per_s_after_first"
_logger = logging.getLogger("bench.serving")

StreamArm = Callable[[Asked], Streamed]
"""Streams the answer to a prompt to its end."""


def plain_stream(chain: Chain, threads: int) -> StreamArm:
    """Return the arm on so many torch threads."""

    def stream(asked: Asked) -> Streamed:
        with torch_threads(threads):
            return streamed(chain.stream(asked))

    return stream


def our_stream(chain: Chain) -> StreamArm:
    """Return the arm as it is by itself: it sets its threads."""
    return lambda asked: streamed(chain.stream(asked))


@dataclass(frozen=True, slots=True)
class Streams:
    """What several arms streamed of the same prompts, turn by turn.

    Args:
        workload: how rows name it.
        found: of each arm, one stream a turn.
        prompts: counts tokens.
    """

    workload: str
    found: Mapping[str, Sequence[Streamed]]
    prompts: Prompts

    def first_text(self) -> float:
        """Return our time to the first text / plain's: the median over turns."""
        pairs = zip(self.found[OURS], self.found[PLAIN], strict=True)
        return median([ours.first_s / plain.first_s for ours, plain in pairs])

    def whole_ms(self) -> Pairs[float]:
        """Return the ms of plain's streams and of ours, to the end of each."""
        times = (tuple(in_ms(one.total_s) for one in self.found[name]) for name in (PLAIN, OURS))
        return Pairs(*times)

    def rate(self, name: str) -> float | None:
        """Return an arm's tokens a second after the first text / plain's: the median over turns.

        None where in no turn both answers had tokens after their first piece.
        """
        pairs = zip(self.found[name], self.found[PLAIN], strict=True)
        rates = [(self._per_s(ours), self._per_s(plain)) for ours, plain in pairs]
        known = [ours / plain for ours, plain in rates if ours and plain]
        return median(known) if known else None

    def rows(self) -> list[Row]:
        """Return of each arm the time to the first text, and the rate after it if there is one."""
        rows: list[Row] = []
        for name, each in self.found.items():
            times = [in_ms(one.first_s) for one in each]
            rows.append(row_of(name, self.workload, METRIC, times))
            if rates := [rate for one in each if (rate := self._per_s(one))]:
                rows.append(median_row(name, self.workload, RATE, rates))
        return rows

    def _per_s(self, one: Streamed) -> float:
        """Return tokens a second after the first piece; 0 where nothing came after it."""
        tokens = self.prompts.count(one.answer) - self.prompts.count(one.first)
        rest_s = one.total_s - one.first_s
        return tokens / rest_s if tokens > 0 and rest_s > 0 else 0.0


def compare_streams(
    workload: str,
    arms: Mapping[str, StreamArm],
    prompts: Prompts,
    lengths: Sequence[int],
    turns: int,
) -> Streams:
    """Let the arms take turns over prompts of these lengths, ``turns`` times.

    A turn before all others, which does not count, computes what the first call makes. Streams are
    read to their end: what is left of one would slow the next.
    """
    asked = prompts.asked([lengths[0], *list(lengths) * turns])
    found = rotate(
        {name: lambda turn, arm=arm: arm(asked[turn]) for name, arm in arms.items()}, len(asked)
    )
    for name, each in found.items():
        _logger.info("%s, %s: %s s", workload, name, [round(one.first_s, 3) for one in each])
    return Streams(workload, {name: each[1:] for name, each in found.items()}, prompts)
