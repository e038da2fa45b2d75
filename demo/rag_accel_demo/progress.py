"""The progress of the demo: one bar over all phases, named by the phase."""

from __future__ import annotations

import sys
from typing import Any, Self, TextIO

MISSING_EXTRA = "the demo needs its extra: pip install 'rag-accel[demo]'"
#: An answer of a local model takes as long as some of these: an answer of the chain that embeds a
#: question, or a chunk that is embedded.
LOCAL_ANSWER = 40


class PhaseBar:
    """A bar on standard error, and lines beside it.

    Args:
        shown: whether the bar is drawn.
        lines: where lines go; standard output by default.

    Raises:
        ImportError: if the extra ``rag-accel[demo]`` is missing.
    """

    def __init__(self, shown: bool, lines: TextIO | None = None) -> None:
        try:
            from tqdm import tqdm
        except ImportError as error:
            raise ImportError(MISSING_EXTRA) from error
        self._lines = lines or sys.stdout
        self._bar: Any = tqdm(
            total=0,
            disable=not shown,
            leave=False,
            bar_format="{desc:<32}{percentage:3.0f}% |{bar:40}| {elapsed}",
        )

    def expect(self, units: int) -> None:
        """Add work to what the whole bar stands for."""
        self._bar.total += units
        self._bar.refresh()

    def begin(self, phase: str) -> None:
        """Name the phase that runs from now on."""
        self._bar.set_description_str(phase)

    def add(self, units: int) -> None:
        """Count work that is done."""
        self._bar.update(units)

    def write(self, text: str) -> None:
        """Print lines above the bar."""
        self._bar.clear()
        print(text, file=self._lines, flush=True)
        self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
