"""Serve five workflows at once, with an emulated model, and see what rate each system sustains.

One-shot, HyDE, multistep, IRG and RECOMP (HedraRAG section 6) are mixed, evenly unless a parameter
says otherwise, and arrive as a Poisson process, each with a question of its own; k is 5. The
systems are four (``bench.research.mixed.systems``): ``langchain``, an ordinary program on
LangChain's objects; ``staged``, a simple serving baseline of ours, which batches at most 16
searches into one FAISS call; ``staged_sq8_refine``, the same over FAISS's own 8-bit lists
(residuals, four times as many candidates as are wanted, compared again in float32), which is the
strongest a user could pick; and ``ours`` (the ``Server``). Texts that are generated and searched
for are fixed, so that all systems do the same.

The model is emulated: its times are modelled, and all systems share one device: in the
retrieval-bound setting four that serve a small model behind a balancer, so that searching stays the
bottleneck; where generation dominates a single one with a larger model, which is less than a third
busy, so that latency is the time of decoding. The corpus is real passages extended by a mixture
that is fitted to them (``bench.corpus``), under real MiniLM vectors of the real texts that are
searched for; these vectors are looked up, not computed. All systems but ``staged_sq8_refine`` read
the same inverted lists in memory; ours keeps codes beside them, made before the first request.
Python's garbage collector leaves alone what is there before the first request: millions of
documents would stop every system for seconds.

A latency counts from the time at which a request was due until its caller has the answer, for all
systems alike. A system's limit lies between the highest rate at which the 95th percentile of the
latency is at most 3 times its own unloaded one, and the next that misses it. Rates are tried one
after the other (``bench.research.mixed.sweep``); every try is a row. The quick form has one load a
rate, compares systems at 80 % of the limit of ``staged`` alone and leaves out the setting where
generation dominates; the full form has three loads, with other arrivals, at both ends of a limit,
where two of three decide, and at the rates at which systems are compared. Requests that arrive in
the warm-up are not counted; whoever is given up after the drain counts with the time it had waited.
``cpu_utilisation`` is the process's CPU time over cores and time, ``device_utilisation`` the
device's work over its most.

Every served request, under load as well, must end with the ids that stock FAISS in float32 finds
for its last search, but where scores are as close as 1e-6, and with the text that the trace fixes;
the ids of ``staged_sq8_refine``, which is approximate, are only counted.

Ratios:
    rate_vs_staged_sq8_refine: against a staged server over FAISS's 8-bit lists with refine: limit
        of ours / its limit, in requests/s, each the geometric mean of a rate that passes and one
        that fails.
    rate_vs_staged_sq8_refine_low: against a staged server over FAISS's 8-bit lists with refine: the
        rate at which ours passes / the one at which it fails.
    rate_vs_staged_sq8_refine_high: against a staged server over FAISS's 8-bit lists with refine:
        the rate at which ours fails / the one at which it passes.
    rate_vs_staged: against a staged server over FAISS in float32: limit of ours / its limit.
    rate_vs_staged_low: against a staged server over FAISS in float32: the rate at which ours passes
        / the one at which it fails.
    rate_vs_staged_high: against a staged server over FAISS in float32: the rate at which ours fails
        / the one at which it passes.
    rate_vs_langchain: against LangChain over FAISS in float32: limit of ours / its limit.
    rate_vs_langchain_low: against LangChain over FAISS in float32: the rate at which ours passes /
        the one at which it fails.
    rate_vs_langchain_high: against LangChain over FAISS in float32: the rate at which ours fails /
        the one at which it passes.
    request_p50_vs_staged_sq8_refine_80: against a staged server over FAISS's 8-bit lists with
        refine: its median latency of a request / ours, at 80 % of the rate at which staged passes;
        median over arrivals.
    request_p99_vs_staged_sq8_refine_80: against a staged server over FAISS's 8-bit lists with
        refine: its 99th percentile of the latency of a request / ours, at 80 % of the rate at which
        staged passes; median over arrivals.
    request_p50_vs_staged_sq8_refine_50: against a staged server over FAISS's 8-bit lists with
        refine: its median latency of a request / ours, at 50 % of the rate at which staged passes;
        median over arrivals.
    request_p99_vs_staged_sq8_refine_50: against a staged server over FAISS's 8-bit lists with
        refine: its 99th percentile of the latency of a request / ours, at 50 % of the rate at which
        staged passes; median over arrivals.
    request_p50_vs_staged_80: against a staged server over FAISS in float32: its median latency of a
        request / ours, at 80 % of the rate at which it passes; median over arrivals.
    request_p99_vs_staged_80: against a staged server over FAISS in float32: its 99th percentile of
        the latency of a request / ours, at 80 % of the rate at which staged passes; median over
        arrivals.
    request_p50_vs_staged_50: against a staged server over FAISS in float32: its median latency of a
        request / ours, at 50 % of the rate at which staged passes; median over arrivals.
    request_p99_vs_staged_50: against a staged server over FAISS in float32: its 99th percentile of
        the latency of a request / ours, at 50 % of the rate at which staged passes; median over
        arrivals.
    generation_dominates: against LangChain over FAISS in float32: its median latency of a request /
        ours where decoding takes nearly all of it (a lighter index, a larger model); the lowest
        over the rates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.answers import too_few, too_many
from bench.corpus import Floats, Passages, kept_vectors, real_passages
from bench.garbage import little_garbage
from bench.research.mixed.bench import Bench, Found, gains
from bench.research.mixed.index_files import open_index
from bench.research.mixed.sizes import FULL, QUICK, Setting, Sizes, configured, recorded
from bench.research.mixed.sweep import Bracket
from bench.research.mixed.systems import System
from bench.research.mixed.trace import Trace, make_trace
from bench.results import Row, SuiteResult
from rag_accel.system.files import user_cache

__all__ = ["configured", "run"]

TRACE_SEED = 7
OPPONENTS = ("staged_sq8_refine", "staged", "langchain")
#: who answers approximately, which is not our fault
APPROXIMATE = ("staged_sq8_refine",)


@dataclass(frozen=True, slots=True)
class Material:
    """Where texts, vectors and files come from; tests give small ones."""

    passages: Passages
    embed: Callable[[Sequence[str]], Floats]
    cache: Path


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or _real_material()
    trace = make_trace(given.passages, chosen.requests, TRACE_SEED, chosen.mix)
    found = Found()
    _in_setting(chosen.heavy, _measure_heavy, chosen, given, trace, found)
    if chosen.light_rps:
        _in_setting(chosen.light, _measure_light, chosen, given, trace, found)
    return SuiteResult(
        *("mixed_workflows", tuple(found.rows), found.ratios),
        emulated=True,
        sizes=recorded(chosen),
        wrong=_wrong(found.rows),
    )


def _wrong(rows: Sequence[Row]) -> tuple[str, ...]:
    exact = [row for row in rows if row.system not in APPROXIMATE]
    return too_many(exact, "different_ids") + too_few(rows, "identical_texts")


def _in_setting(
    setting: Setting,
    measure: Callable[[Bench, Found], Coroutine[Any, Any, None]],
    sizes: Sizes,
    material: Material,
    trace: Trace,
    found: Found,
) -> None:
    """Measure in one setting; its index is gone from memory afterwards."""
    index = open_index(material.cache, material.passages, setting.index)
    projected = index.projection.apply(material.embed(trace.queries))
    vectors = dict(zip(trace.queries, projected, strict=True))
    bench = Bench(setting, sizes, trace, index, vectors, found)
    with bench.device, little_garbage():
        asyncio.run(measure(bench, found))


async def _measure_heavy(bench: Bench, found: Found) -> None:
    with ExitStack() as stack:
        makers = (bench.langchain, bench.staged, bench.staged_sq8_refine, bench.ours)
        systems = {one.name: one for one in (stack.enter_context(closing(m())) for m in makers)}
        unloaded = await bench.unloaded(list(systems.values()))
        limits: dict[str, Bracket] = {}
        start = bench.sizes.start_rps
        for name in bench.sizes.swept:
            limits[name] = await bench.limit(systems[name], unloaded[name], start)
            start = limits[name].passes
        for name in OPPONENTS:
            ratio = limits["ours"].over(limits[name])
            found.ratios |= {
                f"rate_vs_{name}": ratio.middle,
                f"rate_vs_{name}_low": ratio.passes,
                f"rate_vs_{name}_high": ratio.fails,
            }
        compared = {name: systems[name] for name in (*OPPONENTS[:2], "ours")}
        for percent in bench.sizes.percents:
            rate = limits["staged"].passes * percent / 100
            found.ratios |= await _compare(bench, compared, rate, percent)


async def _compare(
    bench: Bench, systems: Mapping[str, System], rate: float, percent: int
) -> dict[str, float]:
    """Return what callers gain with us over each other system, at a share of staged's limit."""
    name = f"{percent} % of the limit of staged"
    loads = await bench.compare(list(systems.values()), rate, name, bench.sizes.seeds)
    ratios: dict[str, float] = {}
    for other in OPPONENTS[:2]:
        p50, p99 = gains(loads[other], loads["ours"])
        ratios[f"request_p50_vs_{other}_{percent}"] = p50
        ratios[f"request_p99_vs_{other}_{percent}"] = p99
    return ratios


async def _measure_light(bench: Bench, found: Found) -> None:
    with closing(bench.langchain()) as langchain, closing(bench.ours()) as ours:
        await bench.unloaded([langchain, ours])
        ratios: list[float] = []
        for rate in bench.sizes.light_rps:
            loads = await bench.compare([langchain, ours], rate, f"{rate:.2f}/s", 1)
            ratios.append(gains(loads["langchain"], loads["ours"])[0])
        found.ratios["generation_dominates"] = min(ratios)


def _real_material() -> Material:
    cache = user_cache() / "bench"
    return Material(real_passages(cache), lambda texts: kept_vectors(cache, texts), cache)
