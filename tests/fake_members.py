"""A member of a device group that computes nothing real and follows a test's script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rag_accel.testing.compute import vector_of

Vectors = Callable[[Sequence[str], str], Any]


def plain_vectors(texts: Sequence[str], role: str) -> Any:
    """Return a vector that depends on nothing but the text: ``[len(texts), dim], float32``."""
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


class FakeMember:
    """A member that waits and raises as a test says.

    Args:
        name: of the member.
        vectors: computes the vectors of texts.
        max_texts: most texts of one call.
        max_tokens: most tokens of one call.
        max_threads: as of a member on the cores; 0 for one elsewhere.

    Attributes:
        may_go: cleared, calls wait until it is set.
        is_asked: set once a call has come.
        error: raised by each call, if any.
        calls: the texts of each call.
        threads: the threads granted to each call.
        is_closed: whether ``close`` was called.
    """

    timeout_s = 30.0

    def __init__(
        self,
        name: str = "fake",
        *,
        vectors: Vectors = plain_vectors,
        max_texts: int = 64,
        max_tokens: int = 4096,
        max_threads: int = 0,
    ) -> None:
        self.name = name
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self.max_threads = max_threads
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_asked = threading.Event()
        self.error: BaseException | None = None
        self.calls: list[list[str]] = []
        self.threads: list[int] = []
        self.is_closed = False
        self._vectors = vectors

    def embed(self, texts: Sequence[str], role: str, threads: int) -> Any:
        """Return the vectors once it may."""
        self.calls.append(list(texts))
        self.threads.append(threads)
        self.is_asked.set()
        if not self.may_go.wait(self.timeout_s):
            raise AssertionError(f"member {self.name} was never let go")
        if self.error is not None:
            raise self.error
        return self._vectors(texts, role)

    def estimate(self, text: str) -> int:
        """Return one token for each word."""
        return len(text.split()) or 1

    def close(self) -> None:
        """Note it."""
        self.is_closed = True
