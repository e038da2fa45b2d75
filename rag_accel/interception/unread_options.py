"""Warnings about options that no part of the accelerated object reads, each given once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.config import ENV_PREFIX, Options, is_enabled
from rag_accel.errors import UnreadOptionWarning
from rag_accel.interception.fallback import logger
from rag_accel.interception.option_reach import (
    DEFAULTS,
    MAX_PARTS,
    READERS,
    OptionReach,
    PartOptions,
    PartsOf,
    reach,
)
from rag_accel.system.classes import full_name
from rag_accel.system.weak_maps import WeakIdDict

#: Values that hold of themselves where nothing reads the option: defaults, and those that keep
#: something from being done.
_ASKING_NOTHING: dict[str, tuple[Any, ...]] = {
    "kv_reuse": ("exact",),
    "kv_folder": (None,),
    "adopt_llm": ("exact", "off"),
    "embedding_runtime": ("auto", "torch"),
    "parallel_calls": (False,),
    "offload_blocking": (False,),
}

#: Of each object, the options that a warning has named.
_named: WeakIdDict[dict[str, object]] = WeakIdDict()


def unread(
    parts: Iterable[PartOptions], options: Options, accelerator: Accelerator | None = None
) -> list[OptionReach]:
    """Return the options that no part reads though somebody asked for what they do.

    Those that an engine of the accelerator's own reads are not among them: its RAGraphs have them.

    Nothing is concluded of a program that is too large to be looked at, nor of one none of whose
    leaves can be seen before it runs.
    """
    seen = list(islice(parts, MAX_PARTS + 1))
    if len(seen) > MAX_PARTS or not any(part.is_leaf for part in seen):
        return []
    lists_embedders = accelerator is not None and accelerator.lists_embedders
    elsewhere = frozenset() if accelerator is None else accelerator.options_of_engines
    return [
        row
        for row in reach(seen, options, lists_embedders)
        if not row.parts
        and row.option not in elsewhere
        and _is_asked(row.option, row.value, row.is_given)
    ]


def _is_asked(option: str, value: Any, is_given: bool = False) -> bool:
    """Tell whether somebody gave an option, with a value that asks for something to be done."""
    if value in _ASKING_NOTHING.get(option, ()):
        return False
    return is_given or ENV_PREFIX + option.upper() in os.environ


def unread_lines(obj: Any, accelerator: Accelerator, parts_of: PartsOf) -> Iterator[str]:
    """Yield what the explanation of an object says of options that no part of it reads."""
    options = accelerator.options
    for found in unread(parts_of(obj, options), options, accelerator):
        yield f"  option {found.option}={found.value!r}: {_why(found.option)}"


def warn_unread(obj: Any, option: str, text: str, stacklevel: int = 3) -> None:
    """Warn, once for an object and an option, that nothing of the object reads the option.

    Raises:
        UnreadOptionWarning: where the program has made warnings errors.
    """
    mine = object()
    try:
        named = _named.add(obj, {})
    except TypeError:  # without weak references: then it is Python that shows a text once
        named = {}
    if named.setdefault(option, mine) is mine:
        warnings.warn(UnreadOptionWarning(text, option), stacklevel=stacklevel)


def check_options(
    obj: Any,
    accelerator: Accelerator | None,
    parts_of: PartsOf,
) -> bool:
    """Say which given options no part of an object reads, as its ``accelerate()`` does.

    Nothing is said of defaults, nor where ``RAG_ACCEL`` is off. Tells whether something was.

    Args:
        obj: the object, before it is accelerated.
        accelerator: the one given; None for the one that all share, whose options the environment
            alone gives.
        parts_of: returns the object's parts.

    Raises:
        UnreadOptionWarning: where the program has made warnings errors.
    """
    if not is_enabled():
        return False
    options = _given(accelerator)
    if options is None:
        return False
    try:
        found = unread(parts_of(obj, options), options, accelerator)
    except Exception as error:  # of the program's own attributes, which are its business
        # Text only: a kept record would keep the error, its frames and so the program alive.
        logger.warning(
            "what %s reads of its options is unknown: %s", full_name(type(obj)), repr(error)
        )
        return False
    for row in found:
        warn_unread(
            obj,
            row.option,
            f"{full_name(type(obj))}: {row.option}={row.value!r}: {_why(row.option)}",
            stacklevel=4,
        )
    return bool(found)


def _given(accelerator: Accelerator | None) -> Options | None:
    """Return the options to look at; None if none of those is given that may be unread."""
    if accelerator is None:
        is_set = any(ENV_PREFIX + name.upper() in os.environ for name in _ASKING_NOTHING)
        return Options.load() if is_set else None
    options = accelerator.options
    is_asked = accelerator.lists_embedders or any(
        _is_asked(name, value := getattr(options, name), value != DEFAULTS[name])
        for name in _ASKING_NOTHING
    )
    return options if is_asked else None


def _why(option: str) -> str:
    return f"no part that can be seen before it runs reads it; read by {READERS[option]}"
