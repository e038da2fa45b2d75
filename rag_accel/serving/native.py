"""Objects of rag_accel itself as they are served: a RAGraph, and an accelerator's embedder."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.errors import ConfigError, GraphError, ServedRequestError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.option_inputs import bound, named_inputs
from rag_accel.graph.ragraph import RAGraph
from rag_accel.serving.plain_values import as_answer_text
from rag_accel.serving.served import (
    EmbeddedRole,
    ServedAnswer,
    ServedPiece,
    ServedProgram,
    ServingTerms,
)

_EMBEDDER = "embedder"


class ServedRAGraph:
    """A RAGraph on its accelerator."""

    def __init__(self, graph: RAGraph | FrozenRAGraph, accelerator: Accelerator) -> None:
        self._graph = graph.freeze()
        self._compiled = accelerator.compile(self._graph)  # says now what is wrong with it
        self.accelerator: Accelerator | None = accelerator
        optional = self._graph.optional
        self.inputs = tuple(str(name) for name in self._graph.inputs if name not in optional)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        """Return the value before END, with the retries and fallbacks of its stages.

        Raises:
            ServedRequestError: an option of a stage cannot have the value that the client gives.
        """
        self._check_options(values)
        found = await self._compiled.arun_counted(values, deadline_s=deadline_s)
        return ServedAnswer(
            found.output,
            as_answer_text(found.output),
            retries=found.retries,
            fallbacks=found.fallbacks,
        )

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        """Yield the answer as its last generation makes it. Raises as ``answer``."""
        self._check_options(values)
        texts: Any = self._compiled.astream_written(values, as_answer_text, deadline_s=deadline_s)
        async with aclosing(texts):
            async for text in texts:
                yield ServedPiece(text)

    stream_answer = stream

    def _check_options(self, values: Mapping[str, Any]) -> None:
        for stage in self._graph.stages:
            names = {name for _, name in named_inputs(stage)}
            try:
                if names:
                    bound(stage, values)
            except GraphError as error:
                raise ServedRequestError(
                    error.what,
                    status=422,
                    where=", ".join(sorted(names)),
                    found=error.found,
                    valid=error.valid,
                ) from None


class ServedAccelerator:
    """The embedder of an accelerator; its texts share steps with those of other work there."""

    def __init__(self, accelerator: Accelerator) -> None:
        found = accelerator.named_engine(_EMBEDDER)
        if found is None:
            raise ConfigError(
                "this accelerator has nothing to serve",
                valid="an Accelerator(embedder=...)",
                hint="serve a graph with it: a pair, or --accelerator",
            )
        self.accelerator: Accelerator | None = accelerator
        self._on, self._engine = accelerator, found

    def prepare(self, timeout_s: float) -> bool:
        """Do for the embedder what ``Accelerator.prepare`` does for the engines of a graph."""
        return self._on.prepare_engines(lambda: (self._engine.engine,), timeout_s)

    async def embed(self, texts: Sequence[str], role: EmbeddedRole) -> Any:
        """Return ``[len(texts), dim], float32``, or what a callable embedder gives."""
        call = self._engine.call
        if call is not None:
            made = await asyncio.to_thread(call, list(texts))
            return await made if inspect.isawaitable(made) else made
        step = self._on.options.max_batch
        batches = [TextBatch(tuple(texts[i : i + step]), role) for i in range(0, len(texts), step)]
        with self._on.request("served-embedder") as identity:
            works = [
                Work(self._engine.engine, PrimitiveKind.EMBEDDING, batch, len(batch.texts), batch)
                for batch in batches
            ]
            parts = await asyncio.gather(*(self._on.leaves.acompute(identity, w) for w in works))
        return np.concatenate(parts)


def serve_native(
    obj: Any, given: Accelerator | None, terms: ServingTerms
) -> ServedProgram | ServedAccelerator | None:
    """Return an object of rag_accel as it is served; None for any other.

    Raises:
        ConfigError, GraphError: it cannot be served like this.
    """
    if isinstance(obj, Accelerator):
        served_embedder = ServedAccelerator(obj)
        terms.preparations.append(served_embedder.prepare)
        return served_embedder
    if not isinstance(obj, RAGraph | FrozenRAGraph):
        return None
    if given is None:
        raise ConfigError(
            "a RAGraph is served with its accelerator",
            valid="a pair (graph, accelerator), or --accelerator module:name",
        )
    served = ServedRAGraph(obj, given)
    if terms.inputs is not None and set(terms.inputs) != set(served.inputs):
        raise ConfigError(
            "the inputs are not those of the graph",
            where="--input",
            found=", ".join(terms.inputs),
            valid=", ".join(served.inputs),
            hint="leave --input out",
        )
    terms.preparations.append(lambda timeout_s: given.prepare(obj, timeout_s=timeout_s))
    return served
