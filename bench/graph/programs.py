"""LlamaIndex' retriever of a property graph, by words of a model and by vectors, plain and ours.

The model is a table from questions to the names in them, and so answers at once: what is measured
is what a program does beside its model. Both arms ask one store object, since LlamaIndex' default
store lists its triplets in the order of a set, and a database cuts them off where it likes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

from bench.graph.property_graph import DEPTH, entity_names, minilm
from bench.measure import Pairs, alternate, ratios
from bench.paired import in_ms
from bench.results import Row, median_row, row_of
from llama_index_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.sample import GraphQuestion, chain_questions
from rag_accel.sample.source_triples import Triple
from rag_accel_demo import uniform_stream

PLAIN, OURS = "plain", "accelerated"
#: between scores of nodes that may change places
TOLERANCE = 1e-5
#: for a model to be compiled
PATIENCE_S = 300.0
#: waves until our indexes are made
_WARM_UP = 3
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
    vectors: SimpleVectorStore,
    model: BaseEmbedding,
    questions: Sequence[GraphQuestion],
) -> PGRetriever:
    """Return a retriever by names and by vectors, two hops from each entity found."""
    by_vectors = VectorContextRetriever(
        store, include_text=False, embed_model=model, vector_store=vectors, path_depth=DEPTH
    )
    return PGRetriever([_by_names(store, questions), by_vectors])


def names_program(store: Any, questions: Sequence[GraphQuestion]) -> PGRetriever:
    """Return a retriever by names alone, two hops from each entity found."""
    return PGRetriever([_by_names(store, questions)])


def _by_names(store: Any, questions: Sequence[GraphQuestion]) -> NamedRetriever:
    llm = NamingLLM(names={one.text: one.seeds for one in questions})
    return NamedRetriever(store, include_text=False, llm=llm, path_depth=DEPTH)


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
    """How long programs took that were asked at once, what each found, and the queries sent."""

    seconds: float
    found: tuple[Shown, ...]
    sent: int = 0


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


def _no_queries() -> int:
    return 0


def waves(
    plain: Any,
    ours: Any,
    questions: Sequence[Sequence[GraphQuestion]],
    sent: Callable[[], int] = _no_queries,
) -> Pairs[Wave]:
    """Ask each group of questions at once in both arms, in turn.

    ``sent`` gives how many queries were sent to a database until then.
    """
    with asyncio.Runner() as loop:

        def ask(program: Any, turn: int) -> Wave:
            before = sent()
            wave = ask_at_once(program, questions[turn], loop)
            return replace(wave, sent=sent() - before)

        return alternate(
            lambda turn: ask(plain, turn), lambda turn: ask(ours, turn), len(questions)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a graph.

    Args:
        triples: of the graph; the questions are about its entities.
        waves: of programs that ask at once.
        programs: in each wave.
        vectors: entities that have one, in the retriever's store; without any, it finds entities
            by names alone, and embeds nothing.
    """

    triples: Sequence[Triple]
    waves: int
    programs: int
    vectors: int


def asked_programs(store: Any, asked: Asked, sent: Callable[[], int] = _no_queries) -> Pairs[Wave]:
    """Ask questions of a store that holds the triples, in both arms; ``sent`` is as in ``waves``.

    Ours is what ``accelerate`` makes of the plain program, once it has its indexes and models.
    """
    programs = asked.programs
    stream = uniform_stream(chain_questions(asked.triples), asked.waves * programs, seed=4)
    program = _program(store, asked, stream)
    groups = [stream[at : at + programs] for at in range(0, len(stream), programs)]
    with Accelerator() as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        with asyncio.Runner() as loop:
            ask_at_once(program, groups[0][:1], loop)  # a wave of all takes it long
            for _ in range(_WARM_UP):
                ask_at_once(fast, groups[0], loop)
        wait_until_compiled(PATIENCE_S)
        return waves(program, fast, groups, sent)


def _program(store: Any, asked: Asked, questions: Sequence[GraphQuestion]) -> PGRetriever:
    if not asked.vectors:
        return names_program(store, questions)
    seeds = (name for one in questions for name in one.seeds)
    names = list(dict.fromkeys((*seeds, *entity_names(asked.triples))))[: asked.vectors]
    model = minilm()
    return graph_program(store, named_vectors(names, model), model, questions)


def times_ms(pairs: Pairs[Wave]) -> Pairs[float]:
    """Return the times of both arms in ms."""
    return pairs.map(lambda one: in_ms(one.seconds))


def program_rows(workload: str, pairs: Pairs[Wave]) -> list[Row]:
    """Return both arms, their ratio and the number of questions answered differently."""
    times = times_ms(pairs)
    num_questions = sum(len(wave.found) for wave in pairs.plain)
    return [
        row_of(PLAIN, workload, "latency_ms", times.plain),
        row_of(OURS, workload, "latency_ms", times.other),
        median_row("accelerated / plain", workload, "latency_ratio", ratios(times)),
        Row(OURS, workload, "different_answers", unequal(pairs, TOLERANCE), None, num_questions),
    ]
