"""Independent calls that LangChain's composites make one by one, run side by side.

Only where everything they may use is known to be thread-safe; else they are made in order. The
transformer of documents into graphs is one; each of its own calls is a request.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from langchain_core.callbacks import CallbackManager
from langchain_core.runnables.config import ensure_config

from rag_accel.accelerator import Accelerator
from rag_accel.interception.leaf_table import leaf_methods
from rag_accel.interception.parallel_calls import (
    MAX_AT_ONCE,
    accelerator_of_calls,
    obstacle,
    preparation_for,
    run_side_by_side,
)
from rag_accel.interception.twins import program_of, program_twin
from rag_accel.system.classes import full_name
from rag_accel.system.loops import runs_in_loop
from rag_accel.system.methods import plain_class, plain_method
from rag_accel_adapters.langchain.composites import composite_of
from rag_accel_adapters.langchain.thread_safe import THREAD_SAFETY

Method = Callable[..., Any]


def in_parallel(method: Method) -> Method:
    """Return a method as it is to run here: its independent calls side by side if they may."""
    body = composite_of(method)
    return method if body is None else partial(_run, method, body)


def _run(method: Method, body: Method, composite: Any, *args: Any, **kwargs: Any) -> Any:
    accelerator = accelerator_of_calls()
    # Code in other threads could not see a running loop that the calls block.
    if accelerator is None or runs_in_loop():
        return method(composite, *args, **kwargs)
    given: list[Any] = [*args, *kwargs.values()]
    # Of what these methods are given, the config alone is a dict.
    own: Any = next((value for value in given if isinstance(value, dict)), None)
    config = ensure_config(own)
    limit = config.get("max_concurrency") or MAX_AT_ONCE

    def uses() -> list[object]:
        others = [value for value in given if value is not own]
        # Its handlers hear of the calls, and so do those that the context adds.
        return [composite, *others, CallbackManager.configure(config.get("callbacks"))]

    prepare = preparation_for(accelerator, THREAD_SAFETY, uses) if limit > 1 else None
    if prepare is None:
        return method(composite, *args, **kwargs)
    prepare()
    return body(partial(run_side_by_side, accelerator, limit=limit), composite, *args, **kwargs)


def is_spread(cls: type) -> bool:
    """Tell whether objects of a class make calls that may run side by side."""
    return any(_spread_methods(plain_class(cls)))


def how_spread(composite: Any, accelerator: Accelerator) -> Iterator[str]:
    """Yield for each method of an object that makes independent calls how they run, and why."""
    for name in _spread_methods(plain_class(type(composite))):
        if not accelerator.options.parallel_calls:
            reason = "parallel_calls=False"
        else:
            reason = obstacle(accelerator, THREAD_SAFETY, [composite])
        how = f"in parallel, at most {MAX_AT_ONCE} at once" if reason is None else "in order"
        yield f"{name} makes its calls {how}" + (f": {reason}" if reason else "")


def _spread_methods(cls: type) -> Iterator[str]:
    names = [leaf.name for leaf in leaf_methods(cls)] or [TRANSFORMING]
    return (name for name in names if composite_of(plain_method(cls, name)) is not None)


#: The method of a transformer of documents into graphs, which is no leaf.
TRANSFORMING = "convert_to_graph_documents"


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
