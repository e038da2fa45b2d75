"""Put the systems of one setting under loads, look for their limits and compare them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.corpus import Floats
from bench.emulated.device import EmulatedDevice
from bench.measure import median
from bench.research.mixed.expected import Expected
from bench.research.mixed.index_files import LargeIndex
from bench.research.mixed.load import MixedLoad, Window, run_load
from bench.research.mixed.rows import load_rows
from bench.research.mixed.sizes import Setting, Sizes
from bench.research.mixed.sweep import Bracket, find_limit
from bench.research.mixed.systems import RagAccelSystem, StagedSystem, System
from bench.research.mixed.trace import Trace
from bench.results import Row

_logger = logging.getLogger("bench.mixed")


@dataclass(slots=True)
class Found:
    """Rows and ratios."""

    rows: list[Row] = field(default_factory=list[Row])
    ratios: dict[str, float] = field(default_factory=dict[str, float])


class Bench:
    """The systems of one setting under loads.

    Args:
        setting: the index and the device.
        sizes: how much is measured.
        trace: what is asked.
        index: what is searched.
        vectors: of all queries.
        found: gets the rows.
    """

    def __init__(
        self,
        setting: Setting,
        sizes: Sizes,
        trace: Trace,
        index: LargeIndex,
        vectors: Mapping[str, Floats],
        found: Found,
    ) -> None:
        self.setting = setting
        self.sizes = sizes
        self.device = EmulatedDevice(setting.table, respond=trace.respond)
        self._index = index
        self._trace = trace
        self._vectors = vectors
        self._expected = Expected(index, vectors, trace.requests)
        self._found = found

    def langchain(self) -> System:
        """Return an ordinary program on LangChain's objects."""
        # Importing LangChain's store warns of the package it is in; whoever only looks at suites
        # should not see that.
        from bench.research.mixed.langchain_system import LangChainSystem

        return LangChainSystem(self._index, self._vectors, self.device)

    def ours(self) -> System:
        """Return the ``Server``."""
        return RagAccelSystem(self._index, self._vectors, self.device)

    def staged(self) -> System:
        """Return the staged baseline over vectors in float32."""
        faiss_index = self._index.stock_index(parallel_mode=1)
        return StagedSystem("staged", self._index, faiss_index, self._vectors, self.device)

    def staged_sq8_refine(self) -> System:
        """Return the staged baseline over FAISS's 8-bit lists with refine."""
        faiss_index = self._index.refined_index(parallel_mode=1)
        name = "staged_sq8_refine"
        return StagedSystem(name, self._index, faiss_index, self._vectors, self.device)

    async def unloaded(self, systems: Sequence[System]) -> dict[str, MixedLoad]:
        """Run every system unloaded, after a warm-up."""
        sizes, loads = self.sizes, dict[str, MixedLoad]()
        warm_rps = sizes.warm_rps
        if self.setting is sizes.light:  # its device takes far less
            warm_rps = 2 * max(sizes.light_rps)
        for system in systems:
            await self._load(system, warm_rps, sizes.warm)
            load = await self._load(system, sizes.unloaded_rps, sizes.unloaded)
            loads[system.name] = self._keep(system, "unloaded", load)
        return loads

    async def limit(self, system: System, unloaded: MixedLoad, start_rps: float) -> Bracket:
        """Return up to which rate a system keeps the objective."""
        sizes, objective_s = self.sizes, self.sizes.objective * unloaded.p95_s
        # A drain as long as the objective settles it: whoever is left has missed it.
        window = replace(sizes.window, drain_s=max(sizes.window.drain_s, objective_s))

        async def meets(rate_rps: float, seed: int) -> bool:
            load = await self._load(system, rate_rps, replace(window, seed=seed))
            return keeps(self._keep(system, f"sweep, {rate_rps:.2f}/s", load, seed), objective_s)

        limit = await find_limit(
            *(meets, start_rps),
            precision=sizes.precision,
            probes=sizes.probes,
            seeds=sizes.seeds,
        )
        for metric, rate in (("limit_rps", limit.passes), ("limit_fails_rps", limit.fails)):
            row = Row(system.name, self.setting.name, metric, rate, None, sizes.seeds)
            self._found.rows.append(row)
        return limit

    async def compare(
        self, systems: Sequence[System], rate_rps: float, name: str, seeds: int
    ) -> dict[str, list[MixedLoad]]:
        """Put systems under the same loads, one after the other; another goes first each time."""
        loads: dict[str, list[MixedLoad]] = {system.name: [] for system in systems}
        for seed in range(seeds):
            first = seed % len(systems)
            for system in (*systems[first:], *systems[:first]):
                load = await self._load(system, rate_rps, replace(self.sizes.window, seed=seed))
                loads[system.name].append(self._keep(system, name, load, seed))
        return loads

    async def _load(self, system: System, rate_rps: float, window: Window) -> MixedLoad:
        """Run one load; the garbage of the one before is collected first."""
        gc.collect()
        found = await run_load(system, self._trace.requests, rate_rps, window, self.device)
        _logger.info(
            "%s, %s: %.2f/s: p50 %.2f s, p95 %.2f s, cpu %.2f, device %.2f",
            *(self.setting.name, system.name, rate_rps, found.p50_s, found.p95_s),
            *(found.cpu_utilisation, found.device_utilisation),
        )
        return found

    def _keep(self, system: System, name: str, load: MixedLoad, seed: int = 0) -> MixedLoad:
        workload = f"{self.setting.name}, {name}"
        if seed:
            workload += f", arrivals {seed + 1}"
        self._found.rows += load_rows(system.name, workload, load, self._expected)
        return load


def keeps(load: MixedLoad, objective_s: float) -> bool:
    """Tell whether a load kept the objective."""
    return load.p95_s <= objective_s


def gains(theirs: Sequence[MixedLoad], ours: Sequence[MixedLoad]) -> tuple[float, float]:
    """Return their p50 latency / ours, and their p99 / ours; each the median over the loads."""
    pairs = list(zip(theirs, ours, strict=True))
    return (
        median([one.p50_s / other.p50_s for one, other in pairs]),
        median([one.p99_s / other.p99_s for one, other in pairs]),
    )
