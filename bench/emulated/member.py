"""A member with a published line: its vectors are real, the time it takes is modelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from rag_accel.engines.devices.members import guess_tokens
from rag_accel.engines.embedding.checked_vectors import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.errors import ConfigError, EngineOutputError

EmbedTexts = Callable[[Sequence[str]], Any]

_LABEL = "emulated"
_SHOWN = 60  # characters of a text in an error


class EmulatedMember:
    """A device that is not here: a step of ``n`` texts takes ``fixed_s + n * seconds_per_text``.

    These are the lines that WindVE (section 4.2.2, Eq. 12) fits and prints. The member sleeps
    through that time and then answers with vectors that were computed before, so that a group with
    it can be compared with others. Its name says ``emulated`` wherever it is reported.

    Args:
        vectors: ``[dim]`` of each text that will come, those of
            ``rag_accel.engines.devices.fidelity.probe_texts()`` included; or a function from texts
            to ``[len(texts), dim]``, which should be quick: its time comes on top.
        seconds_per_text: seconds that each text adds to a step.
        fixed_s: seconds of a step without texts.
        name: of the member; ``emulated-`` is put before a name that does not say so.
        max_texts: most texts of one call.
        max_tokens: about the most tokens of one call.
        tokens_per_text: a text of so many tokens takes ``seconds_per_text``, a longer one
            proportionally more; None if every text takes the same.
        estimate: tokens of a text; by default a guess from its length.
        sleep: waits so many seconds.

    Raises:
        ConfigError: a negative time, no texts of a call, or vectors of different dimensions.
    """

    max_threads = 0

    def __init__(
        self,
        vectors: Mapping[str, Sequence[float]] | EmbedTexts,
        seconds_per_text: float,
        fixed_s: float,
        name: str = _LABEL,
        max_texts: int = 64,
        max_tokens: int = 1 << 20,
        *,
        tokens_per_text: float | None = None,
        estimate: Callable[[str], int] = guess_tokens,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        _check(seconds_per_text, fixed_s, max_texts, max_tokens, tokens_per_text)
        self.name = name if _LABEL in name.lower() else f"{_LABEL}-{name}"
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self._vectors = vectors if callable(vectors) else _VectorTable(vectors)
        self._seconds_per_text = seconds_per_text
        self._fixed_s = fixed_s
        self._tokens_per_text = tokens_per_text
        self._estimate = estimate
        self._sleep = sleep

    def seconds(self, texts: Sequence[str]) -> float:
        """Return how long a step over these texts takes."""
        units = float(len(texts))
        if self._tokens_per_text is not None:
            units = sum(map(self.estimate, texts)) / self._tokens_per_text
        return self._fixed_s + units * self._seconds_per_text

    def embed(self, texts: Sequence[str], role: Role, threads: int) -> Any:
        """Sleep as long as the device would compute, and return the vectors of the table.

        Raises:
            EngineOutputError: a text is not in the table.
        """
        found = self._vectors(texts)
        self._sleep(self.seconds(texts))
        return found

    def estimate(self, text: str) -> int:
        """Return the tokens that a text counts for, at least 1."""
        return max(1, self._estimate(text))

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class _VectorTable:
    def __init__(self, vectors: Mapping[str, Sequence[float]]) -> None:
        self._rows = {text: row for row, text in enumerate(vectors)}
        try:
            self._table: Vector = np.array(list(vectors.values()), dtype=np.float32)
        except ValueError:
            self._table = np.empty(0, dtype=np.float32)
        if self._table.ndim != 2:
            raise ConfigError(
                "vectors of an emulated member make no table",
                where="EmulatedMember(vectors=)",
                found=f"{len(self._rows)} texts, vectors of different dimensions or none",
                valid="a vector of one dimension for each text",
            )

    def __call__(self, texts: Sequence[str]) -> Vector:
        try:
            return self._table[[self._rows[text] for text in texts]]
        except KeyError as error:
            raise EngineOutputError(
                "an emulated member has no vector of a text",
                found=repr(str(error.args[0])[:_SHOWN]),
                valid=f"one of the {len(self._rows)} texts of its table",
                hint="compute its vector before, and those of fidelity.probe_texts()",
            ) from None


def _check(
    seconds_per_text: float,
    fixed_s: float,
    max_texts: int,
    max_tokens: int,
    tokens_per_text: float | None,
) -> None:
    problems = [
        ("seconds_per_text", seconds_per_text, seconds_per_text >= 0, "0 or more"),
        ("fixed_s", fixed_s, fixed_s >= 0, "0 or more"),
        ("max_texts", max_texts, max_texts >= 1, "1 or more"),
        ("max_tokens", max_tokens, max_tokens >= 1, "1 or more"),
    ]
    if tokens_per_text is not None:
        problems.append(("tokens_per_text", tokens_per_text, tokens_per_text > 0, "above 0"))
    for where, found, is_valid, valid in problems:
        if not (isfinite(found) and is_valid):
            raise ConfigError(
                "option out of range",
                where=f"EmulatedMember({where}=)",
                found=repr(found),
                valid=valid,
            )
