"""The independent calls of a composite retriever or compressor, run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from rag_accel.accelerator import Accelerator, current_request
from rag_accel.config import is_enabled
from rag_accel.interception.identity import current_run
from rag_accel.interception.leaf_call import is_inside_leaf
from rag_accel.interception.leaf_table import leaf_methods, plain_method
from rag_accel.interception.parallel_calls import MAX_AT_ONCE, run_side_by_side
from rag_accel.system.loops import runs_in_loop
from rag_accel_adapters.langchain.composites import composite_of, spread

T = TypeVar("T")
Method = Callable[..., Any]


def spreading(method: Method) -> Method:
    """Return a composite's method as it is to run here: its calls side by side if they may.

    They may inside a request of an accelerator with ``mode="translate"`` and ``parallel_calls``,
    unless the composite is part of a leaf that holds a permit, which stands for one call, or blocks
    a running loop, which code in other threads could not see.
    """
    run = current_request.get()
    if run is None or run.accelerator.options.mode != "translate":
        return method  # asked by every call of a model; the rest takes longer
    if (
        run is not current_run()
        or not is_enabled()
        or not run.accelerator.options.parallel_calls
        or is_inside_leaf()
        or runs_in_loop()
    ):
        return method
    return spread(method, partial(_run_all, run.accelerator))


def is_spread(cls: type) -> bool:
    """Tell whether objects of a class make calls that may run side by side."""
    methods = (plain_method(cls, leaf.name) for leaf in leaf_methods(cls))
    return any(composite_of(method) is not None for method in methods)


def _run_all(
    accelerator: Accelerator, calls: Sequence[Callable[[], T]], config: RunnableConfig | None = None
) -> list[T]:
    limit = ensure_config(config).get("max_concurrency") or MAX_AT_ONCE
    return run_side_by_side(accelerator, calls, limit)
