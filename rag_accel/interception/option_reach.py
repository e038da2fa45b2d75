"""The options that the parts of a program read, and warnings of others and of idle programs.

What a part reads is said by its framework, in ``Framework.reads``.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.local_llms import is_named_llm
from rag_accel.config import ENV_PREFIX, Options, is_enabled
from rag_accel.errors import UnreadOptionWarning
from rag_accel.interception.fallback import logger
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import (
    AROUND_PARTS,
    OWN,
    Framework,
    is_scheduled,
    is_working_leaf,
    leaf_class,
    why_not,
)
from rag_accel.system.classes import full_name
from rag_accel.system.methods import plain_class
from rag_accel.system.weak_maps import WeakIdDict

#: The most parts of a program that are looked at; of a larger one nothing is concluded.
MAX_PARTS = 2000

#: The argument for a list of embedders, reported like the fields of ``Options``.
EMBEDDER = "embedder"

#: The options that only some parts of a program read, with what reads them.
READERS = {
    "kv_reuse": "a local language model that names no other, one on a vLLM server, or a RAGraph",
    "kv_folder": "the same, where kv_reuse is 'full', 'fused' or 'dependency'",
    "adopt_llm": "a Hugging Face language model of the program",
    "embedding_runtime": "a recognised local embedding model",
    "parallel_calls": "a composite of LangChain or LlamaIndex",
    "offload_blocking": "an async method of LlamaIndex that blocks its loop",
    EMBEDDER: "a recognised local embedding model, or a RAGraph",
}

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

#: What a recognised part of a program reads.
ADOPTED_EMBEDDINGS = frozenset({"embedding_runtime", EMBEDDER})
ADOPTED_LLM = frozenset({"adopt_llm", "kv_reuse", "kv_folder"})
SERVED_LLM = frozenset({"kv_reuse"})

_DEFAULTS = {spec.name: spec.default for spec in fields(Options) if spec.name in READERS}

#: Of each object, the options that a warning has named.
_named: WeakIdDict[dict[str, object]] = WeakIdDict()


@dataclass(frozen=True, slots=True)
class PartOptions:
    """One part of a program.

    Args:
        path: its position.
        obj: the part itself.
        options: those that it reads.
        is_leaf: whether it does work itself.
    """

    path: str
    obj: Any
    options: frozenset[str]
    is_leaf: bool

    @property
    def cls(self) -> str:
        """Return its class's name."""
        return plain_class(type(self.obj)).__name__


@dataclass(frozen=True, slots=True)
class OptionReach:
    """The reach of one option into one program.

    Args:
        option: its name.
        value: its value on the program's accelerator.
        is_given: whether that is another than the default.
        parts: the parts that read it, each as its path and class.
    """

    option: str
    value: Any
    is_given: bool
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.option}={self.value!r}: {', '.join(self.parts) or 'no part reads it'}"

    @property
    def is_asked(self) -> bool:
        """Tell whether somebody gave it, with a value that asks for something to be done."""
        if self.value in _ASKING_NOTHING.get(self.option, ()):
            return False
        return self.is_given or ENV_PREFIX + self.option.upper() in os.environ

    @property
    def why_unread(self) -> str:
        """Return its value, and what would read it."""
        return (
            f"{self.option}={self.value!r}: no part that can be seen before it runs reads it;"
            f" read by {READERS[self.option]}"
        )


def program_parts(framework: Framework, program: Any, options: Options) -> list[PartOptions]:
    """Return the parts of a program with the options that each reads, at most one too many."""
    found = islice(framework.parts_of(program), MAX_PARTS + 1)
    return [_part(framework, path, obj, options) for path, obj in found]


def _part(framework: Framework, path: str, obj: Any, options: Options) -> PartOptions:
    cls = plain_class(type(obj))
    known = leaf_class(cls)
    if is_scheduled(cls):
        reads = _component_options(obj, options)
    else:  # a leaf of another framework reads what that says
        reads = (framework if known.base is None else known.framework).reads(obj)
    return PartOptions(path, obj, reads, is_working_leaf(obj))


def _component_options(obj: Any, options: Options) -> frozenset[str]:
    """Return the options that a component of this library reads."""
    llm: Any = getattr(obj, "_llm", None)
    if is_named_llm(llm):
        reuse = llm.named.get("kv_reuse", options.kv_reuse)
        reads = {"kv_reuse"} if reuse == "exact" else {"kv_reuse", "kv_folder"}
        return frozenset(reads - set(llm.named))
    return ADOPTED_EMBEDDINGS if hasattr(obj, "_adopted") else frozenset()


def options_of(own: Accelerator | None) -> tuple[Options, bool]:
    """Return the options that hold for a program, and whether a list of embedders does."""
    accelerator = own or activated()
    if accelerator is None:
        return Options.load(), False
    return accelerator.options, accelerator.lists_embedders


def reach_into(
    program: Any, framework: Framework, own: Accelerator | None = None
) -> Callable[[], tuple[OptionReach, ...]]:
    """Return a callable that lists how far options reach into a program when it is called.

    Args:
        program: the program; None for none.
        framework: it is of.
        own: the accelerator it was given, if its class does not have it.
    """

    def look() -> tuple[OptionReach, ...]:
        if program is None:
            return ()
        options, lists_embedders = options_of(own or getattr(type(program), OWN, None))
        parts = program_parts(framework, program, options)
        return _reach(parts[:MAX_PARTS], options, lists_embedders)

    return look


def _reach(
    parts: Sequence[PartOptions], options: Options, lists_embedders: bool
) -> tuple[OptionReach, ...]:
    """Return how far each option of ``READERS`` reaches into a program."""
    found = list[OptionReach]()
    for name, default in {**_DEFAULTS, **({EMBEDDER: None} if lists_embedders else {})}.items():
        readers = (f"{part.path}: {part.cls}" for part in parts if name in part.options)
        value = "a list" if name == EMBEDDER else getattr(options, name)
        found.append(OptionReach(name, value, value != default, tuple(dict.fromkeys(readers))))
    return tuple(found)


def as_lines(options: Sequence[OptionReach]) -> list[str]:
    """Return options as text: those that parts read, then the others."""
    if not options:
        return []
    return [
        "options:",
        *(f"  {option}" for option in options if option.parts),
        *(f"  {option}" for option in options if option.is_given and not option.parts),
    ]


def unread(
    program: Any, framework: Framework, options: Options, accelerator: Accelerator | None
) -> list[OptionReach]:
    """Return the options that no part reads though somebody asked for what they do.

    Those that an engine of the accelerator's own reads are not among them: its RAGraphs have them.

    Nothing is concluded of a program that is too large to be looked at, nor if none of its leaves
    can be seen before it runs.
    """
    parts = program_parts(framework, program, options)
    if len(parts) > MAX_PARTS or not any(part.is_leaf for part in parts):
        return []
    lists_embedders = accelerator is not None and accelerator.lists_embedders
    elsewhere = frozenset() if accelerator is None else accelerator.options_of_engines
    return [
        row
        for row in _reach(parts, options, lists_embedders)
        if not row.parts and row.option not in elsewhere and row.is_asked
    ]


def unread_lines(program: Any, framework: Framework, accelerator: Accelerator) -> Iterator[str]:
    """Yield what the explanation of an object says of options that no part of it reads."""
    for row in unread(program, framework, accelerator.options, accelerator):
        yield f"  option {row.why_unread}"


def warn_unread(obj: Any, framework: Framework, accelerator: Accelerator | None) -> bool:
    """Warn, once for an object and an option, of given options that no part of the object reads.

    Nothing is said of defaults, nor where ``RAG_ACCEL`` is off. Tells whether something was.

    Args:
        obj: the object, before it is accelerated.
        framework: it is of.
        accelerator: the one given; None for the one that all share, whose options the environment
            alone gives.

    Raises:
        UnreadOptionWarning: where the program has made warnings errors.
    """
    if not is_enabled():
        return False
    options = Options.load() if accelerator is None else accelerator.options
    lists_embedders = accelerator is not None and accelerator.lists_embedders
    if not any(row.is_asked for row in _reach((), options, lists_embedders)):
        return False  # no look at the object
    try:
        found = unread(obj, framework, options, accelerator)
    except Exception as error:  # of the program's own attributes, which are its business
        # Text only: a kept record would keep the error, its frames and so the program alive.
        logger.warning(
            "what %s reads of its options is unknown: %s", full_name(type(obj)), repr(error)
        )
        return False
    for row in found:
        mine = object()
        try:
            named = _named.add(obj, {})
        except TypeError:  # without weak references: then it is Python that shows a text once
            named = {}
        if named.setdefault(row.option, mine) is mine:
            text = f"{full_name(type(obj))}: {row.why_unread}"
            warnings.warn(UnreadOptionWarning(text, row.option), stacklevel=3)
    return bool(found)


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
_idle: WeakIdDict[bool] = WeakIdDict()


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
        if not reasons or _idle.get(obj):
            return
        _idle.add(obj, True)
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
