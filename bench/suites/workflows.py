"""Measure the workflows of HedraRAG and Teola as plain programs, under ours and its opponents.

HedraRAG's one-shot, HyDE, RECOMP, multistep and iterative retrieval-generation, and Teola's
question answering over an uploaded document by stuffing, by a tree and by refinement: each in the
one framework in which its author would write it (LangChain, LangGraph, LlamaIndex), sequential and
blocking. An upload is cut, embedded and indexed within its request. Arms (``bench/workflows``):

- ``plain``: as written; ``by_hand``: a careful user's version in the same framework (async,
  batches, independent calls at once);
- ``accelerated``: the plain program under ``accelerate`` with its defaults, which is *ours* below;
  ``ragraph``: the workflow of ``rag_accel.workflows``; ``blind``: accelerated with nothing that
  looks at more than one call (no depths, no passes, no calls side by side);
- ``staged``: a server of one queue and one thread a stage, FAISS in parallel mode 1;
  ``--set staged=coded`` searches FAISS's 8-bit lists with refinement instead, which is approximate.
  ``staged_coded`` does so beside the exact server in load cells of 30 %; its ``different_answers``
  counts answers that are not plain's, of lone requests.

One user asks every program, over SmolLM2 135M Instruct (float32, greedy), MiniLM and an IVF index
of real passages; plain models have torch threads for all cores. Every answer must be plain's.

Under load the language model is a scripted server in a process of its own (0.4 ms a prompt token,
12 ms a decode step, any number at once), MiniLM and the search are real, and the index is filled up
with vectors around the real ones. Each program searches so many clusters that searches are about
2 % or 30 % of a lone plain request's time; the row ``search_share`` has the measured share. A
limit is the highest rate of a Poisson process at which 95 % of the requests end within three times
the 95th percentile of plain's unloaded latency, by a short bisection; the objective is the same for
all arms of a cell. Blocking arms are called from 64 threads, with one torch thread, the others on
one loop. The quick form loads one-shot and multistep, the full form all programs. What a graph's
requests upload joins one index, so under load its searches may find what others have uploaded.

At last plain and accelerated get the same arrivals at 1.5 times plain's limit, for 60 s (quick:
20 s). There the accelerator has the objective as its ``deadline_s``, from the call on; a request
that ends by ``DeadlineError`` is late.

``--set`` takes ``programs``, ``loaded`` and ``arms`` (under load, besides plain; names joined by
commas), ``shares`` (in percent, joined by commas), ``vectors``, ``nprobe`` (under load, in place of
shares), ``turns``, ``seconds`` (of a load), ``window`` (seconds beyond the limit), ``probes``
(rates of a bisection) and ``staged``. Ratios of arms that are left out are missing.

Ratios:
    all_vs_plain: against the plain program, blocking in 64 threads: highest rate accelerated /
        plain; geometric mean over the load cells; wanted 1.5.
    all_vs_by_hand: against a careful user's version of the program: highest rate accelerated / by
        hand; geometric mean over the load cells.
    all_vs_staged: against a staged server: highest rate accelerated / staged; geometric mean over
        the load cells.
    retrieval_bound_vs_staged: against a staged server that searches FAISS's 8-bit lists with
        refinement, which is approximate: highest rate accelerated / staged; geometric mean over the
        load cells meant to search 30 % of the time; wanted 1.2.
    all_vs_blind: against ours that looks at single calls only: highest rate accelerated / blind;
        geometric mean over the load cells.
    late_vs_plain: against the plain program, blocking in 64 threads: share of requests that miss
        the objective at 1.5 times plain's highest rate, accelerated / plain (lower is better); of
        the means over the load cells; wanted 0.25.
    graph_vs_plain: against the plain program, blocking in 64 threads: highest rate as a RAGraph /
        plain; geometric mean over the load cells.
    one_user: against the plain program on torch threads for all cores: time of one user's request
        accelerated / plain (lower is better; accepted: at most 1.03), median over turns, the
        highest over programs.
    graph_worst_one_user: against the plain program on torch threads for all cores: time of one
        user's request as a RAGraph / plain (lower is better), median over turns, the highest over
        programs.
    share_of_graph: against the workflow as a RAGraph: logarithm of plain / accelerated over that of
        plain / RAGraph, of the times of one user; mean over the programs whose RAGraph gains at
        least 1.05, or over the rates of the load cells where there is none; wanted 0.8.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import log
from operator import ne
from statistics import geometric_mean, mean
from typing import Any

import numpy as np

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.measure import Pairs, median, percentile, ratios, rotate
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.serving.processes import HostedServer
from bench.together.material import Material, real_material
from bench.workflows.arms import (
    ARMS,
    BY_HAND,
    CODED,
    GRAPH,
    OURS,
    PLAIN,
    PROGRAMS,
    STAGED,
    Ask,
    accelerated,
    opened,
)
from bench.workflows.load import Callers, arrivals, highest_rate
from bench.workflows.parts import (
    TOP_K,
    Corpus,
    Embedders,
    Parts,
    Request,
    embedders_of,
    local_parts,
    served_parts,
)
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.errors import ConfigError
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

#: of the language model under load: seconds of a token of a prompt, and of an answer; its tokens
SCRIPT = {"prompt_token_s": 0.0004, "step_s": 0.012, "tokens": 6}
TIMES_UNLOADED = 3
#: of a RAGraph over the plain program, where an accelerated program is held against it
LEAST_GAIN = 1.05
#: percent of searches at which a second staged server searches coded lists
BOUND_SHARE = 30
#: of plain's highest rate, at which requests that miss the objective are counted
OVERLOAD = 1.5
DIFFERENT, ALONE, RATE, SHARE = "different_answers", "request_s", "highest_rate_rps", "search_share"
LATE = "late_share"
#: Arms whose models run on torch as the program has them.
_ON_TORCH = (PLAIN, BY_HAND, STAGED, CODED)
_NAMES = tuple(one.name for one in PROGRAMS)
_PATIENCE_S = 120.0
_logger = logging.getLogger("bench.workflows")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        programs: asked by one user.
        loaded: put under load.
        arms: of these; plain is always among them.
        turns: questions of one user to each program.
        chunks: real passages.
        words: of each of them at most.
        upload_words: of an uploaded document.
        tokens: most tokens of a real answer.
        clusters: of both indexes.
        vectors: of the index under load.
        shares: of a request's time, in percent, that its searches take.
        nprobe: clusters that a search under load reads, in place of the shares; 0 for these.
        unloaded: requests that measure the unloaded latency.
        seconds: of arrivals in a load.
        window: seconds of arrivals beyond plain's highest rate.
        probes: rates of a bisection.
        staged: what the staged server searches: ``float`` or ``coded``.
    """

    programs: tuple[str, ...] = _NAMES
    loaded: tuple[str, ...] = _NAMES
    arms: tuple[str, ...] = (*ARMS, CODED)
    turns: int = 5
    chunks: int = 600
    words: int = 20
    upload_words: int = 160
    tokens: int = 6
    clusters: int = 64
    vectors: int = 500_000
    shares: tuple[int, ...] = (2, 30)
    nprobe: int = 0
    unloaded: int = 40
    seconds: float = 8.0
    window: float = 60.0
    probes: int = 7
    staged: str = "float"


FULL = Sizes()
QUICK = Sizes(
    loaded=("one_shot", "multistep"),
    turns=3,
    chunks=300,
    tokens=4,
    shares=(30,),
    unloaded=12,
    seconds=2.0,
    window=10.0,
    probes=4,
)
_WHOLE = ("turns", "vectors", "nprobe", "probes")


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes that ``quick`` stands for, with other parameters.

    Raises:
        ConfigError: on an unknown parameter, or a value it cannot have.
    """
    sizes = QUICK if quick else FULL
    for name, text in settings.items():
        sizes = replace(sizes, **{name: _value(name, text)})
    return sizes


def _value(name: str, text: str) -> Any:
    several = tuple(text.split(","))
    names = (*ARMS, CODED) if name == "arms" else _NAMES
    if name in ("programs", "loaded", "arms") and set(several) <= set(names):
        return several
    if name == "shares" and all(one.isdecimal() and 0 < int(one) < 100 for one in several):
        return tuple(map(int, several))
    if name in _WHOLE and text.isdecimal() and (int(text) or name == "nprobe"):
        return int(text)
    if name in ("seconds", "window") and text.replace(".", "", 1).isdecimal() and float(text):
        return float(text)
    if name == "staged" and text in ("float", "coded"):
        return text
    raise ConfigError(
        "no such parameter, or no value of it",
        where="workflows",
        found=f"{name}={text}",
        valid=f"programs or loaded of {', '.join(_NAMES)}; arms of {', '.join((*ARMS, CODED))}; "
        f"shares in percent; {', '.join(_WHOLE)}; seconds; window; staged=float or coded",
    )


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over real models."""
    chosen = sizes or (QUICK if quick else FULL)
    made = material or real_material(chosen.chunks, 1_000, 64)
    texts = [" ".join(text.split()[: chosen.words]) for text in made.texts]
    vectors, requests = np.asarray(made.embed(texts)), _requests(made, chosen.upload_words)
    corpus = Corpus.filled(texts, vectors, 0, chosen.clusters, max(2, chosen.clusters // 8))
    with little_garbage(), Callers() as callers:
        embedders = embedders_of(made)
        alone = local_parts(made, embedders, corpus, chosen.tokens)
        rows, found = _by_one_user(alone, callers, requests, chosen)
        if chosen.loaded:
            filled = Corpus.filled(texts, vectors, chosen.vectors, chosen.clusters, 1)
            more, limits = _under_load(embedders, filled, callers, requests, chosen)
            rows, found = [*rows, *more], limits | found
    return SuiteResult(
        *("workflows", tuple(rows), found),
        scripted="the language model under load sleeps; the rest is real",
        sizes=sizes_of(chosen),
        wrong=too_many([row for row in rows if _is_exact(row, chosen)], DIFFERENT),
    )


def _is_exact(row: Row, sizes: Sizes) -> bool:
    return row.system != CODED and (row.system != STAGED or sizes.staged == "float")


def _requests(material: Material, words: int) -> list[Request]:
    """Return the questions, each with a document of its own."""
    passages = [text.split() for text in material.texts]
    found: list[Request] = []
    for number, asked in enumerate(material.questions):
        document, place = list[str](), number
        while len(document) < words:
            document += passages[place % len(passages)]
            place += 1
        found.append(Request(asked.text, " ".join(document[:words])))
    return found


# One user ----------------------------------------------------------------------------------------


def _by_one_user(
    parts: Parts, callers: Callers, requests: Sequence[Request], sizes: Sizes
) -> tuple[list[Row], dict[str, float]]:
    programs = [one for one in PROGRAMS if one.name in sizes.programs]
    rows, alone, graph = list[Row](), dict[str, Pairs[float]](), dict[str, Pairs[float]]()
    servers = {STAGED: sizes.staged == "coded"}
    with opened(parts, programs, is_local=True, servers=servers) as asks:
        for program in {one.framework: one for one in reversed(programs)}.values():
            for name, ask in asks[program.name].items():
                _lone(callers, ask, requests, _threads(name, usable_cores()), -1)
        wait_until_compiled(_PATIENCE_S)
        for program in programs:
            arms = {
                name: partial(_lone, callers, ask, requests, _threads(name, usable_cores()))
                for name, ask in asks[program.name].items()
            }
            measured = rotate(arms, sizes.turns)
            workload = f"{program.name} ({program.framework}), 1 user"
            times = {name: [seconds for _, seconds in each] for name, each in measured.items()}
            wanted = [answer for answer, _ in measured[PLAIN]]
            for name, each in measured.items():
                different = sum(
                    answer != right for (answer, _), right in zip(each, wanted, strict=True)
                )
                rows.append(row_of(name, workload, ALONE, times[name]))
                rows.append(Row(name, workload, DIFFERENT, different, None, len(wanted)))
            pairs = (
                Pairs(tuple(times[PLAIN]), tuple(times[arm])).map(in_ms) for arm in (OURS, GRAPH)
            )
            alone[workload], graph[workload] = pairs
            medians = {name: round(median(each), 2) for name, each in times.items()}
            _logger.info("%s: %s s", workload, medians)
    more, found = one_user(alone)
    each = [[median(ratios(pairs)) for pairs in arm.values()] for arm in (alone, graph)]
    found["graph_worst_one_user"] = max(each[1])
    if shares := _shares_of_graph(*each):
        found["share_of_graph"] = mean(shares)
    return [*rows, *more], found


def _shares_of_graph(ours: Sequence[float], graph: Sequence[float]) -> list[float]:
    """Return the share of a RAGraph's gain that each program has, of the times of both over plain.

    A program whose RAGraph gains less than ``LEAST_GAIN`` has none to share.
    """
    pairs = zip(ours, graph, strict=True)
    return [log(one) / log(other) for one, other in pairs if other <= 1 / LEAST_GAIN]


def _lone(
    callers: Callers, ask: Ask, requests: Sequence[Request], threads: Any, turn: int
) -> tuple[str, float]:
    with threads():
        return callers.one(ask, requests[turn])


def _threads(arm: str, count: int) -> Any:
    """Return a context: torch's threads for plain models; our engines set their own."""
    return partial(torch_threads, count) if arm in _ON_TORCH else nullcontext


# Under load --------------------------------------------------------------------------------------


def _under_load(
    embedders: Embedders,
    corpus: Corpus,
    callers: Callers,
    requests: Sequence[Request],
    sizes: Sizes,
) -> tuple[list[Row], dict[str, float]]:
    rows, rates = list[Row](), list[dict[str, float]]()
    try:
        with (
            HostedServer(**SCRIPT) as server,
            served_parts(embedders, corpus, server.url("/v1"), callers.wait) as parts,
        ):
            for program in (one for one in PROGRAMS if one.name in sizes.loaded):
                wanted = [sizes.nprobe or share for share in sizes.shares if program.searches]
                for share in list(dict.fromkeys(wanted)) or [0]:
                    cell = _Cell(parts, program, callers, requests, sizes)
                    more, limits = cell.measured(share)
                    rows += more
                    rates.append(limits)
    except ImportError as error:
        return [Row(one, str(error), "missing", 1, None, 1) for one in ARMS], {}
    return rows, over_cells(rates, rows)


def over_cells(rates: Sequence[Mapping[str, float]], rows: Sequence[Row]) -> dict[str, float]:
    """Return the ratios of all load cells, of the highest rates of each cell's arms and its rows.

    A ratio is missing where no cell has both arms, or where no request of plain was late.
    """
    pairs = {f"all_vs_{other}": (OURS, other) for other in (PLAIN, BY_HAND, STAGED, "blind")}
    pairs |= {"graph_vs_plain": (GRAPH, PLAIN), "retrieval_bound_vs_staged": (OURS, CODED)}
    found = dict[str, float]()
    for name, (one, other) in pairs.items():
        if gains := [each[one] / each[other] for each in rates if {one, other} <= each.keys()]:
            found[name] = geometric_mean(gains)
    plain, late = (
        sum(row.median for row in rows if (row.system, row.metric) == (arm, LATE))
        for arm in (PLAIN, OURS)
    )
    if plain:
        found["late_vs_plain"] = late / plain
    both = [each for each in rates if {OURS, GRAPH} <= each.keys()]
    ours, graph = ([each[PLAIN] / each[arm] for each in both] for arm in (OURS, GRAPH))
    if shares := _shares_of_graph(ours, graph):
        found["share_of_graph"] = mean(shares)
    return found


@dataclass(frozen=True, slots=True)
class _Cell:
    """One program under load, at one share of searching."""

    parts: Parts
    program: Any
    callers: Callers
    requests: Sequence[Request]
    sizes: Sizes

    def measured(self, share: int) -> tuple[list[Row], dict[str, float]]:
        """Return the rows, and the highest rate of each arm."""
        corpus = self.parts.corpus
        if share:
            nprobe = self.sizes.nprobe or self._nprobe(share / 100)
            corpus = replace(corpus, nprobe=nprobe)
        parts, rates = self.parts.over(corpus), dict[str, float]()
        servers = {STAGED: self.sizes.staged == "coded"}
        if share == BOUND_SHARE and not self.sizes.nprobe:
            servers[CODED] = True
        chosen = {PLAIN, *self.sizes.arms}
        with opened(parts, [self.program], is_local=False, servers=servers) as by_program:
            asks = {arm: ask for arm, ask in by_program[self.program.name].items() if arm in chosen}
            for ask in asks.values():
                for begun in [self.callers.begin(ask, one) for one in self.requests[:8]]:
                    begun.future.result()
            wait_until_compiled(_PATIENCE_S)
            alone = self._alone(asks[PLAIN])
            how = f"searching {share} % of the time" if share else "upload"
            how = f"nprobe {corpus.nprobe}" if share and self.sizes.nprobe else how
            workload = f"{self.program.name} ({self.program.framework}), {how}"
            share_is = self.program.searches * _search_s(corpus) / median(alone)
            rows = [row_of(PLAIN, workload, "unloaded_s", alone)]
            if share:
                rows.append(Row(PLAIN, workload, SHARE, share_is, None, len(alone)))
                rows.append(Row(PLAIN, workload, "nprobe", corpus.nprobe, None, 1))
            if CODED in asks:
                asked, pair = self.requests[: self.sizes.unloaded], (asks[PLAIN], asks[CODED])
                wanted, coded = ([self.callers.one(ask, one)[0] for one in asked] for ask in pair)
                different = sum(map(ne, coded, wanted))
                rows.append(Row(CODED, workload, DIFFERENT, different, None, len(wanted)))
            most_s = TIMES_UNLOADED * percentile(alone, 0.95)
            for name, ask in asks.items():
                with _threads(name, 1)():
                    rates[name] = highest_rate(
                        partial(self._keeps, ask, most_s), 2 / median(alone), self.sizes.probes
                    )
                rows.append(Row(name, workload, RATE, rates[name], None, self.sizes.probes))
            if OURS in asks:
                rows += self._late(asks[PLAIN], parts, workload, OVERLOAD * rates[PLAIN], most_s)
        found = {name: round(rate, 1) for name, rate in rates.items()}
        _logger.info("%s, measured %.1f %%: %s /s", workload, 100 * share_is, found)
        return rows, rates

    def _late(
        self, plain: Ask, parts: Parts, workload: str, rate: float, most_s: float
    ) -> Iterator[Row]:
        """Yield the shares of late requests: plain's, and ours with the objective as deadline."""
        load = (self.requests, rate, self.sizes.window, most_s)
        count = len(arrivals(rate, self.sizes.window))
        with bench_accelerator(deadline_s=most_s) as accelerator:
            ours = accelerated(self.program, self.program.plain(parts), accelerator)
            for begun in [self.callers.begin(ours, one) for one in self.requests[:8]]:
                begun.future.exception()  # a first request may take longer than its deadline
            wait_until_compiled(_PATIENCE_S)
            for name, ask in ((PLAIN, plain), (OURS, ours)):
                with _threads(name, 1)():
                    late = self.callers.late_share(ask, *load)
                yield Row(name, workload, LATE, late, None, count)

    def _keeps(self, ask: Ask, most_s: float, rate: float) -> bool:
        return self.callers.keeps(ask, self.requests, rate, self.sizes.seconds, most_s)

    def _alone(self, ask: Ask) -> list[float]:
        requests = [self.requests[at % len(self.requests)] for at in range(self.sizes.unloaded)]
        with torch_threads(1):
            return [self.callers.one(ask, one)[1] for one in requests]

    def _nprobe(self, share: float) -> int:
        """Return so many clusters that searches are near to a share of a plain request's time."""
        corpus = self.parts.corpus
        ask = self.program.ask(self.program.plain(self.parts), is_async=False)
        rest_s = median(self._alone(ask)) - self.program.searches * _search_s(corpus)
        wanted_s = share / (1 - share) * rest_s / self.program.searches
        most = len(corpus.centroids)
        least_s, most_s = (_search_s(corpus, nprobe) for nprobe in (1, most))
        each_s = max(1e-9, (most_s - least_s) / max(1, most - 1))
        return max(1, min(most, 1 + round((wanted_s - least_s) / each_s)))


def _search_s(corpus: Corpus, nprobe: int | None = None) -> float:
    """Return the seconds of a search of FAISS for one query."""
    index, times = corpus.faiss(nprobe=nprobe), list[float]()
    for place in range(7):
        query = np.ascontiguousarray(corpus.vectors[place : place + 1])
        started = time.perf_counter()
        index.search(query, TOP_K)
        times.append(time.perf_counter() - started)
    return median(times[2:])
