"""What children of tests load: engines of plain functions, and models that fail in several ways."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from fake_members import plain_vectors

from rag_accel.engines import CallableEmbeddingEngine


class OwnError(Exception):
    """An error that can be sent from one process to another."""


class UnsendableError(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def plain() -> Any:
    """Return an engine that does what a text says, and else computes plain vectors."""
    return CallableEmbeddingEngine(_embedded)


def shifted() -> Any:
    """Return an engine of other vectors."""
    return CallableEmbeddingEngine(lambda texts: plain_vectors(texts, "query") + 1.0)


def talkative() -> Any:
    """Return an engine of plain vectors that prints."""
    print("loading " * 100)
    return CallableEmbeddingEngine(_printing)


def broken() -> Any:
    """Load nothing."""
    raise OSError("no such model")


def hanging() -> Any:
    """Load for ever."""
    time.sleep(600)


def dying() -> Any:
    """End while it loads."""
    sys.stderr.write("out of cheese\n")
    sys.stderr.flush()
    os._exit(7)


def _printing(texts: list[str]) -> Any:
    print("embedding " * 100_000)
    return plain_vectors(texts, "query")


def _embedded(texts: list[str]) -> Any:
    for text in texts:
        match text:
            case "raise":
                raise OwnError("as told")
            case "raise another":
                raise UnsendableError("bread", "butter")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(600)
            case "cpus":
                return [[float(cpu), 0.0] for cpu in sorted(os.sched_getaffinity(0))][:1]
            case _:
                pass
    return plain_vectors(texts, "query")
