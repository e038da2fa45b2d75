"""The options of an accelerator by the parts of a program that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.local_llms import is_named_llm
from rag_accel.config import Options
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import (
    OWN,
    is_composite,
    is_scheduled,
    leaf_class,
    plain_class,
)

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

#: What a recognised part of a program reads.
ADOPTED_EMBEDDINGS = frozenset({"embedding_runtime", EMBEDDER})
ADOPTED_LLM = frozenset({"adopt_llm", "kv_reuse", "kv_folder"})
SERVED_LLM = frozenset({"kv_reuse"})

DEFAULTS = {spec.name: spec.default for spec in fields(Options) if spec.name in READERS}


@dataclass(frozen=True, slots=True)
class PartOptions:
    """One part of a program.

    Args:
        path: its position.
        cls: its class's name.
        options: those that it reads.
        is_leaf: whether it does work itself.
        obj: the part itself; None of a function or a graph, which is no leaf.
    """

    path: str
    cls: str
    options: frozenset[str] = frozenset()
    is_leaf: bool = False
    obj: Any = None


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


def component_options(obj: Any, options: Options) -> frozenset[str]:
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


#: Returns the parts of an object under options.
PartsOf = Callable[[Any, Options], Iterable[PartOptions]]


def leaf_parts(program: Any, options: Options) -> Iterator[PartOptions]:
    """Yield a program and the leaves that it holds, of which only components read options."""
    for path, part in held_parts(program):
        cls = plain_class(type(part))
        reads = component_options(part, options) if is_scheduled(cls) else frozenset[str]()
        is_leaf = leaf_class(cls).base is not None and not is_composite(part)
        yield PartOptions(path, cls.__name__, reads, is_leaf, obj=part)


def held_parts(program: Any) -> Iterator[tuple[str, Any]]:
    """Yield a program and the leaves that its framework says it holds, each with its position."""
    yield "program", program
    held = leaf_class(plain_class(type(program))).framework.held_by(program)
    for number, leaf in enumerate(leaf for leaf in held if leaf is not program):
        yield f"program.{number}", leaf


def reach_into(
    program: Any, parts_of: PartsOf, own: Accelerator | None = None
) -> Callable[[], tuple[OptionReach, ...]]:
    """Return a callable that lists how far options reach into a program when it is called.

    Args:
        program: the program; None for none.
        parts_of: returns its parts.
        own: the accelerator it was given, if its class does not have it.
    """

    def look() -> tuple[OptionReach, ...]:
        if program is None:
            return ()
        given = own or getattr(type(program), OWN, None)
        options, lists_embedders = options_of(given)
        return reach(parts_of(program, options), options, lists_embedders)

    return look


def reach(
    parts: Iterable[PartOptions], options: Options, lists_embedders: bool = False
) -> tuple[OptionReach, ...]:
    """Return how far each option of ``READERS`` reaches into a program."""
    seen = list(islice(parts, MAX_PARTS))
    return tuple(
        _reach_of(name, seen, options, lists_embedders)
        for name in READERS
        if name != EMBEDDER or lists_embedders
    )


def _reach_of(
    name: str, parts: Sequence[PartOptions], options: Options, lists_embedders: bool
) -> OptionReach:
    readers = dict.fromkeys(f"{part.path}: {part.cls}" for part in parts if name in part.options)
    if name == EMBEDDER:
        return OptionReach(name, "a list", lists_embedders, tuple(readers))
    value = getattr(options, name)
    return OptionReach(name, value, value != DEFAULTS[name], tuple(readers))


def as_lines(options: Sequence[OptionReach]) -> list[str]:
    """Return options as text: those that parts read, then the others."""
    if not options:
        return []
    return [
        "options:",
        *(f"  {option}" for option in options if option.parts),
        *(f"  {option}" for option in options if option.is_given and not option.parts),
    ]
