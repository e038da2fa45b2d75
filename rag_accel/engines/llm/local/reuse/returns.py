"""Counts of prompts with a text, which decide whether new texts are worth encoding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

#: The latest texts that are known.
MOST_TEXTS = 4096
#: Texts of late prompts that count, about.
LATE_TEXTS = 256.0
#: How often a text is expected to come back before any prompt has said so.
FIRST_GUESS = 16.0


class TextReturns:
    """The texts of late prompts by key, and how often they were in one. Used by one thread."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[bytes, int] = OrderedDict()
        self._new, self._again = 1.0, FIRST_GUESS

    def note(self, keys: Collection[bytes]) -> None:
        """Count a prompt with these texts."""
        for key in keys:
            count = self._prompts.pop(key, 0)
            self._prompts[key] = count + 1
            self._new = self._new * (1 - 1 / LATE_TEXTS) + (not count)
            self._again = self._again * (1 - 1 / LATE_TEXTS) + bool(count)
        while len(self._prompts) > MOST_TEXTS:
            self._prompts.popitem(last=False)

    def expected(self, keys: Collection[bytes]) -> float:
        """Return how often texts will come back, on average: as often as they or others have."""
        others = self._again / self._new
        return sum(max(others, self._prompts.get(key, 0)) for key in keys) / len(keys)
