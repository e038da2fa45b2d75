"""The methods by which a LlamaIndex program is entered, each call of which is one request.

A request lasts until the stream of its response has ended, or is dropped, and until the run of a
workflow is over and the stream that it gave, if it did.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from itertools import islice
from threading import Thread
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.chat_engine.types import BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.indices.property_graph import SchemaLLMPathExtractor, SimpleLLMPathExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import QueryBundle
from workflows import Workflow
from workflows.events import StopEvent
from workflows.handler import WorkflowHandler

from llama_index_rag_accel.concurrency.offload import spread
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Message, Role
from rag_accel.interception.twins import program_of
from rag_accel.interception.wrappers import StreamScope, astepped, stepped
from rag_accel.leaves.recorded_prompts import MOST_VALUES, Values
from rag_accel.system.methods import called_on

_ROLES: Mapping[MessageRole, Role] = {
    MessageRole.SYSTEM: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
}


def values_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
    """Return questions, and messages of text, by the place or the name of the argument.

    No code of the program's runs: what is of a class of its own is left out.
    """
    named = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    found: dict[str, str | tuple[Message, ...]] = {}
    for name, value in islice(named.items(), MOST_VALUES):
        text = value.query_str if type(value) is QueryBundle else value
        known = text if type(text) is str else _turns(text)
        if known is not None:
            found[name] = known
    return found


def _turns(value: Any) -> tuple[Message, ...] | None:
    """Return messages as engines take them; None where one of them is anything else."""
    if type(value) is not list:
        return None
    told: list[Any] = value
    turns: list[Message] = []
    for message in told:
        if type(message) is not ChatMessage or message.role not in _ROLES:
            return None
        if any(type(block) is not TextBlock for block in message.blocks):
            return None
        turns.append(Message(_ROLES[message.role], message.content or ""))
    return tuple(turns)


#: by the base class of a program, its public methods that do work
ENTRIES: Mapping[type, tuple[str, ...]] = {
    BaseQueryEngine: ("query", "aquery", "retrieve", "aretrieve", "synthesize", "asynthesize"),
    BaseChatEngine: ("chat", "achat", "stream_chat", "astream_chat"),
    BaseRetriever: ("retrieve", "aretrieve"),
    BaseSynthesizer: ("synthesize", "asynthesize"),
    IngestionPipeline: ("run", "arun"),
    SimpleLLMPathExtractor: ("__call__", "acall"),
    SchemaLLMPathExtractor: ("__call__", "acall"),
    Workflow: ("run",),
}

#: of these, what only some classes have
OPTIONAL = frozenset({"aretrieve"})
#: those of an index, which has others answer
INDEX_ENTRIES = (
    "insert",
    "ainsert",
    "insert_nodes",
    "ainsert_nodes",
    "update_ref_doc",
    "aupdate_ref_doc",
    "refresh_ref_docs",
    "arefresh_ref_docs",
)

_STREAMING = (StreamingResponse, AsyncStreamingResponse)
#: what a call may return while it is not over
_LASTING = (*_STREAMING, StreamingAgentChatResponse, WorkflowHandler)

#: Returns what ends a request, which then does not end with its call.
Keep = Callable[[], ExitStack]


def is_program(obj: object) -> bool:
    """Tell whether an object has others do work, and is entered by methods known here."""
    return isinstance(obj, tuple(ENTRIES))


def entry_methods(cls: type, own: Accelerator | None) -> dict[str, Any]:
    """Return the methods in which an accelerated program differs from one of class ``cls``."""
    return requests_of(
        cls, [name for base, known in ENTRIES.items() if issubclass(cls, base) for name in known]
    )


def requests_of(cls: type, names: Iterable[str]) -> dict[str, Any]:
    """Return those of a class's methods that it has, each call of which is a request."""
    methods = {name: getattr(cls, name) for name in dict.fromkeys(names) if hasattr(cls, name)}
    return {name: _entry(method) for name, method in methods.items()}


def _entry(plain: Any) -> Any:
    if inspect.iscoroutinefunction(plain):
        # It may have been looked up while its class was not patched.
        moved = spread(plain)
        called = called_on(plain) if moved is plain else moved

        @functools.wraps(plain)
        async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
            with program_of(self).call(partial(values_of, args, kwargs)) as request:
                result = await called(self, *args, **kwargs)
                if request is None or not isinstance(result, _LASTING):
                    return result
                return _kept_open(result, request.scope, request.keep)

        return acall

    called = called_on(plain)

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with program_of(self).call(partial(values_of, args, kwargs)) as request:
            result = called(self, *args, **kwargs)
            if request is None or not isinstance(result, _LASTING):
                return result
            return _kept_open(result, request.scope, request.keep)

    return call


def _kept_open(result: Any, scope: StreamScope, keep: Keep) -> Any:
    """Return what a call returned; if it is not over, neither is its request."""
    # The response tells which kind its stream is: that of a tracer can be both.
    if isinstance(result, StreamingResponse):
        if isinstance(tokens := result.response_gen, Iterator):
            result.response_gen = _open_while(_stream, tokens, scope, keep)
    elif isinstance(result, AsyncStreamingResponse):
        if isinstance(tokens := result.response_gen, AsyncIterator):
            result.response_gen = _open_while(_astream, tokens, scope, keep)
    elif isinstance(result, StreamingAgentChatResponse):
        _open_while_written(result, keep)
    elif isinstance(result, WorkflowHandler):
        # Where a later version has no such task, what its steps call are requests of their own.
        task = getattr(result, "_result_task", None)
        if task is not None:
            task.add_done_callback(partial(_kept_open_after, scope, keep()))
    return result


def _kept_open_after(scope: StreamScope, request: ExitStack, task: Future[StopEvent]) -> None:
    """End the request of a run that is over, or with the stream that it gave: only that asks."""
    with request:
        if not task.cancelled() and task.exception() is None:
            stop = task.result()
            given = [stop.result] if type(stop) is StopEvent else vars(stop).values()
            stream = next((one for one in given if isinstance(one, _STREAMING)), None)
            _kept_open(stream, scope, request.pop_all)


def _open_while_written(response: StreamingAgentChatResponse, keep: Keep) -> None:
    """Keep a chat's request open until the answer is in its history, whether it is read or not."""
    # Where a later version has neither, the model is asked in a request of its own.
    task = getattr(response, "awrite_response_to_history_task", None)
    thread = getattr(response, "write_response_to_history_thread", None)
    if task is not None:
        kept = keep()
        task.add_done_callback(lambda _: kept.close())
    elif thread is not None and thread.is_alive():
        Thread(target=_close_after, args=(thread, keep()), daemon=True).start()


def _close_after(thread: Thread, request: ExitStack) -> None:
    with request:
        thread.join()


def _open_while(
    consume: Callable[[Any, StreamScope, ExitStack], Any],
    tokens: Any,
    scope: StreamScope,
    keep: Keep,
) -> Any:
    kept = keep()
    stream = consume(tokens, scope, kept)
    # One that is never begun runs no ``finally``.
    weakref.finalize(stream, kept.close).atexit = False
    return stream


def _stream(tokens: Iterator[str], scope: StreamScope, request: ExitStack) -> Iterator[str]:
    with request:
        yield from stepped(iter(tokens), scope)


async def _astream(
    tokens: AsyncIterator[str], scope: StreamScope, request: ExitStack
) -> AsyncIterator[str]:
    with request:
        async with aclosing(astepped(aiter(tokens), scope)) as steps:
            async for token in steps:
                yield token
