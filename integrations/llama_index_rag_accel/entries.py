"""The methods by which a LlamaIndex program is entered, each call of which is one request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.response_synthesizers import BaseSynthesizer

from rag_accel.accelerator import Accelerator
from rag_accel.interception.twins import program_of

#: by the base class of a program, its public methods that do work
ENTRIES: Mapping[type, tuple[str, ...]] = {
    BaseQueryEngine: ("query", "aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    BaseChatEngine: ("chat", "achat", "stream_chat", "astream_chat"),
    BaseRetriever: ("retrieve", "aretrieve"),
    BaseSynthesizer: ("synthesize", "asynthesize"),
    IngestionPipeline: ("run", "arun"),
}


def is_program(obj: object) -> bool:
    """Tell whether an object has others do work, and is entered by methods known here."""
    return isinstance(obj, tuple(ENTRIES))


def entry_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated program differs from one of class ``cls``."""
    names = [name for base, known in ENTRIES.items() if issubclass(cls, base) for name in known]
    methods = {name: getattr(cls, name) for name in dict.fromkeys(names) if hasattr(cls, name)}
    return {name: _entry(method) for name, method in methods.items()}


def _entry(plain: Any) -> Any:
    if inspect.iscoroutinefunction(plain):

        @functools.wraps(plain)
        async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
            with program_of(self).run() as scope, scope():
                return await plain(self, *args, **kwargs)

        return acall

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with program_of(self).run() as scope, scope():
            return plain(self, *args, **kwargs)

    return call
