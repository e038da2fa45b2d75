"""The verbs of an integration whose framework is a version not understood: all runs plainly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Never, TypeVar

from rag_accel.accelerator import PREPARE_S, Accelerator, default_accelerator
from rag_accel.explained_text import ExplainedText
from rag_accel.interception.arguments import refuse_keywords
from rag_accel.interception.coverage import Coverage, Meter

T = TypeVar("T")


def accelerate(
    obj: T,
    *,
    accelerator: Any = None,
    options: Any = None,
    interactive: bool = False,
    **unknown: Never,
) -> T:
    """Return the object as it is. Raises TypeError on another argument."""
    refuse_keywords(unknown)
    return obj


@contextmanager
def activate(accelerator: Accelerator | None = None) -> Iterator[Accelerator]:
    """Schedule nothing."""
    yield accelerator or default_accelerator()


def coverage(program: Any = None) -> Coverage:
    """Return a view that counts nothing: the calls of this framework's are not known."""
    return Coverage(Meter(), nullcontext)


def prepare(program: Any, *, timeout_s: float = PREPARE_S) -> bool:
    """Return True: nothing of a program's is made here."""
    return True


def explain(obj: Any) -> ExplainedText:
    """Say that the object runs plainly."""
    return ExplainedText(
        f"{type(obj).__name__} runs plainly: this version of its framework is not understood"
    )
