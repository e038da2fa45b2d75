"""The verbs a user of neo4j-graphrag needs: to accelerate an object, and to see how it runs."""

from __future__ import annotations

from typing import TypeVar

from neo4j_graphrag_rag_accel.entries import PROGRAMS, program_methods
from neo4j_graphrag_rag_accel.explanation import explain, hint
from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG
from neo4j_graphrag_rag_accel.option_readers import parts_of
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.interception import intercept
from rag_accel.interception.arguments import chosen
from rag_accel.interception.leaf_table import leaf_class
from rag_accel.interception.twins import program_twin, twin
from rag_accel.interception.unread_options import check_options

__all__ = ["accelerate", "explain"]

T = TypeVar("T")

intercept(NEO4J_GRAPHRAG)


def accelerate(
    obj: T, *, accelerator: Accelerator | None = None, options: Options | None = None
) -> T:
    """Return an instance of the class of ``obj`` that shares its state and whose work is scheduled.

    Each ``search`` of a ``GraphRAG`` or of a retriever is one request; an embedder or an LLM is
    scheduled call by call.

    Args:
        obj: the object; it stays as it is and may be used beside the result.
        accelerator: schedules the work; by default one that all objects of the process share.
        options: options of an accelerator made for this object alone.

    Raises:
        ConfigError: if ``obj`` is none of these, or both arguments are given, or
            one of another type.
        TranslationError: ``mode="translate"`` was given for this object alone.
        UnreadOptionWarning: a given option that no part of the object reads, where the program has
            made warnings errors; otherwise it is a warning, once for an object and an option.
    """
    accelerator = chosen(accelerator, options)
    made = _made(obj, accelerator)
    if made is not obj:
        check_options(obj, accelerator, parts_of, options)
    return made


def _made(obj: T, accelerator: Accelerator | None) -> T:
    if isinstance(obj, PROGRAMS):
        return program_twin(obj, accelerator, program_methods)
    if leaf_class(type(obj)).framework is NEO4J_GRAPHRAG:
        return twin(obj, accelerator)
    raise ConfigError(
        "accelerate() does not know this object",
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid="a GraphRAG, retriever, embedder or LLM of neo4j-graphrag",
        hint=hint(obj),
    )
