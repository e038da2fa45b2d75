"""Measure answering over uploaded documents: expand, search each query, rerank, synthesise.

A request asks one question and, where the variant says so, uploads text of its own, which is cut,
embedded and searched with the rest. The question is expanded to three queries of 24 words, each
finds 16 passages, and the reranker keeps 3 of all; the answer is made by ``stuff``, ``tree`` (three
leaves, then one that combines them) or ``refine`` (a chain of three), 45 to 60 words each.
Documents, questions and uploads are real text, embedding is MiniLM and reranking is late
interaction over MiniLM, both computed here; the index is small, so searching is cheap. The model
is emulated (``h100_like_8b``): its times are modelled and its words made up, by a pure function of
the prompt. So equal answers mean that every step before gave the same; each row
``different_answers`` must be 0.

Arms, with the very same model, index, reranker and device, one request at a time in turn:

- sequential: a LangGraph program, one thing after another, ``invoke``;
- hand_parallel: a LangGraph program whose author used what it offers, ``ainvoke``: the upload
  beside the expansion, a branch for each search and for each leaf of a tree;
- ours: ``rag_accel.workflows.advanced_document_qa`` on an accelerator with all passes, unless
  ``RAG_ACCEL_PASSES`` says otherwise; uploads are embedded by the engine that embeds the queries,
  with the embeddings' own model;
- bound: not run but computed, see ``bench.research.advanced.bound``; from what the sequential arm's
  stages took and the device's table, with the cores as one lane. Scheduling alone cannot get below
  it; an engine that embeds an upload faster than LangChain's embeddings can.

The LangGraph arms run on the number of torch threads that serves them best. Single-flight is off.

Under load, requests of ``tree`` without upload arrive at random at a share of what the busier of
cores and device can take, the same number in every run: one at a time (Poisson, given how many
come), or 8 together (a program that asks for several users at once). The device then runs few
sequences at once and a query finds 4 passages, or nothing would ever queue for the device. A
latency counts from when the request was due, not from when it could be started. Both arms are ours.
In the blind one 1 ms of waiting outweighs a level of depth: after a few milliseconds depth counts
for nothing, and after 10 ms what was queued first goes before everything, whichever request it
belongs to. The quick form has one pair of runs.

Ratios:
    vs_hand_parallel_langgraph: against a LangGraph program made parallel by hand (branches, Send,
        ainvoke): hand_parallel p50 / ours p50 of a request's latency, tree with upload.
    vs_sequential: against a LangGraph program that does one thing after another: sequential p50 /
        ours p50 of a request's latency, tree with upload.
    worst_variant: against both LangGraph programs: the lowest of hand_parallel p50 / ours p50 and
        sequential p50 / ours p50 over all variants: stuff, tree and refine, each with and without
        upload.
    over_bound: against a bound that is computed, not run: ours p50 / its p50, tree with upload. It
        is the longest chain of device and CPU time of a request whose stages take what they took in
        the sequential program, one core lane, everything else hidden. Below 1 our stages were
        faster than its, above 1 something was not hidden.
    topology_vs_blind_together: against ours made blind to topology (1 ms of waiting outweighs a
        level of depth, so that work goes in the order in which it was queued, whatever request it
        belongs to): blind p50 / ours p50 of a request's latency from its due time under load, each
        within a run, 8 arriving together; median over pairs of runs.
    topology_vs_blind_single: against ours made blind to topology: blind p50 / ours p50 of a
        request's latency from its due time under load, each within a run, arriving one at a time;
        median over pairs of runs.
    topology_vs_blind: against ours made blind to topology: the lower of topology_vs_blind_together
        and topology_vs_blind_single.
    overhead_share: against nothing, ours alone: CPU time of the scheduler's thread, of starting a
        request (checks, lowering, passes) and of growth at branches / CPU time of the process for a
        request, tree with upload; median over requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.answers import too_many
from bench.emulated.table import H100_LIKE_8B, DeviceTable
from bench.garbage import little_garbage
from bench.measure import median
from bench.research.advanced.alone import (
    HAND_PARALLEL,
    LANGGRAPH_ARMS,
    SEQUENTIAL,
    Alone,
    Measured,
    spent_rows,
)
from bench.research.advanced.loaded import Loaded, run_loaded
from bench.research.advanced.ours import Ours, Spent
from bench.research.advanced.workload import LEADING, LOADED, VARIANTS, Variant, open_setting
from bench.results import SuiteResult, sizes_of
from langchain_rag_accel.demo.material import Material, prepare
from rag_accel.engines.rerank.engine import PairScorer
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.system.files import user_cache

#: ratios under load, and how many requests arrive together for each
_TOGETHER = {"topology_vs_blind_together": 8, "topology_vs_blind_single": 1}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        documents: passages that are indexed.
        upload_words: words that a request uploads, at least.
        repeats: requests of each variant and arm.
        warm_up: requests of each variant and arm before, which do not count.
        loaded_places: sequences the device runs at once under load.
        load_share: arrivals under load, as a share of what the busier of cores and device takes.
        loaded_requests: requests of a run under load.
        loaded_repeats: pairs of such runs.
    """

    documents: int
    upload_words: int
    repeats: int
    warm_up: int
    loaded_places: int
    load_share: float
    loaded_requests: int
    loaded_repeats: int


QUICK = Sizes(
    documents=500,
    upload_words=3000,
    repeats=3,
    warm_up=1,
    loaded_places=4,
    load_share=0.95,
    loaded_requests=32,
    loaded_repeats=1,
)
FULL = Sizes(
    documents=2500,
    upload_words=3000,
    repeats=30,
    warm_up=2,
    loaded_places=4,
    load_share=0.95,
    loaded_requests=80,
    loaded_repeats=7,
)


def run(
    quick: bool,
    sizes: Sizes | None = None,
    material: Material | None = None,
    scorer: PairScorer | None = None,
    table: DeviceTable = H100_LIKE_8B,
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    found = material or prepare(None, None, user_cache(), progress=sys.stderr.isatty())
    with (
        open_setting(
            found,
            scorer or MaxSimScorer(),
            table,
            documents=chosen.documents,
            upload_words=chosen.upload_words,
            loaded_places=chosen.loaded_places,
        ) as setting,
        little_garbage(),
    ):
        with asyncio.Runner() as runner, Ours.opened(setting, setting.device) as ours:
            alone = Alone(setting, ours, runner)
            measured = {
                variant: alone.measure(variant, chosen.repeats, chosen.warm_up)
                for variant in VARIANTS
            }
            spent = alone.count(chosen.repeats)
        loaded = {
            name: run_loaded(
                setting,
                measured[LOADED],
                together,
                share=chosen.load_share,
                requests=chosen.loaded_requests,
                repeats=chosen.loaded_repeats,
            )
            for name, together in _TOGETHER.items()
        }
    rows = [row for one in measured.values() for row in one.rows(table)]
    rows += [*spent_rows(spent), *(row for one in loaded.values() for row in one.rows())]
    return SuiteResult(
        *("advanced_rag", tuple(rows), _ratios(measured, spent, loaded, table)),
        emulated=True,
        sizes=sizes_of(chosen) | {"table": table.name},
        wrong=too_many(rows, "different_answers"),
    )


def _ratios(
    measured: Mapping[Variant, Measured],
    spent: Sequence[Spent],
    loaded: Mapping[str, Loaded],
    table: DeviceTable,
) -> dict[str, float]:
    return {
        "vs_hand_parallel_langgraph": measured[LEADING].gain(HAND_PARALLEL),
        "vs_sequential": measured[LEADING].gain(SEQUENTIAL),
        "worst_variant": min(one.gain(arm) for one in measured.values() for arm in LANGGRAPH_ARMS),
        "over_bound": measured[LEADING].over_bound(table),
        **{name: one.gain for name, one in loaded.items()},
        "topology_vs_blind": min(one.gain for one in loaded.values()),
        "overhead_share": median([one.share for one in spent]),
    }
