"""Accelerated LlamaIndex objects, each an instance of its class that shares its state.

Each call of a query engine, chat engine, retriever, synthesizer or ingestion pipeline and each run
of a workflow or agent is one request; an LLM, embedding, vector store or postprocessor is scheduled
call by call. What an index makes is accelerated as if it had been given itself, and each call that
inserts into it is one request.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from llama_index.core.indices.base import BaseIndex

from llama_index_rag_accel.coverage import coverage
from llama_index_rag_accel.entries import (
    ENTRIES,
    INDEX_ENTRIES,
    OPTIONAL,
    entry_methods,
    is_program,
    requests_of,
)
from llama_index_rag_accel.integration import INTEGRATION
from llama_index_rag_accel.leaf_table import EXPLANATION, LLAMA_INDEX, RECOGNISED, does_work
from rag_accel.accelerator import Accelerator
from rag_accel.interception.integration import Acceleration
from rag_accel.interception.leaf_table import is_scheduled
from rag_accel.interception.twins import program_twin, twin


def _make(obj: Any, accelerator: Accelerator | None) -> Any:
    if is_program(obj):
        return program_twin(obj, accelerator, entry_methods)
    if isinstance(obj, BaseIndex):
        return twin(obj, accelerator, index_methods)
    if is_scheduled(type(obj)) and hasattr(obj, "scheduled_by"):  # a component of ours
        return obj if accelerator is None else obj.scheduled_by(accelerator)
    return twin(obj, accelerator) if does_work(type(obj)) else None


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


ACCELERATION = Acceleration(
    LLAMA_INDEX,
    make=_make,
    takes="a query engine, chat engine, retriever, index, response synthesizer, workflow, "
    "agent, ingestion pipeline, extractor of paths, LLM, embedding, vector store or "
    "postprocessor of LlamaIndex",
    hint=lambda obj: (
        "accelerate what answers, for example index.as_query_engine(), "
        "or call the program inside activate()"
    ),
    is_open=lambda obj: isinstance(obj, BaseIndex),
    explain=EXPLANATION.of,
    prepare=functools.partial(RECOGNISED.prepare, LLAMA_INDEX),
    coverage=coverage,
    methods=[
        *LLAMA_INDEX.working_methods(),
        *((base, name) for base, names in ENTRIES.items() for name in {*names} - OPTIONAL),
    ],
)
accelerate: Final = INTEGRATION.accelerate
explain: Final = INTEGRATION.explain
prepare: Final = INTEGRATION.prepare
