"""The ``RAGraph`` with any of its mechanisms, and without the others.

An arm is a set of mechanisms. What it lacks is what a user would have in its place: functions that
embed by ``encode`` and answer by ``generate``, the models on torch, a batch of one request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.arms import bench_accelerator
from bench.graph.pruning import FAN_OUT, MAX_PATHS, PathQuery, candidates
from bench.local_llm.answers import Setting
from bench.together.arms import Arm, Mechanism
from bench.together.material import SYSTEM, Asked, Material
from bench.together.programs import HOPS, filled, generated
from rag_accel.config import EmbeddingRuntime
from rag_accel.engine_api import Document
from rag_accel.engines import (
    DocumentIndex,
    IndexSpec,
    LocalLLM,
    ProcessMember,
    RerankEngine,
    SentenceTransformerEngine,
)
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.graph import END, START, RAGraph
from rag_accel.passes.manager import passes_named
from rag_accel.requests.prompts import as_text
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

#: Cuts the work of one request as well, which a batch of one would cut into single texts.
_CUTTING = "split_nodes"


@dataclass(frozen=True, slots=True)
class Answers:
    """How a language model answers.

    Args:
        tokens: most of an answer.
        pool_mib: MiB of keys and values of each local engine. All arms are open at a time, and what
            nine engines keep by default would be most of a small machine's memory.
    """

    tokens: int
    pool_mib: int


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of what is found stands in a prompt: documents found, and kept, and facts."""

    found: int
    documents: int
    facts: int


class Program:
    """The graph of one arm, compiled for an accelerator of its own.

    Args:
        has: its mechanisms.
        material: what it is made of.
        kept: what stands in its prompts.
        answers: how its language model answers.
        setting: the callers and torch threads at which plain models answer soonest.
        stack: closes its accelerator.
    """

    def __init__(
        self,
        has: Arm,
        material: Material,
        kept: Kept,
        answers: Answers,
        setting: Setting,
        stack: ExitStack,
    ) -> None:
        self._has = has
        self._material = material
        self._kept = kept
        self._answers = answers
        self._setting = setting
        self._turn = threading.Semaphore(setting.callers)
        accelerator = stack.enter_context(bench_accelerator(**self._options()))
        for name, engine in self._engines().items():
            accelerator.add_engine(name, engine)
        self._graph = accelerator.compile(self._workflow())

    def ask(self, asked: Asked) -> str:
        """Return the answer."""
        return self._graph.run(input=asked.text, entities=[asked.entity])

    @contextmanager
    def threads(self, users: int) -> Iterator[None]:
        """Set torch's threads where a plain model answers; our engines set their own.

        Callers share the cores as is fastest for many; one user has them all.
        """
        plain = Mechanism.LOCAL_ENGINE not in self._has
        threads = self._setting.threads if users > 1 else usable_cores()
        with torch_threads(threads) if plain else nullcontext():
            yield

    def _options(self) -> Mapping[str, Any]:
        chosen = "default" if Mechanism.PASSES in self._has else "none"
        if Mechanism.BATCHING in self._has:
            return {"passes": chosen}
        # Named, none of them is left to an estimate; those that are estimated overlap steps.
        passes = (passes_named(chosen) or frozenset()) - {_CUTTING}
        return {"max_batch": 1, "passes": ",".join(sorted(passes)) or "none"}

    def _engines(self) -> Mapping[str, Any]:
        material, has = self._material, self._has
        runtime: EmbeddingRuntime = "auto" if Mechanism.COMPILED in has else "torch"
        embedder = SentenceTransformerEngine(material.encoder, runtime=runtime)
        index = DocumentIndex(IndexSpec(material.vectors.shape[1]))
        index.add(_documents(material), material.vectors)
        found: dict[str, Any] = {
            "embedder": embedder,
            "index": index,
            "reranker": RerankEngine(MaxSimScorer(material.encoder, runtime=runtime)),
        }
        if Mechanism.DEVICES in has:
            found["embedder"] = [embedder, ProcessMember(material.embedder, runtime=runtime)]
        if Mechanism.GRAPH_STAGE in has:
            found["graph"] = material.graph
        if Mechanism.LOCAL_ENGINE in has:
            reuse = "full" if Mechanism.REUSE in has else "exact"
            size = self._answers.pool_mib << 20
            found["llm"] = LocalLLM(
                *(material.model, material.tokenizer),
                kv_reuse=reuse,
                pool_bytes=size,
                chunk_bytes=size,
            )
        return found

    def _workflow(self) -> RAGraph:
        """Return the graph: two retrievals, a reranking of the documents, an answer of all."""
        kept, graph = self._kept, RAGraph(("input", "entities"))
        graph.add_retrieval("search", top_k=kept.found, output="found")
        if Mechanism.GRAPH_STAGE in self._has:
            graph.add_graph_retrieval(
                "facts",
                keywords="entities",
                seeds=1,
                hops=HOPS,
                top_k=kept.facts,
                fan_out=FAN_OUT,
                max_paths=MAX_PATHS,
            )
        else:
            graph.add_function("facts", self._facts, ("input", "entities"))
        graph.add_rerank("best", documents="found", top_n=kept.documents, output="docs")
        if Mechanism.LOCAL_ENGINE in self._has:
            prompt = filled("{docs}\n\n{facts}", "{input}")
            graph.add_generation("answer", prompt, system=SYSTEM, max_tokens=self._answers.tokens)
        else:
            graph.add_function("answer", self._answer, ("input", "docs", "facts"))
        graph.add_edge(START, "search").add_edge("search", "best").add_edge(START, "facts")
        return graph.add_edge(["best", "facts"], "answer").add_edge("answer", END)

    def _facts(self, question: str, entities: Sequence[str]) -> list[Document]:
        """Return the paths nearest to a question, each embedded by ``encode``."""
        material = self._material
        paths = candidates(material.graph, PathQuery(question, tuple(entities)), HOPS)
        with self._turn:
            vector, *others = material.embed([question, *paths])
        order = np.argsort(-(np.asarray(others) @ vector), kind="stable")[: self._kept.facts]
        return [Document(str(place), paths[place]) for place in order.tolist()]

    def _answer(self, question: str, docs: Any, facts: Any) -> str:
        with self._turn:
            prompt = filled(f"{as_text(docs)}\n\n{as_text(facts)}", question)
            return generated(self._material, prompt, self._answers.tokens)


def _documents(material: Material) -> list[Document]:
    return [Document(str(place), text) for place, text in enumerate(material.texts)]


@contextmanager
def opened(
    wanted: Mapping[str, Arm],
    material: Material,
    kept: Kept,
    answers: Answers,
    setting: Setting,
) -> Iterator[Mapping[str, Program]]:
    """Give the program of each arm; their accelerators are closed behind the block."""
    with ExitStack() as stack:
        yield {
            name: Program(has, material, kept, answers, setting, stack)
            for name, has in wanted.items()
        }
