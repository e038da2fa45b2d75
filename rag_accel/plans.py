"""Graphs of programs of other frameworks."""

from __future__ import annotations

from typing import Any

from rag_accel.errors import TranslationError
from rag_accel.graph.ragraph import RAGraph
from rag_accel.registry import plan_registry


def plan_of(program: Any) -> RAGraph:
    """Return a framework's program as a graph, for ``Accelerator.run`` and ``explain``.

    Each stage calls a part of the program as the framework does, so the result is the framework's::

        plan = plan_of(prompt | model | StrOutputParser())
        accelerator.run(plan, input={"question": "Who was Ada?"}, config={"tags": ["demo"]})

    Args:
        program: a LangChain runnable of prompts, models, retrievers, parsers, functions, sequences,
            parallels and assigns; a compiled LangGraph whose nodes, edges and conditions are
            declared; a LlamaIndex query engine of a retriever, postprocessors, transforms and a
            synthesizer, or a retriever.

    Raises:
        TranslationError: if nothing makes graphs of such an object, or if it is not fully declared;
            names the place.
        ImportError: if the plugin for its framework misses a package.
    """
    registry = plan_registry()
    for cls in type(program).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in registry:
            return registry.get(package)(program)
    raise TranslationError(
        "no graph can be made of this object",
        found=f"{type(program).__module__}.{type(program).__qualname__}",
        valid=f"a program of {', '.join(registry.names()) or 'no package: none is registered'}",
        hint="accelerate(...) of its framework's package runs it as it is",
    )
