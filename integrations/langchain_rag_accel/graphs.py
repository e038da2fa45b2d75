"""A compiled LangGraph, accelerated: what comes back is one, whose runs are requests.

LangGraph stays the executor. All its entries run by two methods, ``stream`` and ``astream``; these
are what a run of ours is put around.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary

from langchain_rag_accel.given_values import values_of
from langchain_rag_accel.program import Program
from rag_accel.accelerator import Accelerator
from rag_accel.interception.twins import is_twin, twin
from rag_accel.interception.wrappers import astepped, stepped
from rag_accel.leaves.recorded_prompts import Values

#: of each accelerated graph; one made of another has that one's
_programs: WeakKeyDictionary[Any, Program] = WeakKeyDictionary()


def accelerate_graph(graph: Any, accelerator: Accelerator | None) -> Any:
    """Return a compiled graph of the same class and state, whose runs are scheduled."""
    made = twin(graph, accelerator, graph_methods)
    if is_twin(made):
        _program_of(made, accelerator)
    return made


def _program_of(graph: Any, own: Accelerator | None) -> Program:
    found = _programs.get(graph)
    return found if found is not None else _programs.setdefault(graph, Program(graph, own))


def graph_program(graph: Any) -> Program | None:
    """Return the program of an accelerated graph, None for another object."""
    return next((made for one, made in list(_programs.items()) if one is graph), None)


def graph_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated graph differs from a graph of class ``cls``."""
    plain: Any = cls  # a compiled graph's class

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
        return values_of(args[0] if args else kwargs.get("input"))

    @functools.wraps(plain.stream)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _program_of(self, own).run(functools.partial(given, args, kwargs)) as scope:
            yield from stepped(iter(plain.stream(self, *args, **kwargs)), scope)

    @functools.wraps(plain.astream)
    async def astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with _program_of(self, own).run(functools.partial(given, args, kwargs)) as scope:
            chunks = aiter(plain.astream(self, *args, **kwargs))
            async with aclosing(astepped(chunks, scope)) as items:
                async for item in items:
                    yield item

    @functools.wraps(plain.batch)
    def batch(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        with _program_of(self, own).call(is_batch=True):
            return plain.batch(self, *args, **kwargs)

    @functools.wraps(plain.abatch)
    async def abatch(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        with _program_of(self, own).call(is_batch=True):
            return await plain.abatch(self, *args, **kwargs)

    @functools.wraps(plain.copy)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain.copy(self, *args, **kwargs)
        if made.nodes is self.nodes:  # the same program, under another config perhaps
            _programs[made] = _program_of(self, own)
        return made

    return {"stream": stream, "astream": astream, "batch": batch, "abatch": abatch, "copy": copy}
