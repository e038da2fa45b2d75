"""LlamaIndex' retriever of a property graph, by words of a model and by vectors, plain and ours.

The model is a table from questions to the names in them, and so answers at once: what is measured
is what a program does beside its model. Both arms ask one store object, since LlamaIndex' default
store lists its triplets in the order of a set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.graph_stores.types import VECTOR_SOURCE_KEY
from llama_index.core.indices.property_graph import (
    LLMSynonymRetriever,
    PGRetriever,
    VectorContextRetriever,
)
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore

from bench.graph.property_graph import DEPTH
from bench.measure import Pairs, alternate
from rag_accel.sample import GraphQuestion

Shown = tuple[tuple[str, type, float | None], ...]


class NamingLLM(CustomLLM):
    """A model that gives the names in a question, whatever it is asked about it."""

    names: Mapping[str, tuple[str, ...]]

    @property
    def metadata(self) -> LLMMetadata:
        """Return the limits of the model."""
        return LLMMetadata(context_window=4096, num_output=64)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Give the names that stand in the table for the question at the end of the prompt."""
        question = prompt.rpartition("QUERY: ")[2].partition("\n")[0]
        return CompletionResponse(text="^".join(self.names[question]))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        """Give the names as one piece."""
        yield self.complete(prompt, formatted)


class NamedRetriever(LLMSynonymRetriever):
    """Takes names as the model writes them: those of Python are not capitalised."""

    def _parse_llm_output(self, output: str) -> list[str]:
        return output.split("^")


def graph_program(
    store: Any,
    vectors: SimpleVectorStore | None,
    model: BaseEmbedding,
    questions: Sequence[GraphQuestion],
) -> PGRetriever:
    """Return a retriever by names and by vectors, two hops from each entity found."""
    llm = NamingLLM(names={one.text: one.seeds for one in questions})
    return PGRetriever(
        [
            NamedRetriever(store, include_text=False, llm=llm, path_depth=DEPTH),
            VectorContextRetriever(
                store,
                include_text=False,
                embed_model=model,
                vector_store=vectors,
                path_depth=DEPTH,
            ),
        ]
    )


def named_vectors(names: Sequence[str], model: BaseEmbedding) -> SimpleVectorStore:
    """Return a vector store of some entities' names."""
    found = SimpleVectorStore()
    found.add(
        [
            TextNode(text=name, id_=name, metadata={VECTOR_SOURCE_KEY: name}, embedding=vector)
            for name, vector in zip(names, model.get_text_embedding_batch(list(names)), strict=True)
        ]
    )
    return found


@dataclass(frozen=True, slots=True)
class Wave:
    """How long programs took that were asked at once, and what each found."""

    seconds: float
    found: tuple[Shown, ...]


def ask_at_once(program: Any, questions: Sequence[GraphQuestion], loop: asyncio.Runner) -> Wave:
    """Ask every question at the same time on one loop."""

    async def all_at_once() -> list[list[NodeWithScore]]:
        return await asyncio.gather(*(program.aretrieve(one.text) for one in questions))

    started = time.perf_counter()
    found = loop.run(all_at_once())
    return Wave(time.perf_counter() - started, tuple(map(_shown, found)))


def _shown(nodes: Sequence[NodeWithScore]) -> Shown:
    return tuple((one.text, type(one.score), one.score) for one in nodes)


def unequal(waves: Pairs[Wave], tolerance: float) -> int:
    """Return how many questions found other nodes, or in another order than their scores'.

    Nodes whose scores differ by no more than ``tolerance`` may change places: texts embedded in a
    larger batch get vectors that differ in their last digits.
    """
    return sum(
        not _alike(plain, other, tolerance)
        for one, two in zip(waves.plain, waves.other, strict=True)
        for plain, other in zip(one.found, two.found, strict=True)
    )


def _alike(plain: Shown, other: Shown, tolerance: float) -> bool:
    if len(plain) != len(other) or [one[1] for one in plain] != [one[1] for one in other]:
        return False
    scores = ([one[2] or 0.0 for one in nodes] for nodes in (plain, other))
    same_texts = sorted(one[0] for one in plain) == sorted(one[0] for one in other)
    return same_texts and bool(np.allclose(*scores, rtol=0.0, atol=tolerance))


def waves(plain: Any, ours: Any, questions: Sequence[Sequence[GraphQuestion]]) -> Pairs[Wave]:
    """Ask each group of questions at once in both arms, in turn."""
    with asyncio.Runner() as loop:
        return alternate(
            lambda turn: ask_at_once(plain, questions[turn], loop),
            lambda turn: ask_at_once(ours, questions[turn], loop),
            len(questions),
        )
