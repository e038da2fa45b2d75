"""The interface of what reuses parts of prompts: retrieved texts, or trees of relation paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from rag_accel.engines.llm.local.batching.sequence import TokenSequence


class PromptReuse(Protocol):
    """The reused parts of all prompts of an engine. Used by its worker only.

    Parts that are not stored are encoded by sequences of their own, before their prompt begins.
    """

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the stored states."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of the store; from any thread."""
        ...

    @property
    def is_looking(self) -> bool:
        """Tell whether any kept state is looked for."""
        ...

    def begin(self, sequence: TokenSequence, prompt: Any, /) -> Iterator[TokenSequence]:
        """Take a prompt; yield the sequences that may begin now: encodings, or itself."""
        ...

    def pays(
        self, prompt: Any, namespace: str, seconds: Callable[[int], float], /, *, is_asked: bool
    ) -> bool:
        """Tell whether a prompt is to be reused rather than computed as a whole.

        Args:
            prompt: with its parts.
            namespace: its tenant.
            seconds: returns how long it takes to compute so many rows.
            is_asked: whether it is to be answered, and not only computed ahead.
        """
        ...

    def looked(self, timeout_s: float) -> Iterator[TokenSequence]:
        """Yield the sequences to compute after loads have ended; wait at most so long for one."""
        ...

    def is_encoding(self, sequence: TokenSequence) -> bool:
        """Tell whether a sequence encodes a part."""
        ...

    def encoded(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Keep what a sequence has encoded; yield what may begin now."""
        ...

    def load(self, sequence: TokenSequence) -> None:
        """Put stored states into the lane that a sequence was given."""
        ...

    def advanced(self, sequence: TokenSequence) -> None:
        """Note that rows of a sequence were computed."""
        ...

    def forget(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Drop a prompt; yield the encoding sequences that nothing waits for any more."""
        ...

    def readers(self, sequence: TokenSequence) -> list[TokenSequence]:
        """Return the prompts that wait for what a sequence encodes, directly or not."""
        ...

    def forget_texts(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace; from any thread."""
        ...

    def close(self) -> None:
        """Forget the states in memory."""
        ...
