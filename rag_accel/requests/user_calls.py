"""Calls of user code: functions, conditions and borrowed engines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

import numpy as np

from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import RequestCancelledError
from rag_accel.graph.framework_calls import FrameworkCall, is_framework_call
from rag_accel.graph.primitives import Primitive
from rag_accel.leaves.identity import RequestIdentity, current_request, leaf_depth
from rag_accel.requests.engines import NamedEngine
from rag_accel.requests.hosts import is_async
from rag_accel.requests.kinds import TEXT_LISTS, work_of
from rag_accel.requests.values import Values
from rag_accel.telemetry.spans import RequestSpans, run_within


class UserCall:
    """A call of user code, whose arguments are only gathered where it runs.

    Values it reads may be folded by a reducer, which is user code as well.
    """

    __slots__ = ("_arguments", "_is_wanted", "func")

    def __init__(
        self,
        func: Callable[..., Any],
        arguments: Callable[[], tuple[Any, ...]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.func = func
        self._arguments = arguments
        self._is_wanted = is_wanted

    def __call__(self) -> Any:
        """Call it.

        Raises:
            RequestCancelledError: if its request has ended meanwhile.
            GraphError: if a value it reads was not written.
        """
        return self.func(*self._wanted_arguments())

    def _wanted_arguments(self) -> tuple[Any, ...]:
        if not self._is_wanted():
            raise RequestCancelledError("the request ended before this could run")
        return self._arguments()


class LeavesCall(UserCall):
    """A call of a part of a program, whose own calls belong to the request.

    ``on_loop`` is its form for a caller's loop, in a task of its own.

    Args:
        func: the call.
        arguments: gathers what it is called with.
        is_wanted: tells whether its request still waits for it.
        identity: of what it calls.
        depth: the longest remaining path of what it calls, in steps.
    """

    __slots__ = ("_depth", "_identity")

    func: FrameworkCall

    def __init__(
        self,
        func: FrameworkCall,
        arguments: Callable[[], tuple[Any, ...]],
        is_wanted: Callable[[], bool],
        identity: RequestIdentity | None,
        depth: int,
    ) -> None:
        super().__init__(func, arguments, is_wanted)
        self._identity = identity
        self._depth = depth

    def __call__(self) -> Any:
        return copy_context().run(self._run)

    def _run(self) -> Any:
        self._enter()
        return super().__call__()

    async def on_loop(self) -> Any:
        """Call it on this loop. Raises as a call in a thread."""
        self._enter()
        return await self.func.acall(*self._wanted_arguments())

    def _enter(self) -> None:
        current_request.set(self._identity)
        leaf_depth.set(lambda: self._depth)


def user_call(
    primitive: Primitive,
    values: Values,
    engines: Mapping[str, NamedEngine],
    is_wanted: Callable[[], bool],
    keeps: bool = False,
    identity: RequestIdentity | None = None,
    spans: RequestSpans | None = None,
) -> UserCall:
    """Return the call of a function, a condition or a borrowed engine.

    With ``keeps``, what an engine is given can be given again. ``identity`` is that of what a
    program's part calls, ``spans`` note those that the call makes.
    """

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        return call if spans is None else run_within(spans, call)

    def everything() -> tuple[Any, ...]:
        return (values.snapshot(),)

    def inputs() -> tuple[Any, ...]:
        return tuple(values.read(name) for name in primitive.inputs)

    def payload() -> tuple[Any, ...]:
        if keeps:
            values.keep(primitive.inputs)
        work = work_of(primitive.kind)
        return work.arguments(work.payload(primitive, values))

    if primitive.kind is PrimitiveKind.CONDITION:
        return UserCall(noting(primitive.attribute("condition")), everything, is_wanted)
    if primitive.kind is PrimitiveKind.FUNCTION:
        gather = everything if primitive.reads_all else inputs
        fn = primitive.attribute("fn")
        if is_framework_call(fn):
            return LeavesCall(fn, gather, is_wanted, identity, primitive.depth)
        return UserCall(noting(fn), gather, is_wanted)
    assert primitive.engine is not None, "only user code has no engine"
    call = engines[primitive.engine].call
    assert call is not None, "a borrowed engine has a callable"
    options = _options(primitive)
    if primitive.attribute("role") in TEXT_LISTS:
        call = _unless_none(call)
    call = noting(call)
    return UserCall(functools.partial(call, **options) if options else call, payload, is_wanted)


def _unless_none(embed: Callable[..., Any]) -> Callable[..., Any]:
    """Return an embedder that is not called for no texts at all, which few expect."""
    none = np.empty((0, 0), dtype=np.float32)

    def embed_some(texts: list[str]) -> Any:
        return embed(texts) if texts else none

    async def aembed_some(texts: list[str]) -> Any:
        return await embed(texts) if texts else none

    return aembed_some if is_async(embed) else embed_some


def _options(primitive: Primitive) -> dict[str, Any]:
    """Return a stage's optional arguments for a borrowed engine."""
    named = {name: primitive.attribute(name) for name in ("where", "stop", "max_tokens")}
    options = {name: value for name, value in named.items() if value is not None}
    if "where" in options:
        options["where"] = dict(options["where"])
    return options
