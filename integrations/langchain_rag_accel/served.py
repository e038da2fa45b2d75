"""LangChain objects as ``rag-accel serve`` has them answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.runnables import Runnable

from langchain_rag_accel.accelerate import accelerate, prepare
from langchain_rag_accel.runnables import AcceleratedRunnable
from langchain_rag_accel.streamed_answers import answering_nodes, streams_its_answer
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError, EngineOutputError
from rag_accel.serving.plain_values import as_answer_text
from rag_accel.serving.served import (
    MESSAGES,
    TEXT,
    EmbeddedRole,
    Served,
    ServedAnswer,
    ServedPiece,
    ServedUsage,
    ServingTerms,
    whole_answer,
)
from rag_accel_adapters.langchain.walk import is_graph


def serve_object(obj: Any, terms: ServingTerms) -> Served | None:
    """Return an object of LangChain's or LangGraph's as it is served; None for any other.

    Raises:
        ConfigError: a compiled graph without a declared input, or with a checkpointer; inputs for
            an object that has its own.
    """
    if not isinstance(obj, Runnable | Embeddings):
        return None
    if terms.inputs is not None and isinstance(obj, BaseChatModel | Embeddings):
        raise ConfigError(
            "this object names its input itself",
            where="--input",
            found=", ".join(terms.inputs),
            hint="leave --input out",
        )
    checkpointer = getattr(obj, "checkpointer", None) if is_graph(obj) else None
    if checkpointer:
        raise ConfigError(
            "this graph keeps its state by threads, which no client may name",
            found=f"a checkpointer, {type(checkpointer).__name__}",
            valid="a graph compiled without one",
            hint="take the whole chat from the client: messages",
        )
    fast, accelerator = terms.accelerated(obj, _accelerated, prepare)
    if accelerator is not None and isinstance(obj, AcceleratedRunnable):
        accelerator = obj.accelerator
    if isinstance(obj, Embeddings):
        return LangChainServedEmbeddings(fast, accelerator)
    inputs = terms.inputs
    if isinstance(obj, BaseChatModel):
        return LangChainServedModel(fast, accelerator)
    if is_graph(obj):
        return LangGraphServed(fast, accelerator, inputs or _graph_inputs(obj))
    return LangChainServedChain(fast, accelerator, inputs)


def _accelerated(obj: Any, accelerator: Accelerator) -> Any:
    """Return an object accelerated; one that is already keeps its accelerator."""
    if isinstance(obj, AcceleratedRunnable):
        return obj
    return accelerate(obj, accelerator=accelerator)


def _graph_inputs(graph: Any) -> tuple[str, ...]:
    # Not its JSON schema: pydantic makes none of typing's TypedDict before Python 3.12.
    fields = [name for name in graph.channels if not name.startswith(("__", "branch:"))]
    if MESSAGES not in fields:
        raise ConfigError(
            "nothing says which values of the graph's state a client may set",
            where="--input",
            valid=", ".join(fields) or "names of the state",
        )
    return (MESSAGES,)


class LangChainServedEmbeddings:
    """An embeddings object."""

    def __init__(self, embeddings: Embeddings, accelerator: Accelerator | None) -> None:
        self._embeddings, self.accelerator = embeddings, accelerator

    async def embed(self, texts: Sequence[str], role: EmbeddedRole) -> Any:
        """Return a vector for each text."""
        if role == "document":
            return await self._embeddings.aembed_documents(list(texts))
        return [await self._embeddings.aembed_query(text) for text in texts]


class LangChainServedChain:
    """A runnable: it takes one text, or a mapping with the declared inputs."""

    def __init__(
        self, runnable: Any, accelerator: Accelerator | None, inputs: tuple[str, ...] | None
    ) -> None:
        self._runnable, self.accelerator = runnable, accelerator
        self._is_mapping = inputs is not None
        self._streams_answer = streams_its_answer(runnable)
        self.inputs = inputs or (TEXT,)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        return _answer(await self._runnable.ainvoke(self._input(values)))

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield text as the runnable streams it; what is no text is a step."""
        usage = None
        chunks: Any = self._runnable.astream(self._input(values))
        async with aclosing(chunks):
            async for chunk in chunks:
                usage = _with_usage(usage, chunk)
                piece = _piece(chunk)
                if piece is not None:
                    yield piece
        if usage is not None:
            yield ServedPiece(usage=usage)

    def stream_answer(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield a language model's text as it is made; any other result as a whole."""
        if self._streams_answer:
            return self.stream(values, deadline_s)
        return whole_answer(self, values, deadline_s)

    def _input(self, values: Mapping[str, Any]) -> Any:
        if not self._is_mapping:
            return values[TEXT]
        return {
            name: convert_to_messages(value) if name == MESSAGES else value
            for name, value in values.items()
        }


class LangChainServedModel(LangChainServedChain):
    """A chat model, which takes the messages of a chat."""

    def __init__(self, model: Any, accelerator: Accelerator | None) -> None:
        super().__init__(model, accelerator, (MESSAGES,))

    def _input(self, values: Mapping[str, Any]) -> Any:
        return convert_to_messages(values[MESSAGES])


class LangGraphServed(LangChainServedChain):
    """A compiled LangGraph: a chat's answer is its last message, a stream has steps and text."""

    def __init__(
        self, graph: Any, accelerator: Accelerator | None, inputs: tuple[str, ...]
    ) -> None:
        super().__init__(graph, accelerator, inputs)
        self._answering = answering_nodes(graph)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the graph's output; its text is that of the last message if it has messages."""
        return _graph_answer(await self._runnable.ainvoke(self._input(values)))

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield what each node wrote as a step, and the text of its models as it is made."""
        async with aclosing(self._events(values, "messages", "updates")) as events:
            async for mode, event in events:
                if mode == "updates":
                    yield ServedPiece(step=event)
                elif isinstance(event[0], AIMessage) and event[0].text:
                    yield ServedPiece(event[0].text)

    async def stream_answer(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield the text of the node that answers as it is made, then what else the answer has.

        Raises:
            EngineOutputError: the graph's answer does not begin with what was sent of it.
        """
        output, sent, step, running = None, "", list[str](), set[str]()
        async with aclosing(self._events(values, "values", "messages", "tasks")) as events:
            async for mode, event in events:
                if mode == "values":
                    output = event
                elif mode == "tasks" and "triggers" not in event:
                    running.discard(event["id"])
                elif mode == "tasks":  # all tasks of a step begin before any of them ends
                    step = [*(step if running else []), event["name"]]
                    running.add(event["id"])
                elif step == [event[1].get("langgraph_node")] and step[0] in self._answering:
                    text = event[0].text if isinstance(event[0], AIMessage) else ""
                    sent += text
                    yield ServedPiece(text)
        answer = _graph_answer(output)
        if not answer.text.startswith(sent):
            raise EngineOutputError(
                "the graph's answer is not what its node was streaming", where=", ".join(step)
            )
        yield ServedPiece(answer.text[len(sent) :], usage=answer.usage)

    def _events(self, values: Mapping[str, Any], *modes: str) -> Any:
        graph = self._runnable
        keys = graph.output_channels if "values" in modes else None  # as invoked
        return graph.astream(self._input(values), stream_mode=list(modes), output_keys=keys)


def _graph_answer(output: Any) -> ServedAnswer:
    said = output.get(MESSAGES) if isinstance(output, Mapping) else None
    try:
        last = convert_to_messages([said[-1]])[0] if said else None
    except (NotImplementedError, ValueError, TypeError, LookupError):
        last = None  # what the program calls messages are none
    if last is None:
        return ServedAnswer(output, as_answer_text(output))
    return ServedAnswer(output, last.text, _usage_of(last))


def _answer(output: Any) -> ServedAnswer:
    if isinstance(output, BaseMessage):
        return ServedAnswer(output.text, output.text, _usage_of(output))
    return ServedAnswer(output, as_answer_text(output))


def _piece(chunk: Any) -> ServedPiece | None:
    if isinstance(chunk, BaseMessage):
        chunk = chunk.text
    if isinstance(chunk, str):
        return ServedPiece(chunk) if chunk else None
    return ServedPiece(step=chunk)


def _with_usage(usage: ServedUsage | None, chunk: Any) -> ServedUsage | None:
    """Return the tokens of an answer with those that another chunk of it counts."""
    more = _usage_of(chunk)
    if usage is None or more is None:
        return usage or more
    return ServedUsage(
        usage.prompt_tokens + more.prompt_tokens, usage.completion_tokens + more.completion_tokens
    )


def _usage_of(message: Any) -> ServedUsage | None:
    known = getattr(message, "usage_metadata", None)
    if not known:
        return None
    return ServedUsage(known["input_tokens"], known["output_tokens"])
