"""LangChain's transformer of documents into graphs, accelerated: each call is one request.

Its class is of an optional package and known by its name: nothing is imported for it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from langchain_rag_accel.parallel_calls import in_parallel
from rag_accel.accelerator import Accelerator
from rag_accel.interception.twins import program_of, program_twin
from rag_accel.system.classes import full_name

_TRANSFORMER = "langchain_experimental.graph_transformers.llm.LLMGraphTransformer"
_ENTRIES = (
    "convert_to_graph_documents",
    "aconvert_to_graph_documents",
    "process_response",
    "aprocess_response",
)


def is_graph_transformer(obj: object) -> bool:
    """Tell whether an object is an ``LLMGraphTransformer``, or of a class made from it."""
    return any(full_name(cls) == _TRANSFORMER for cls in type(obj).__mro__)


def accelerate_transformer(transformer: Any, accelerator: Accelerator | None) -> Any:
    """Return a transformer of the same class and state, whose calls are requests."""
    return program_twin(transformer, accelerator, _methods)


def _methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    return {name: _request(getattr(cls, name)) for name in _ENTRIES}


def _request(plain: Any) -> Any:
    if inspect.iscoroutinefunction(plain):

        @functools.wraps(plain)
        async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
            with program_of(self).call():
                return await plain(self, *args, **kwargs)

        return acall

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with program_of(self).call():
            return in_parallel(plain)(self, *args, **kwargs)

    return call
