"""Measure what sharing calls of an embeddings server brings, and what a lone text waits for it.

The server is a process of its own, a scripted one: each call takes 50 ms and 1 ms a text, and it
runs eight calls at the same time, of which more queue, or those of all callers. Both arms are the
same chain around the same LangChain ``OpenAIEmbeddings``, whose clients and their connections are
as LangChain makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda

from bench.arms import bench_accelerator
from bench.embedding.levels import OURS, PLAIN, workload_of
from bench.loads import system_rows, throughput_ratio
from bench.measure import Pairs, alternate, median, ratios
from bench.results import Row, median_row
from bench.serving.processes import HostedServer
from langchain_rag_accel import accelerate
from rag_accel.errors import EngineError
from rag_accel_demo.load import Load, run_load


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and the script of the server.

    Args:
        callers: threads that ask for one text each, all at the same time.
        lone_texts: texts of a run of one caller.
        repeats: turns.
        at_once: calls that the server runs at the same time.
        call_s: seconds of a call.
        text_s: seconds of each of its texts, besides.
    """

    callers: int = 32
    lone_texts: int = 8
    repeats: int = 5
    at_once: int = 8
    call_s: float = 0.05
    text_s: float = 0.001

    @property
    def wide(self) -> Sizes:
        """Return the sizes with a server that runs the calls of all callers at the same time."""
        return replace(self, at_once=self.callers)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, and how many texts were in each call that reached the server."""

    load: Load
    calls: tuple[int, ...]


def hosted(texts: Sequence[str], sizes: Sizes) -> tuple[dict[str, float], list[Row]]:
    """Return ``hosted_vs_plain``, ``hosted_alone`` and ``hosted_wide``, and the rows behind them.

    Raises:
        EngineError: if concurrent callers shared nothing: the figures would not be ours.
    """
    many, few = texts[: sizes.callers], texts[: sizes.lone_texts]
    together, alone = _measured(sizes, [(many, sizes.callers), (few, 1)])
    _require_shared(together)
    (wide,) = _measured(sizes.wide, [(many, sizes.callers)])
    medians_ms = alone.map(lambda run: run.load.median_ms)
    found = {
        "hosted_vs_plain": throughput_ratio(together.map(_load)),
        "hosted_alone": median(ratios(medians_ms)),
        "hosted_wide": throughput_ratio(wide.map(_load)),
    }
    rows = [*_rows(together, sizes.callers), *_rows(alone, 1)]
    return found, [*rows, *_rows(wide, sizes.callers, "wide embeddings server")]


def _measured(sizes: Sizes, loads: Sequence[tuple[Sequence[str], int]]) -> list[Pairs[Run]]:
    """Return the runs of each load: texts, and the number of callers who embed one each."""
    script = {"at_once": sizes.at_once, "call_s": sizes.call_s, "text_s": sizes.text_s}
    with HostedServer(**script) as server, _embeddings(server.url("/v1")) as embeddings:
        plain = _chain(embeddings)
        with bench_accelerator() as accelerator:
            fast = accelerate(plain, accelerator=accelerator)

            def measured(texts: Sequence[str], callers: int) -> Pairs[Run]:
                return alternate(
                    partial(_run, server, plain, texts, callers),
                    partial(_run, server, fast, texts, callers),
                    sizes.repeats,
                    warm_up=1,
                )

            return [measured(*load) for load in loads]


def _run(server: HostedServer, chain: Any, texts: Sequence[str], callers: int, turn: int) -> Run:
    """Let callers in threads embed the texts, one text a call."""
    load = run_load(chain, texts, callers, "threads")
    return Run(load, tuple(server.state()["texts"]))


@contextmanager
def _embeddings(base_url: str) -> Iterator[Any]:
    """Give embeddings of a server as a program has them, but for a tokenizer that is downloaded."""
    from langchain_openai import OpenAIEmbeddings
    from pydantic import SecretStr

    made = OpenAIEmbeddings(
        model="text-embedding-3-small",
        base_url=base_url,
        api_key=SecretStr("none"),
        check_embedding_ctx_length=False,
    )
    try:
        yield made
    finally:
        made.client._client.close()
        asyncio.run(made.async_client._client.close())


def _chain(embeddings: Any) -> Runnable[str, list[float]]:
    def embed(text: str) -> list[float]:
        return embeddings.embed_query(text)

    return RunnableLambda(embed)


def _load(run: Run) -> Load:
    return run.load


def _require_shared(pairs: Pairs[Run]) -> None:
    plain, ours = (sum(len(run.calls) for run in runs) for runs in (pairs.plain, pairs.other))
    if ours >= plain:
        raise EngineError(
            "callers of an embeddings server shared no calls",
            where="bench.embedding.hosted",
            found=f"{ours} calls accelerated, {plain} plain",
            valid="fewer calls accelerated than plain",
            hint="see the log under rag_accel",
        )


def _rows(pairs: Pairs[Run], callers: int, server: str = "embeddings server") -> list[Row]:
    workload = f"{server}, {workload_of(callers, 'threads')}"
    rows: list[Row] = []
    for system, runs in ((PLAIN, pairs.plain), (OURS, pairs.other)):
        rows += system_rows(system, workload, [run.load for run in runs], "texts_per_s")
        calls = [float(len(run.calls)) for run in runs]
        rows.append(median_row(system, workload, "server_calls", calls))
    wanted, got = (
        [vector for run in runs for vector in run.load.answers]
        for runs in (pairs.plain, pairs.other)
    )
    different = sum(one != other for one, other in zip(wanted, got, strict=True))
    return [*rows, Row(OURS, workload, "different_answers", different, None, len(got))]
