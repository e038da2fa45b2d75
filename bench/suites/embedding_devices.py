"""Measure embedding on two devices: WindVE's queues, tuned and as printed, and the device group.

In virtual time. The devices are the lines that WindVE published for a V100, ``0.0179 C + 0.27`` s,
and for the Xeon beside it, which takes 1 / 0.21 of that for each text, and 0.32 s; a text has 75
tokens. Texts come alone, at once or by a Poisson process, of equal or of log-normal length (median
49, 99th percentile 314 tokens). Ours is the placement of the device group (``rag_accel.engines.
devices``), driven as the group drives it; it knows the lines, and refuses nothing. WindVE refuses
what its queues do not hold (``bench/baselines/windve.py``); a refused text is not in time. A rate
is sustained if 99 % of the texts end in time. ``windve tuned`` has the depths, out of 15 pairs,
that sustain most of the very load it is then compared on. ``one queue`` serves both devices from
one queue.

In real time (limit 1 s) the main device is emulated: it sleeps as long as its line says and answers
with vectors computed before. Its line has the published constant part, and 0.21 of what a text of
equal length takes the packaged MiniLM on this machine's cores, which is the other member. As many
tasks as the bound allows ask at once, each for one text; every vector is compared with the model's.

Ratios:
    sustained_vs_tuned: against WindVE with the best of 15 pairs of depths for this load: highest
        rate that ours sustains / that it does; unequal lengths, limit 1 s.
    sustained_vs_windve: against WindVE as printed: the same for equal lengths; the lower one of
        limits of 1 s and 2 s.
    goodput_vs_windve_3x: against WindVE as printed: texts in time of ours / its, where three times
        what it sustains comes; equal lengths, limit 1 s.
    burst_of_bound: against what no system can do better: most texts that may come at once so that
        all end in time / the bound, which cuts texts to parts; the lower one of 1 s and 2 s.
    burst_of_bound_real: against what no system can do better: texts in time / the bound, where as
        many come at once in real time; median over bursts.
    single: against the embedding engine alone: its seconds for one call / a group's that has it as
        its only member; median over turns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.answers import too_many
from bench.baselines.windve import ConvergingQueue, Device, QueueManager, depths_of
from bench.devices.capacity import (
    MakeSystem,
    by_tokens,
    largest_burst,
    poisson,
    share_in_time,
    sustained_rate,
)
from bench.devices.real_time import ask_at_once, cpu_line, embed_all, emulated_main, texts_of
from bench.devices.virtual import BoundedQueues, PlacedTexts, VirtualText
from bench.measure import Pairs, alternate, median, ratios
from bench.paired import in_ms
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import LatencyModel
from rag_accel.engines import SentenceTransformerEngine
from rag_accel.engines.devices.members import EngineMember
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.engines.embedding.models import load_model
from rag_accel.system.processor import usable_cores

OURS, WINDVE, TUNED, CONVERGING = "device group", "windve", "windve tuned", "one queue"

ALPHA_RATIO = 0.21
MAIN = LatencyModel(0.27, 0.0179)
AUXILIARY = LatencyModel(0.32, MAIN.per_item_s / ALPHA_RATIO)
LINES = (MAIN, AUXILIARY)

LIMITS_S = (1.0, 2.0)
OVERLOAD = 3.0
_MOST_AT_ONCE = 400
_MOST_REAL = 2000
_PATIENCE_S = 300.0
TOLERANCE = 1e-5
_RATES = (4.0, 80.0)
_OVERLOAD_SEED = 5
_TUNED_DEPTHS: tuple[tuple[int, ...], tuple[int, ...]] = ((12, 16, 20, 24, 30), (2, 4, 6))

_logger = logging.getLogger("bench.embedding_devices")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        duration_s: for how long texts come at a rate.
        seeds: loads of each rate.
        halvings: of the search for a rate.
        bursts: in real time.
        largest: texts of the largest batch that the line of the cores is fitted to.
        pairs: turns of a group of one member and its engine.
    """

    duration_s: float = 60.0
    seeds: int = 2
    halvings: int = 9
    bursts: int = 5
    largest: int = 128
    pairs: int = 7


QUICK = Sizes()
FULL = Sizes(duration_s=120.0, seeds=4, halvings=11)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    rows, found = _virtual(chosen)
    _logger.info("%s", found)
    for more_rows, more in (_real_bursts(chosen), _single(chosen)):
        rows += more_rows
        found |= more
    wrong = too_many(rows, "different_vectors")
    sizes_found = sizes_of(chosen)
    return SuiteResult(
        "embedding_devices", tuple(rows), found, emulated=True, sizes=sizes_found, wrong=wrong
    )


def _virtual(sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    plays = {slo_s: _VirtualTime(slo_s, sizes) for slo_s in LIMITS_S}
    first = plays[LIMITS_S[0]]
    found = {
        "sustained_vs_tuned": first.against_tuned(),
        "sustained_vs_windve": min(one.against_windve() for one in plays.values()),
        "goodput_vs_windve_3x": first.overloaded(),
        "burst_of_bound": min(one.bursts() for one in plays.values()),
    }
    return [row for one in plays.values() for row in one.rows], found


class _VirtualTime:
    """All systems under one limit, and the rows about them."""

    def __init__(self, slo_s: float, sizes: Sizes) -> None:
        self.rows: list[Row] = []
        self._slo_s = slo_s
        self._sizes = sizes
        self._lines = [by_tokens(line) for line in LINES]
        depths = depths_of(MAIN, AUXILIARY, slo_s)
        self._ours: MakeSystem = lambda: PlacedTexts(self._lines, slo_s)
        self._windve = _windve(depths)
        self._others: dict[str, MakeSystem] = {
            WINDVE: self._windve,
            CONVERGING: lambda: BoundedQueues(ConvergingQueue(depths)),
        }
        self._windve_rate = 0.0

    def bursts(self) -> float:
        """Return the largest burst of ours / the bound."""
        found: dict[str, int] = {}
        for name, make in self._all().items():
            found[name] = largest_burst(make, self._lines, self._slo_s, _MOST_AT_ONCE)
            self._row(name, "texts at once", "burst_texts", found[name])
        bound = sum((self._slo_s - line.base_s) / line.per_item_s for line in LINES)
        self._row("bound", "texts at once", "burst_texts", bound)
        return found[OURS] / bound

    def against_windve(self) -> float:
        """Return the rate that ours sustains / WindVE's, for equal lengths."""
        found = {name: self._rate(name, make, False) for name, make in self._all().items()}
        self._windve_rate = found[WINDVE]
        return found[OURS] / found[WINDVE]

    def against_tuned(self) -> float:
        """Return the rate that ours sustains / that of the best depths, for unequal lengths."""
        rates: dict[tuple[int, int], float] = {}
        for main, auxiliary in product(*_TUNED_DEPTHS):
            make = _windve({"main": main, "auxiliary": auxiliary})
            rates[main, auxiliary] = self._sustained(make, True)
        best = max(rates.values())
        self._row(TUNED, _workload(True), "sustained_per_s", best, len(rates))
        for name, make in self._others.items():
            self._rate(name, make, True)
        return self._rate(OURS, self._ours, True) / best

    def overloaded(self) -> float:
        """Return the texts in time of ours / WindVE's at three times what WindVE sustains."""
        texts = self._load(OVERLOAD * self._windve_rate, _OVERLOAD_SEED, False)
        found: dict[str, float] = {}
        for name, make in self._all().items():
            share = share_in_time(texts, make, self._lines, self._slo_s)
            found[name] = share * len(texts) / self._sizes.duration_s
            self._row(name, "3 times windve's rate", "in_time_per_s", found[name], len(texts))
        return found[OURS] / found[WINDVE]

    def _all(self) -> dict[str, MakeSystem]:
        return {OURS: self._ours, **self._others}

    def _rate(self, name: str, make: MakeSystem, unequal: bool) -> float:
        rate = self._sustained(make, unequal)
        self._row(name, _workload(unequal), "sustained_per_s", rate, self._sizes.seeds)
        return rate

    def _sustained(self, make: MakeSystem, unequal: bool) -> float:
        def loads(rate: float) -> Iterable[Sequence[VirtualText]]:
            return (self._load(rate, seed, unequal) for seed in range(self._sizes.seeds))

        return sustained_rate(make, self._lines, self._slo_s, loads, _RATES, self._sizes.halvings)

    def _load(self, rate: float, seed: int, unequal: bool) -> list[VirtualText]:
        return poisson(rate, self._sizes.duration_s, seed, unequal)

    def _row(self, system: str, workload: str, metric: str, value: float, n: int = 1) -> None:
        where = f"{workload}, limit {self._slo_s:g} s, virtual time"
        self.rows.append(Row(system, where, metric, value, None, n))


def _real_bursts(sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    engine, threads = _engine(), usable_cores()
    cpu_line(engine, threads, sizes.largest)
    wait_until_compiled(_PATIENCE_S)
    cpu = cpu_line(engine, threads, sizes.largest)
    main = LatencyModel(MAIN.base_s, ALPHA_RATIO * cpu.per_item_s)
    slo_s = LIMITS_S[0]
    bound = sum((slo_s - line.base_s) / line.per_item_s for line in (main, cpu))
    texts = texts_of(min(_MOST_REAL, max(1, int(bound))))
    expected = np.asarray(engine.model.encode(list(texts)))
    device = emulated_main(engine, main, texts)
    with Accelerator(
        embedder=[device, engine], embedding_slo_s=slo_s, single_flight=False
    ) as accelerator:
        ask_at_once(accelerator, texts)
        answers = [ask_at_once(accelerator, texts) for _ in range(sizes.bursts)]
    in_time = [sum(one <= slo_s for one in answer.seconds) for answer in answers]
    far = sum(int((np.abs(one.vectors - expected).max(1) > TOLERANCE).sum()) for one in answers)
    workload = f"{len(texts)} at once, limit {slo_s:g} s"
    rows = [
        median_row(OURS, workload, "in_time_texts", in_time),
        Row("bound", workload, "in_time_texts", bound, None, 1),
        Row(OURS, workload, "different_vectors", far, None, len(texts) * sizes.bursts),
    ]
    return rows, {"burst_of_bound_real": median(in_time) / bound}


def _single(sizes: Sizes) -> tuple[list[Row], dict[str, float]]:
    texts = texts_of(sizes.largest)
    bare = _engine()
    member = EngineMember(_engine())
    with (
        Accelerator(embedder=bare, single_flight=False) as plain,
        Accelerator(embedder=[member], single_flight=False) as group,
    ):
        pairs = alternate(
            lambda turn: embed_all(plain, texts),
            lambda turn: embed_all(group, texts),
            sizes.pairs,
            warm_up=2,
        )
    workload = f"one call of {len(texts)} texts"
    rows = [
        row_of("engine", workload, "latency_ms", [in_ms(one) for one in pairs.plain]),
        row_of("group of one", workload, "latency_ms", [in_ms(one) for one in pairs.other]),
    ]
    return rows, {"single": median(ratios(Pairs(pairs.other, pairs.plain)))}


def _engine() -> SentenceTransformerEngine:
    """Return an engine that keeps no vectors: bursts repeat their texts."""
    return SentenceTransformerEngine(load_model(None, "cpu"), kept_bytes=0)


def _windve(depths: dict[Device, int]) -> MakeSystem:
    return lambda: BoundedQueues(QueueManager(depths))


def _workload(unequal: bool) -> str:
    return "unequal lengths" if unequal else "equal lengths"
