"""LangChain objects as ``rag-accel serve`` has them answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.runnables import Runnable

from langchain_rag_accel.accelerate import accelerate
from langchain_rag_accel.runnables import AcceleratedRunnable
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
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
)
from rag_accel_adapters.langchain.langgraph_parts import is_graph


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
    fast: Any = obj
    if isinstance(obj, AcceleratedRunnable) and not terms.plain:
        accelerator = obj.accelerator
    else:
        fast, accelerator = terms.accelerated(obj, accelerate)
    if isinstance(obj, Embeddings):
        return LangChainServedEmbeddings(fast, accelerator)
    inputs = terms.inputs
    if isinstance(obj, BaseChatModel):
        return LangChainServedModel(fast, accelerator)
    if is_graph(obj):
        return LangGraphServed(fast, accelerator, inputs or _graph_inputs(obj))
    return LangChainServedChain(fast, accelerator, inputs)


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
        self.inputs = inputs or (TEXT,)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return what the runnable returns."""
        return _answer(await self._runnable.ainvoke(self._input(values)))

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield text as the runnable streams it; what is no text is a step."""
        usage = None
        chunks: Any = self._runnable.astream(self._input(values))
        async with aclosing(chunks):
            async for chunk in chunks:
                usage = _usage_of(chunk) or usage
                piece = _piece(chunk)
                if piece is not None:
                    yield piece
        if usage is not None:
            yield ServedPiece(usage=usage)

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

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the graph's output; its text is that of the last message if it has messages."""
        output = await self._runnable.ainvoke(self._input(values))
        said = output.get(MESSAGES) if isinstance(output, Mapping) else None
        if not said:
            return ServedAnswer(output, as_answer_text(output))
        return ServedAnswer(output, said[-1].text, _usage_of(said[-1]))

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield what each node wrote as a step, and the text of its models as it is made."""
        events: Any = self._runnable.astream(
            self._input(values), stream_mode=["messages", "updates"]
        )
        async with aclosing(events):
            async for mode, event in events:
                if mode == "updates":
                    yield ServedPiece(step=event)
                elif isinstance(event[0], AIMessage) and event[0].text:
                    yield ServedPiece(event[0].text)


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


def _usage_of(message: Any) -> ServedUsage | None:
    known = getattr(message, "usage_metadata", None)
    if not known:
        return None
    return ServedUsage(known["input_tokens"], known["output_tokens"])
