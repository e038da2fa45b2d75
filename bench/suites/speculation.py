"""Measure answers that begin with what their search has found so far (HedraRAG section 4.3).

A ``RAGraph`` searches a synthetic index of clusters on one thread, and answers over the five
documents found. Its model is a ``RemoteLLM(early=True)`` over a scripted server in a process of its
own, whose tokens take as long as the share of the search in a request asks for; one lane computes
prompts, 0.1 ms a token (a word). Requests arrive at random times, the same for every arm, at so
much of what one search after the other would carry. All arms read searches in pieces where that
helps others, and have had the same questions before, from which they learn.

The papers' rules are arms where the search takes most: they begin with any result while the model
has room.

All answers, and the tokens that are told of them, must be equal in all arms.

Ratios:
    gain_20: against the same graph without speculation: mean ms of a request without / with, where
        the search takes 20 % of it and the load is 0.1; mean over lengths of answers.
    gain_40: against the same graph without speculation: the same where the search takes 40 %.
    worst: against the same graph without speculation: the least such ratio of all cells.
    wasted_decoded: against all tokens of answers: tokens of answers that were dropped / these, all
        cells (lower is better).
    wasted_prompt: against all tokens of prompts: the same of prompts.
    over_rules: against the better of the papers' rules: mean ms of a request by that rule / by
        ours; mean over loads.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.early_server import PROMPT_TOKEN_S
from bench.paired import in_ms
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.serving.processes import ServerProcess
from bench.speculation_rules import RULES, Rule, ruled
from bench.vectors import IndexSize, build_index, make_mixture
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import RemoteLLM
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine
from rag_accel.passes.manager import passes_named
from rag_accel.passes.speculate import SPECULATE
from rag_accel.system.files import user_cache
from rag_accel.testing import FAKE_PROFILE, FakeEngine

WITHOUT, WITH = "without speculation", "with speculation"
K, SEED, WORDS, CALLERS, TIMED = 5, 1 << 41, 20, 64, 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        index: what is searched; a search visits its ``nprobe`` clusters.
        shares: of a request that its search takes.
        tokens: of an answer.
        loads: requests that are measured, by how many come while one is searched for.
        learned: requests of each arm before the first measured one.
    """

    index: IndexSize = field(default_factory=lambda: IndexSize(1_000_000, 1024, 1024))
    shares: tuple[float, ...] = (0.2, 0.4)
    tokens: tuple[int, ...] = (40, 90)
    loads: dict[float, int] = field(default_factory=lambda: {0.1: 16, 0.5: 40, 0.9: 60})
    learned: int = 24


QUICK = Sizes()
FULL = Sizes(loads={0.1: 60, 0.5: 200, 0.9: 300})


def run(quick: bool, sizes: Sizes | None = None, cache: Path | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    index = build_index(chosen.index, cache or user_cache(), _text)
    questions = Questions(chosen.index.dimension)
    search_s = _search_s(index, questions)
    rows, tokens, ratios = list[Row](), Tokens(), dict[tuple[float, float], list[float]]()
    over_rules = list[float]()
    for share in chosen.shares:
        for length in chosen.tokens:
            rules = RULES if share == max(chosen.shares) else {}
            token_s = search_s * (1 / share - 1) - K * (WORDS + 1) * PROMPT_TOKEN_S
            cell = f"{round(100 * share)} % search, {length} tokens"
            with ExitStack() as stack:
                arms = [
                    stack.enter_context(_arm(index, questions, length, token_s / length, *arm))
                    for arm in ((WITHOUT, None), (WITH, None), *rules.items())
                ]
                for load, runs in _loads(arms, questions, chosen, search_s).items():
                    workload = f"{cell}, load {load}"
                    means = {name: mean(run.seconds) for name, run in runs.items()}
                    ratios.setdefault((share, load), []).append(means[WITHOUT] / means[WITH])
                    for name, one in runs.items():
                        rows.append(row_of(name, workload, "latency_ms", one.in_ms))
                        rows.append(_different(name, workload, one, runs[WITHOUT]))
                    if rules:
                        over_rules.append(min(means[name] for name in rules) / means[WITH])
                asked = chosen.learned + sum(chosen.loads.values())
                tokens.add(arms[1].server.state(), asked, length)
                rows += [
                    Row(WITH, cell, name, count, None, 1)
                    for name, count in arms[1].counts().items()
                ]
    least = min(chosen.loads)
    found = {f"gain_{round(100 * one)}": mean(ratios[one, least]) for one in chosen.shares}
    found["worst"] = min(ratio for cell in ratios.values() for ratio in cell)
    found |= tokens.wasted()
    found["over_rules"] = mean(over_rules)
    wrong = too_many(rows, "different_answers")
    return SuiteResult(
        "speculation", tuple(rows), found, scripted=True, sizes=sizes_of(chosen), wrong=wrong
    )


def _text(number: int) -> str:
    return " ".join(f"passage-{number}-{word}" for word in range(WORDS))


class Questions:
    """Questions with vectors of one mixture: the text of each is its number."""

    def __init__(self, dimension: int) -> None:
        self._mixture, self._number = make_mixture(dimension), SEED

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return the vectors of questions, ``[n, dim], float32``."""
        return np.concatenate([self._mixture.draw(1, int(text)) for text in texts])

    def draw(self, count: int) -> list[str]:
        """Return questions that were never drawn before."""
        self._number += count
        return [str(number) for number in range(self._number - count, self._number)]


def _search_s(index: DocumentIndex, questions: Questions) -> float:
    """Return the least seconds of a search on one thread."""
    seconds = list[float]()
    with bench_accelerator() as accelerator:
        accelerator.add_engine("index", RetrievalEngine(index, max_threads=1))
        accelerator.add_engine("embedder", _embedder(questions))
        graph = RAGraph(["input"]).add_retrieval("search", top_k=K, output="docs")
        frozen = graph.add_edge(START, "search").add_edge("search", END).freeze()
        for question in questions.draw(TIMED):
            began = time.perf_counter()
            accelerator.run(frozen, input=question)
            seconds.append(time.perf_counter() - began)
    return min(seconds)


def _embedder(questions: Questions) -> FakeEngine:
    return FakeEngine(FAKE_PROFILE, compute=lambda batch: questions.vectors(batch.texts))


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers of a load, and the seconds of each from when it was due."""

    answers: tuple[Any, ...]
    seconds: tuple[float, ...]

    @property
    def in_ms(self) -> list[float]:
        """Return the latencies."""
        return [in_ms(seconds) for seconds in self.seconds]


class SpeculationServer(ServerProcess):
    """A process of ``bench.early_server`` with answers of so many tokens."""

    def __init__(self, tokens: int, token_s: float) -> None:
        super().__init__("bench.early_server", str(tokens), str(token_s))

    def state(self) -> dict[str, int]:
        """Return the tokens since the last time."""
        return json.loads(self.asked("state"))


@dataclass(frozen=True, slots=True)
class SpeculationArm:
    """A graph on an accelerator of its own, over a server of its own.

    Args:
        name: of the arm.
        accelerator: with the model, the index and the embedder.
        server: of the model.
        rule: says when an answer begins; None leaves it to the accelerator.
    """

    name: str
    accelerator: Accelerator
    server: SpeculationServer
    rule: Rule | None

    def ask(self, question: str) -> Any:
        """Return the answer, and what is told of its tokens."""
        handle = self.accelerator.submit(_GRAPH, input=question)
        return handle.result(), handle.usage

    def load(self, questions: Sequence[str], due_s: Sequence[float]) -> Answered:
        """Ask each question when it is due."""
        began = time.perf_counter()

        def ask(question: str, at_s: float) -> tuple[Any, float]:
            time.sleep(max(0.0, began + at_s - time.perf_counter()))
            answer = self.ask(question)
            return answer, time.perf_counter() - began - at_s

        with ruled(self.rule), ThreadPoolExecutor(CALLERS) as threads:
            found = list(threads.map(ask, questions, due_s))
        return Answered(tuple(one for one, _ in found), tuple(took_s for _, took_s in found))

    def counts(self) -> dict[str, float]:
        """Return what became of speculations."""
        snapshot = self.accelerator.metrics.snapshot()
        return {
            name: sum(by_stage.values())
            for name, by_stage in snapshot.items()
            if name.startswith("speculation_")
        }


def _graph() -> RAGraph:
    graph = RAGraph(["input"]).add_retrieval("search", top_k=K, output="docs")
    graph.add_generation("answer", prompt="{docs}\n\n{input}")
    return graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


_GRAPH = _graph().freeze()


@contextmanager
def _arm(
    index: DocumentIndex,
    questions: Questions,
    tokens: int,
    token_s: float,
    name: str,
    rule: Rule | None,
) -> Iterator[SpeculationArm]:
    default = passes_named("default") or frozenset()
    passes = ",".join(sorted(default - {SPECULATE})) if name == WITHOUT else "default"
    with (
        SpeculationServer(tokens, token_s) as server,
        bench_accelerator(passes=passes) as accelerator,
    ):
        accelerator.add_engine("llm", RemoteLLM(server.url("/v1"), "scripted", early=True))
        accelerator.add_engine("index", RetrievalEngine(index, max_threads=1))
        accelerator.add_engine("embedder", _embedder(questions))
        yield SpeculationArm(name, accelerator, server, rule)


def _loads(
    arms: Sequence[SpeculationArm], questions: Questions, sizes: Sizes, search_s: float
) -> dict[float, dict[str, Answered]]:
    """Return what each arm makes of each load, one arm after the other."""
    learned = questions.draw(sizes.learned)
    for arm in arms:
        with ruled(arm.rule):
            for question in learned:
                arm.ask(question)
    found: dict[float, dict[str, Answered]] = {}
    for load, count in sizes.loads.items():
        chance = random.Random(count)
        asked, due_s = questions.draw(count), [0.0]
        while len(due_s) < count:
            due_s.append(due_s[-1] + chance.expovariate(load / search_s))
        found[load] = {arm.name: arm.load(asked, due_s) for arm in arms}
    return found


def _different(name: str, workload: str, one: Answered, other: Answered) -> Row:
    pairs = zip(one.answers, other.answers, strict=True)
    wrong = sum(ours != plain for ours, plain in pairs)
    return Row(name, workload, "different_answers", wrong, None, len(one.answers))


class Tokens:
    """The tokens of one arm's servers, and those that its requests needed."""

    def __init__(self) -> None:
        self._made, self._needed = Counter[str](), Counter[str]()

    def add(self, state: dict[str, int], requests: int, tokens: int) -> None:
        """Count a server's tokens, of so many requests with answers of ``tokens``."""
        needed = {"prompt": requests * (K * (WORDS + 1) + 1), "decoded": requests * tokens}
        for name, count in needed.items():
            self._made[name] += state[name]
            self._needed[name] += count

    def wasted(self) -> dict[str, float]:
        """Return the shares of tokens that no request needed, of all that were needed."""
        return {
            f"wasted_{name}": self._made[name] / needed - 1 for name, needed in self._needed.items()
        }
