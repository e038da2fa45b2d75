"""The findings of a run of the demo, in five plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_accel.system.processor import usable_cores
from rag_accel_demo.levels import EngineStep, Level, mean_batch
from rag_accel_demo.local_model import LocalLevel
from rag_accel_demo.report import TIE, Comparison

#: Two runs of the same arm differ by as much: a ratio within it is no difference.
NOISE = 0.05
#: A mean batch from which on requests shared the work.
SHARED = 1.05


@dataclass(frozen=True, slots=True)
class Findings:
    """Whatever a run of the demo measured.

    Args:
        run: its name, quick or full.
        machine: processor, cores and date.
        comparison: of the chain's answers, all levels together.
        levels: of the chain.
        local: levels of the local model, none where there is no model.
        no_model: why there is none.
        compiled: how the embedding engine runs its model, in words of ``explain``.
    """

    run: str
    machine: str
    comparison: Comparison
    levels: Sequence[Level]
    local: Sequence[LocalLevel]
    no_model: str = ""
    compiled: str = ""

    def lines(self) -> tuple[str, ...]:
        """Return the five lines: answers, chain, local model, causes, limits."""
        return (
            self._answers(),
            self._chain(),
            self._local_model(),
            self._causes(),
            self._limits(),
        )

    @property
    def different(self) -> tuple[str, ...]:
        """Return the questions to which the arms gave different answers."""
        local = (question for level in self.local for question in level.different)
        return (*self.comparison.different, *local)

    def _answers(self) -> str:
        local = sum(len(level.questions) for level in self.local)
        same = local - sum(len(level.different) for level in self.local)
        identical, total = self.comparison.identical + same, self.comparison.total + local
        by = f", {same} of {local} by the local model" if local else ""
        # A longer run has several, of which the chain's levels show the smaller gain.
        how = "quick: one run of each arm a level" if self.run == "quick" else self.run
        text = f"{identical:,} of {total:,} answers identical{by} ({how}, on {self.machine})."
        if self.comparison.ties:
            text += f" {self.comparison.ties} cite other documents, whose scores tie within {TIE}."
        if self.different:
            text += f" Different: {len(self.different)}, such as {self.different[0]!r}."
        return text

    def _chain(self) -> str:
        many = [level for level in self.levels if level.users > 1] or self.levels
        parts = [
            f"{_users(level.users)}: {level.plain.throughput_rps:.0f} -> "
            f"{level.accelerated.throughput_rps:.0f} answers/s"
            f" ({_times(level.gain)}, p99 {level.plain.percentile_ms(0.99):.0f} -> "
            f"{level.accelerated.percentile_ms(0.99):.0f} ms)"
            for level in many
        ]
        return f"{'; '.join(parts)}."

    def _local_model(self) -> str:
        if not self.local:
            return f"The local model: not measured. {self.no_model}"
        level = self.local[-1]
        return (
            f"The local model, {_users(level.users)}: {level.plain.tokens_per_s:.1f} -> "
            f"{level.accelerated.tokens_per_s:.1f} tokens/s ({_times(level.gain)}), first text "
            f"after {level.plain.mean_first_s:.2f} -> {level.accelerated.mean_first_s:.2f} s."
        )

    def _causes(self) -> str:
        causes: list[tuple[bool, str]] = []
        for engine, items, levels in (
            ("embedding", "questions", self.levels),
            ("llm", "answers of the local model", self.local),
        ):
            if levels:
                faster = any(level.gain > 1 + NOISE for level in levels)
                busiest = levels[-1]
                causes.append((faster, _batch(engine, items, busiest.users, busiest.steps)))
                if engine == "embedding" and self.compiled:
                    causes.append((faster, f"the embedding model is {self.compiled}"))
        why = [cause for faster, cause in causes if faster]
        measured = why or [cause for _, cause in causes]
        return f"{'Why' if why else 'Not faster here. Measured'}: {'; '.join(measured)}."

    def _limits(self) -> str:
        alone = [
            (level.gain, f"{level.gain:.2f} x for {name}")
            for name, levels in (("the chain", self.levels), ("the local model", self.local))
            for level in levels
            if level.users == 1
        ]
        helped = [gain > 1 + NOISE for gain, _ in alone]
        head = "helps least" if alone and all(helped) else "does not help"
        if any(helped) and not all(helped):
            head = "helps little or not at all"
        parts = ["a chain that only waits for a remote model (not measured here)"]
        if alone:
            ratios = ", ".join(text for _, text in alone)
            parts.insert(0, f"one user at a time, {ratios}, as no step is shared")
        text = f"Where it {head}: {'; '.join(parts)}."
        slower = [_users(level.users) for level in self.levels if level.gain < 1 - NOISE]
        slower += [
            f"{_users(level.users)} of the local model"
            for level in self.local
            if level.gain < 1 - NOISE
        ]
        if slower:
            text += f" Slower here: {', '.join(slower)}."
        if usable_cores() == 1:
            text += " This machine has one usable core: engines and callers take turns on it."
        return text


def compiled_phrase(explained: str) -> str:
    """Return how the embedding model runs, in the words of ``explain``; empty if it is plain."""
    for line in explained.splitlines():
        _, found, rest = line.partition("compiled by ")
        if found:
            return f"{found}{rest}".rstrip(".")
    return ""


def _batch(engine: str, items: str, users: int, steps: Sequence[EngineStep]) -> str:
    mean = mean_batch([step for step in steps if step.engine.startswith(engine)])
    if mean < SHARED:
        return f"no {engine} step worked on several {items} with {_users(users)}"
    return (
        f"a step of the {engine} engine worked on {mean:.1f} {items} at once with {_users(users)}"
    )


def _users(count: int) -> str:
    return f"{count} user{'s' * (count > 1)}"


def _times(ratio: float) -> str:
    slower = ", slower" if ratio < 1 - NOISE else ""
    return f"{ratio:.2f} x{slower}"
