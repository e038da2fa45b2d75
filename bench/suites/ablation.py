"""DOCSTRING"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.ablation import chains, embedding, interception, order, requests, searching
from bench.ablation.measured import Ablation, little_garbage
from bench.answers import too_many
from bench.depth_program import Sizes as ProgramSizes
from bench.results import SuiteResult, sizes_of
from bench.vectors import IndexSize
from langchain_rag_accel.demo.material import Material, default_cache, prepare
from rag_accel.engines.llm.emulated_table import H100_LIKE_1B, DeviceTable
from rag_accel.engines.max_sim import MaxSimScorer
from rag_accel.engines.rerank import PairScorer
from rag_accel.engines.retrieval.ivf_vectors import own_num_clusters
from rag_accel.errors import ConfigError

GROUPS = ("embedding", "chains", "requests", "order", "searching", "interception")
_PASSAGES = 128
_PASSAGE_WORDS = 60
_logger = logging.getLogger("bench.ablation")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        turns: runs of each arm under the load of callers.
        each: texts, or questions, of such a run for each caller.
        requests: of the passes and of what orders requests.
        program: of LangGraph programs.
        searching: of the large index.
        groups: what is measured at all.
    """

    turns: int
    each: int
    requests: requests.Sizes
    program: ProgramSizes
    searching: searching.Sizes
    groups: tuple[str, ...] = GROUPS


def _index(vectors: int) -> IndexSize:
    return IndexSize(vectors, own_num_clusters(vectors), 256)


QUICK = Sizes(
    turns=3,
    each=3,
    requests=requests.Sizes(documents=400, upload_words=1500, turns=3, together=3),
    program=ProgramSizes(turns=3, wide=48, answer_s=0.03),
    searching=searching.Sizes(_index(400_000)),
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


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes with ``only=GROUP`` taken into account.

    Raises:
        ConfigError: on another setting, or another group.
    """
    chosen = QUICK if quick else FULL
    only = settings.get("only", GROUPS[0])
    if settings.keys() - {"only"} or only not in GROUPS:
        raise ConfigError(
            *("unknown setting",),
            where="ablation",
            found=settings,
            valid="only=" + "|".join(GROUPS),
        )
    return replace(chosen, groups=(only,)) if settings else chosen


def run(
    quick: bool,
    sizes: Sizes | None = None,
    material: Material | None = None,
    scorer: PairScorer | None = None,
    table: DeviceTable = H100_LIKE_1B,
    cache: Path | None = None,
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    kept = cache or default_cache()
    found = material or prepare(None, None, kept, progress=sys.stderr.isatty())
    bench = _Bench(chosen, found, scorer, table, kept)
    with little_garbage():
        ablations = [one for group in chosen.groups for one in getattr(bench, group)()]
    rows = tuple(row for one in ablations for row in one.rows())
    return SuiteResult(
        *("ablation", rows, {one.key: one.gain for one in ablations}),
        emulated="requests" in chosen.groups,
        scripted=not {"order", "interception"}.isdisjoint(chosen.groups),
        sizes=sizes_of(chosen) | {"table": table.name},
        wrong=too_many(rows, "different_answers"),
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """Measure each group of mechanisms by its name."""

    sizes: Sizes
    material: Material
    scorer: PairScorer | None
    table: DeviceTable
    cache: Path

    def embedding(self) -> list[Ablation]:
        passages = [_cut(one.text) for one in self.material.documents[:_PASSAGES]]
        texts = embedding.Texts(self.material.questions, passages)
        return embedding.measure(
            self.material.embeddings, texts, self.sizes.turns, self.sizes.each
        )

    def chains(self) -> list[Ablation]:
        return chains.measure(self.material, self.sizes.turns, self.sizes.each)

    def requests(self) -> list[Ablation]:
        scorer = self.scorer or MaxSimScorer(self.material.embeddings._client)
        sizes = self.sizes.requests
        with requests.opened(self.material, scorer, self.table, sizes) as setting:
            return requests.measure(setting, sizes)

    def order(self) -> list[Ablation]:
        return order.measure(self.sizes.program)

    def searching(self) -> list[Ablation]:
        return searching.measure(self.sizes.searching, self.cache)

    def interception(self) -> list[Ablation]:
        return interception.measure(self.sizes.turns)


def _cut(text: str) -> str:
    return " ".join(text.split()[:_PASSAGE_WORDS])
