"""Prompts out of real documents, of a wanted number of tokens; no two begin alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

SYSTEM = "{number}. You explain passages of a manual to people who have never read it."
HUMAN = "{context}\n\nExplain all of this in detail, in many full sentences."

#: Tokens that a chat template puts around a system's and a user's message, about.
TEMPLATE_TOKENS = 12

Asked = dict[str, str]
"""The values of a prompt's template."""


class Prompts:
    """Prompts that no engine can have seen.

    Each has a number of its own at its very beginning, so nothing computed for one is of use to
    another, and its passages begin where those of the one before ended.

    Args:
        tokenizer: the model's, of transformers.
        texts: documents; read in a circle.
    """

    def __init__(self, tokenizer: Any, texts: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._numbers = itertools.count(1)
        self._tokens = itertools.cycle(
            [id for text in texts for id in self._ids(f"{text}\n\n")],
        )

    def text(self, tokens: int) -> str:
        """Return the next passages, of about so many tokens."""
        return self._tokenizer.decode(list(itertools.islice(self._tokens, tokens)))

    def number(self) -> str:
        """Return a number that no prompt has had."""
        return str(next(self._numbers))

    def asked(self, sizes: Sequence[int]) -> list[Asked]:
        """Return the values of prompts of about so many tokens each, template and all."""
        return [
            {"number": self.number(), "context": self.text(max(1, size - self._overhead))}
            for size in sizes
        ]

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self._ids(text))

    def first_id(self, text: str) -> int | None:
        """Return a text's first token; None of an empty one."""
        return next(iter(self._ids(text)), None)

    def equal_share(self, text: str, reference: str) -> float:
        """Return the share of tokens before the first in which two texts differ, 0 to 1."""
        ids, wanted = self._ids(text), self._ids(reference)
        least = min(len(ids), len(wanted))
        equal = next((at for at in range(least) if ids[at] != wanted[at]), least)
        return equal / max(1, len(ids), len(wanted))

    @property
    def _overhead(self) -> int:
        """Return about how many tokens a prompt has besides its passages."""
        return self.count(SYSTEM) + self.count(HUMAN) + TEMPLATE_TOKENS

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def spread(count: int, least: int, most: int) -> list[int]:
    """Return sizes spread evenly from the least to the most."""
    step = (most - least) / max(1, count - 1)
    return [round(least + at * step) for at in range(count)]
