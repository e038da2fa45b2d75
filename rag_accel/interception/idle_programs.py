"""A warning about a program of which nothing is accelerated, given once for an object."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.config import Options, is_enabled
from rag_accel.interception.explanation import AROUND_PARTS
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import Framework, why_not
from rag_accel.interception.option_reach import MAX_PARTS, options_of, program_parts
from rag_accel.system.classes import full_name
from rag_accel.system.weak_maps import WeakIdDict

#: The most reasons in one line.
MOST_REASONS = 3
#: What parts read whose calls may run side by side, or elsewhere than on their loop.
_GAINS = ("parallel_calls", "offload_blocking")
#: Options whose other values mean that a program is accelerated for admission.
_ADMISSION = ("deadline_s", "on_full", "max_requests")
_DEFAULT = Options()

#: Programs of a process that are looked at. A service has few; to look takes milliseconds, and one
#: that accelerates a program for each request would say the same each time.
MOST_PROGRAMS = 100

_numbers = count(1)
_named: WeakIdDict[bool] = WeakIdDict()


def reasons_in_line(reasons: Iterable[tuple[str, str]]) -> str:
    """Return names with reasons as a line: each pair once, a few and how many more."""
    named = list(dict.fromkeys(reasons))
    shown = [f"{name}, because {reason}" for name, reason in named[:MOST_REASONS]]
    more = len(named) - len(shown)
    return " / ".join([*shown, f"and {more} more"] if more > 0 else shown)


def warn_idle(
    obj: Any, accelerator: Accelerator | None, framework: Framework, logger: logging.Logger
) -> None:
    """Say of a program, as it is accelerated, that it gets nothing but admission, and why.

    Nothing is said where admission is wanted, where nothing of the program can be seen, where
    ``RAG_ACCEL`` is off, and after the first hundred programs of a process.

    Args:
        obj: the program.
        accelerator: the one given; None for that of the moment.
        framework: it is of.
        logger: takes the warning.
    """
    if not is_enabled() or not logger.isEnabledFor(logging.WARNING):
        return
    accelerator = accelerator or activated()
    options, _ = options_of(accelerator)
    if any(getattr(options, name) != getattr(_DEFAULT, name) for name in _ADMISSION):
        return
    if next(_numbers) > MOST_PROGRAMS:
        return
    try:
        reasons = _reasons(obj, accelerator, options, framework)
        if not reasons or _named.get(obj):
            return
        _named.add(obj, True)
    except Exception:  # without weak references; or of the program's own attributes
        return
    logger.warning(
        "%s gets nothing but admission to the scheduler: %s. explain(...) lists each part",
        full_name(type(obj)),
        reasons_in_line(reasons),
    )


def _reasons(
    obj: Any, accelerator: Accelerator | None, options: Options, framework: Framework
) -> Sequence[tuple[str, str]]:
    """Return the reasons of a program's leaves; empty if one gets more, or if none can be seen."""
    parts = program_parts(framework, obj, options)
    gains = {name for name in _GAINS if getattr(options, name)}
    if len(parts) > MAX_PARTS or any(gains & part.options for part in parts):
        return ()
    leaves = [(part.cls, why_not(part.obj, accelerator)) for part in parts if part.is_leaf]
    if not all(reason for _, reason in leaves):
        return ()
    return [leaf for leaf in leaves if leaf[1] != AROUND_PARTS]
