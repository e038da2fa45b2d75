"""Serve five workflows at once, with an emulated model, and see what rate each system sustains.

One-shot, HyDE, multistep, IRG and RECOMP (HedraRAG section 6) are mixed 1:1 and arrive as a Poisson
process, each with a question of its own; k is 5. The systems are three (``bench.mixed.systems``):
``langchain``, ``staged`` (a simple serving baseline of ours) and ``ours`` (the ``Server``).
``staged_sq8`` is ``staged`` over FAISS's own 8-bit IVF, which answers approximately. Texts that are
generated and searched for are fixed, so that all systems do the same; ``identical_ids`` counts the
requests whose last search found the same documents in the same order as langchain's.

The model is emulated: its times are modelled, and all systems share one device: in the
retrieval-bound setting four that serve a small model behind a balancer, so that searching stays the
bottleneck, in the device-bound one a single one with a larger model. The corpus is real
passages extended by a mixture that is fitted to them (``bench.corpus``), under real MiniLM vectors
of the real texts that are searched for; these vectors are looked up, not computed. All systems but
``staged_sq8`` read the same inverted lists in memory; ours keeps codes beside them, which it makes
in the warm-up. Python's garbage collector leaves alone what
is there before the first request: millions of documents would stop every system for seconds.

A system's limit is the highest rate at which the 95th percentile of a request's latency is at most
3 times its own unloaded one. Rates are tried one after the other (``bench.mixed.sweep``); every
try is a row. Requests that arrive in the warm-up are not counted; whoever is given up after the
drain counts with the time it had waited. ``cpu_utilisation`` is the process's CPU time over cores
and time, ``device_utilisation`` the device's work over its most.

Ratios:
    rate_vs_langchain: limit of ours / limit of langchain, in requests/s.
    rate_vs_staged: limit of ours / limit of staged, in requests/s.
    p50_vs_langchain_at_1_5x: median latency langchain / median latency ours, both at 1.5 times
        the limit of langchain, over the same window; past its limit langchain's grows with the
        window.
    search_latency_vs_staged_80: mean latency of a search staged / ours, at 80 % of the limit of
        staged.
    search_latency_vs_staged_50: mean latency of a search staged / ours, at 50 % of the limit of
        staged.
    device_bound: median latency langchain / median latency ours where the device is the bottleneck
        (a lighter index, a slower device); the lowest over the loads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.corpus import Floats, Passages, kept_vectors, real_passages
from bench.mixed.index_files import LargeIndex, open_index
from bench.mixed.load import MixedLoad, Window, run_load
from bench.mixed.rows import load_rows, same_rows, unloaded_rows
from bench.mixed.sizes import FULL, QUICK, Setting, Sizes
from bench.mixed.sweep import find_limit
from bench.mixed.systems import RagAccelSystem, StagedSystem, System
from bench.mixed.trace import Trace, make_trace
from bench.results import Row, SuiteResult
from langchain_rag_accel.demo.material import default_cache
from rag_accel.engines.llm.emulated import EmulatedDevice

TRACE_SEED = 7

_logger = logging.getLogger("bench.mixed")


@dataclass(frozen=True, slots=True)
class Material:
    """Hold where texts, vectors and files come from; tests give small ones."""

    passages: Passages
    embed: Callable[[Sequence[str]], Floats]
    cache: Path


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or _real_material()
    trace = make_trace(given.passages, chosen.requests, TRACE_SEED)
    found = _Found()
    for setting, measure in ((chosen.light, _measure_light), (chosen.heavy, _measure_heavy)):
        _in_setting(setting, measure, chosen, given, trace, found)
    return SuiteResult("mixed_workflows", tuple(found.rows), found.ratios, emulated=True)


@dataclass(slots=True)
class _Found:
    rows: list[Row] = field(default_factory=list[Row])
    ratios: dict[str, float] = field(default_factory=dict[str, float])


class _Bench:
    """Put the systems of one setting under loads."""

    def __init__(
        self,
        setting: Setting,
        sizes: Sizes,
        trace: Trace,
        index: LargeIndex,
        vectors: dict[str, Floats],
    ) -> None:
        self.setting = setting
        self.sizes = sizes
        self.index = index
        self.device = EmulatedDevice(setting.table, respond=trace.respond)
        self._trace = trace
        self._vectors = vectors

    def langchain(self) -> System:
        # Importing LangChain's store warns of the package it is in; whoever only looks at suites
        # should not see that.
        from bench.mixed.langchain_system import LangChainSystem

        return LangChainSystem(self.index, self._vectors, self.device)

    def ours(self) -> System:
        return RagAccelSystem(self.index, self._vectors, self.device)

    def staged(self) -> System:
        faiss_index = self.index.stock_index(parallel_mode=1)
        return StagedSystem("staged", self.index, faiss_index, self._vectors, self.device)

    def staged_sq8(self) -> System:
        faiss_index = self.index.quantised_index(parallel_mode=1)
        return StagedSystem("staged_sq8", self.index, faiss_index, self._vectors, self.device)

    async def load(self, system: System, rate_rps: float, window: Window) -> MixedLoad:
        """Run one load; the garbage of the one before is collected first."""
        gc.collect()
        found = await run_load(system, self._trace.requests, rate_rps, window, self.device)
        _logger.info(
            "%s, %s: %.2f/s: p50 %.2f s, p95 %.2f s, search %.0f ms, cpu %.2f, device %.2f",
            *(self.setting.name, system.name, rate_rps, found.p50_s, found.p95_s),
            *(1000 * found.mean_search_s, found.cpu_utilisation, found.device_utilisation),
        )
        return found

    async def unloaded(self, systems: Sequence[System], found: _Found) -> dict[str, MixedLoad]:
        """Run every system unloaded, after a warm-up, and compare what they answered."""
        sizes, loads = self.sizes, dict[str, MixedLoad]()
        warm_rps = sizes.warm_rps
        if self.setting is sizes.light:  # where the device is the bottleneck, it takes far less
            warm_rps = 2 * max(sizes.light_rps)
        for system in systems:
            await self.load(system, warm_rps, sizes.warm)
            loads[system.name] = await self.load(system, sizes.unloaded_rps, sizes.unloaded)
        for name, load in loads.items():
            found.rows += unloaded_rows(name, self.setting.name, load)
            found.rows += same_rows(name, self.setting.name, load, loads["langchain"])
        return loads

    async def limit(
        self, system: System, unloaded: MixedLoad, start_rps: float, found: _Found
    ) -> float:
        """Return the highest rate at which a system keeps the objective."""
        sizes, objective_s = self.sizes, self.sizes.objective * unloaded.p95_s

        async def meets(rate_rps: float) -> bool:
            # A drain as long as the objective settles it: whoever is left has missed it.
            drain_s = max(sizes.window.drain_s, objective_s)
            load = await self.load(system, rate_rps, replace(sizes.window, drain_s=drain_s))
            workload = f"{self.setting.name}, sweep, {rate_rps:.2f}/s"
            found.rows += load_rows(system.name, workload, load)
            return load.p95_s <= objective_s

        limit = await find_limit(meets, start_rps, precision=sizes.precision, probes=sizes.probes)
        found.rows.append(Row(system.name, self.setting.name, "limit_rps", limit, None, 1))
        return limit

    async def pair(
        self, one: System, other: System, rate_rps: float, name: str, found: _Found
    ) -> tuple[MixedLoad, MixedLoad]:
        """Put two systems under the same load, one after the other."""
        loads = [await self.load(system, rate_rps, self.sizes.window) for system in (one, other)]
        for system, load in zip((one, other), loads, strict=True):
            found.rows += load_rows(system.name, f"{self.setting.name}, {name}", load)
        return loads[0], loads[1]


def _in_setting(
    setting: Setting,
    measure: Callable[[_Bench, _Found], Coroutine[Any, Any, None]],
    sizes: Sizes,
    material: Material,
    trace: Trace,
    found: _Found,
) -> None:
    """Measure in one setting; its index is gone from memory afterwards."""
    index = open_index(material.cache, material.passages, setting.index)
    projected = index.projection.apply(material.embed(trace.queries))
    vectors = dict(zip(trace.queries, projected, strict=True))
    bench = _Bench(setting, sizes, trace, index, vectors)
    with bench.device, _frozen_garbage():
        asyncio.run(measure(bench, found))


async def _measure_heavy(bench: _Bench, found: _Found) -> None:
    with ExitStack() as stack:
        makers = (bench.langchain, bench.staged, bench.staged_sq8, bench.ours)
        systems = {one.name: one for one in (stack.enter_context(closing(m())) for m in makers)}
        langchain, staged, ours = systems["langchain"], systems["staged"], systems["ours"]
        unloaded = await bench.unloaded(list(systems.values()), found)
        limits: dict[str, float] = {}
        start = bench.sizes.start_rps
        for name in bench.sizes.swept:
            start = limits[name] = await bench.limit(systems[name], unloaded[name], start, found)
        found.ratios["rate_vs_langchain"] = limits["ours"] / limits["langchain"]
        found.ratios["rate_vs_staged"] = limits["ours"] / limits["staged"]
        rate = 1.5 * limits["langchain"]
        plain, fast = await bench.pair(langchain, ours, rate, "1.5 x limit of langchain", found)
        found.ratios["p50_vs_langchain_at_1_5x"] = plain.p50_s / fast.p50_s
        for percent in (80, 50):
            rate = limits["staged"] * percent / 100
            name = f"{percent} % of the limit of staged"
            plain, fast = await bench.pair(staged, ours, rate, name, found)
            found.ratios[f"search_latency_vs_staged_{percent}"] = (
                plain.mean_search_s / fast.mean_search_s
            )


async def _measure_light(bench: _Bench, found: _Found) -> None:
    with closing(bench.langchain()) as langchain, closing(bench.ours()) as ours:
        await bench.unloaded([langchain, ours], found)
        ratios: list[float] = []
        for rate in bench.sizes.light_rps:
            plain, fast = await bench.pair(langchain, ours, rate, f"{rate:.2f}/s", found)
            ratios.append(plain.p50_s / fast.p50_s)
        found.ratios["device_bound"] = min(ratios)


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _real_material() -> Material:
    cache = default_cache() / "bench"
    return Material(real_passages(cache), lambda texts: kept_vectors(cache, texts), cache)
