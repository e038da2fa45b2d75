"""Measure every group of mechanisms over the same documents, in one size or another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.ablation import chains, embedding, fixed_cost, interception, order, requests, searching
from bench.ablation.measured import Ablation
from bench.depth_program import Sizes as ProgramSizes
from bench.emulated.table import DeviceTable
from bench.vectors import IndexSize
from rag_accel.engines.rerank.engine import PairScorer
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.engines.retrieval.vectors.ivf import own_num_clusters
from rag_accel_demo.material import Material

_PASSAGES = 128
_PASSAGE_WORDS = 60
_logger = logging.getLogger("bench.ablation")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        turns: runs of each arm under the load of callers.
        each: texts, or questions, of such a run for each caller.
        requests: of the passes and of what orders requests.
        program: of LangGraph programs.
        searching: of the large index.
        fixed_cost_each: texts of a run for each caller of an engine of a fixed cost.
        no_op_each: calls of a run for each caller of a leaf that does nothing.
        groups: what is measured at all; all where it is empty.
    """

    turns: int
    each: int
    requests: requests.Sizes
    program: ProgramSizes
    searching: searching.Sizes
    fixed_cost_each: int = 12
    no_op_each: int = 4
    groups: tuple[str, ...] = ()


def _index(vectors: int) -> IndexSize:
    return IndexSize(vectors, own_num_clusters(vectors), 256)


QUICK = Sizes(
    turns=3,
    each=2,
    requests=requests.Sizes(documents=200, upload_words=600, turns=3, together=3),
    program=ProgramSizes(turns=3, wide=48, answer_s=0.03),
    searching=searching.Sizes(_index(200_000)),
)
FULL = Sizes(
    turns=15,
    each=6,
    requests=requests.Sizes(documents=400, upload_words=3000, turns=15, together=11),
    program=ProgramSizes(turns=25),
    searching=searching.Sizes(
        _index(1_000_000), turns={1: 301, 16: 75, 64: 31}, caller_turns=11, searches=512
    ),
)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of mechanisms, measured over what they share."""

    sizes: Sizes
    material: Material
    scorer: PairScorer | None
    table: DeviceTable
    cache: Path

    def measure(self, group: str) -> list[Ablation]:
        """Measure one group by its name."""
        started = time.monotonic()
        found = MEASURES[group](self)
        _logger.info("%s took %.0f s", group, time.monotonic() - started)
        return found

    def embedding(self) -> list[Ablation]:
        """Measure concurrent callers of embeddings."""
        passages = [_cut(one.text) for one in self.material.documents[:_PASSAGES]]
        texts = embedding.Texts(self.material.questions, passages)
        return embedding.measure(self.material.embeddings, texts, self.sizes.turns, self.sizes.each)

    def chains(self) -> list[Ablation]:
        """Measure concurrent callers of the demo's chain."""
        return chains.measure(self.material, self.sizes.turns, self.sizes.each)

    def requests(self) -> list[Ablation]:
        """Measure graphs whose model is emulated."""
        scorer = self.scorer or MaxSimScorer(self.material.embeddings._client)
        sizes = self.sizes.requests
        with requests.opened(self.material, scorer, self.table, sizes) as setting:
            return requests.measure(setting, sizes)

    def order(self) -> list[Ablation]:
        """Measure LangGraph programs."""
        return order.measure(self.sizes.program)

    def searching(self) -> list[Ablation]:
        """Measure searches of a large index."""
        return searching.measure(self.sizes.searching, self.cache)

    def fixed_cost(self) -> list[Ablation]:
        """Measure what brings callers into one step, and what need not wait for one."""
        return fixed_cost.measure(self.sizes.turns, self.sizes.fixed_cost_each)

    def interception(self) -> list[Ablation]:
        """Measure leaves that do nothing, or sleep."""
        return interception.measure(self.sizes.turns, self.sizes.no_op_each)


MEASURES: Mapping[str, Callable[[Groups], list[Ablation]]] = {
    "embedding": Groups.embedding,
    "chains": Groups.chains,
    "requests": Groups.requests,
    "order": Groups.order,
    "searching": Groups.searching,
    "fixed_cost": Groups.fixed_cost,
    "interception": Groups.interception,
}


def _cut(text: str) -> str:
    return " ".join(text.split()[:_PASSAGE_WORDS])
