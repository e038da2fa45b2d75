"""The verbs a LlamaIndex user needs: to accelerate an object, and to see how it runs."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, cast

from llama_index.core.indices.base import BaseIndex

from llama_index_rag_accel.entries import INDEX_ENTRIES, entry_methods, is_program, requests_of
from llama_index_rag_accel.explanation import explain_inside
from llama_index_rag_accel.leaf_table import LLAMA_INDEX, does_work
from llama_index_rag_accel.option_readers import parts_of
from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.interception import intercept
from rag_accel.interception.arguments import chosen
from rag_accel.interception.leaf_table import is_scheduled
from rag_accel.interception.twins import program_twin, twin
from rag_accel.interception.unread_options import check_options

T = TypeVar("T")

intercept(LLAMA_INDEX)


def accelerate(
    obj: T, *, accelerator: Accelerator | None = None, options: Options | None = None
) -> T:
    """Return an instance of the class of ``obj`` that shares its state and whose work is scheduled.

    Each call of a query engine, chat engine, retriever, synthesizer or ingestion pipeline and each
    run of a workflow or agent is one request; an LLM, embedding, vector store or postprocessor is
    scheduled call by call. What an index makes is accelerated as if it had been given itself, and
    each call that inserts into it is one request.

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
    # What an index answers with is not known yet: what it makes is looked at.
    if made is not obj and not isinstance(obj, BaseIndex):
        check_options(obj, accelerator, parts_of, options)
    return made


def _made(obj: T, accelerator: Accelerator | None) -> T:
    if is_program(obj):
        return program_twin(obj, accelerator, entry_methods)
    if isinstance(obj, BaseIndex):
        return twin(obj, accelerator, index_methods)
    if is_scheduled(type(obj)) and hasattr(obj, "scheduled_by"):  # a component of ours
        component = cast("Any", obj)
        return component if accelerator is None else component.scheduled_by(accelerator)
    if does_work(type(obj)):
        return twin(obj, accelerator)
    raise ConfigError(
        "accelerate() does not know this object",
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid="a query engine, chat engine, retriever, index, response synthesizer, workflow, "
        "agent, ingestion pipeline, extractor of paths, LLM, embedding, vector store or "
        "postprocessor of LlamaIndex",
        hint="accelerate what answers, for example index.as_query_engine(), "
        "or call the program inside activate()",
    )


def explain(obj: Any) -> str:
    """Return what is inside an accelerated object and how each part runs, one part a line."""
    own = getattr(type(obj), "__rag_accel_own__", None)
    return explain_inside(obj, own or default_accelerator())


def index_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods by which an accelerated index grows, and makes accelerated programs."""

    def maker(plain: Any) -> Any:
        @functools.wraps(plain)
        def make(self: Any, *args: Any, **kwargs: Any) -> Any:
            return accelerate(plain(self, *args, **kwargs), accelerator=own)

        return make

    names = ("as_query_engine", "as_chat_engine", "as_retriever")
    makers = {name: maker(getattr(cls, name)) for name in names}
    return {**makers, **requests_of(cls, INDEX_ENTRIES)}
