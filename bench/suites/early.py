"""Measure work that begins early on a model's server: prompts' beginnings, and items of lists.

A ``RAGraph`` searches by a function of the user's, which waits, and then answers over the history
of the conversation, the documents found and the question. Its model is a ``RemoteLLM`` over a
scripted server in a process of its own: one lane computes prompts, by 0.1 ms a token (a word) that
the server's prefix cache lacks, and an answer's token takes 10 ms. The cache keeps what was
computed of a prompt whose client has gone. Each history is new to the server. Arms differ in
``RemoteLLM(early=True)`` alone, take turns, and have a server each; a search of 150 ms and a
history of 2,000 tokens before 500 others allow 0.63.

Under load 16 users ask at once, request after request, with shorter prompts: the server's lane is
then never idle, and nothing is to be begun early.

The list is a program in which the model writes four lines of 20 tokens; each is searched (100 ms)
and the 16 documents found for each are reranked (12 ms a pair, one lane). Engines other than the
model sleep as the script says. Arms are the default passes, and
these without ``pipeline_decoding`` and ``rerank_by_source``; the script allows 0.65.

The grader is a LangGraph program over SmolLM2 135M Instruct (float32, greedy) in this process: it
grades each of four found documents by a call, one after the other, and answers. Arms are the
default passes, and these without ``early_prefill``; both have had two questions before.

All answers must be equal in both arms.

Ratios:
    early_ttft: against the same graph without early beginnings: seconds to the first piece of an
        answer / without, one user (lower is better); median over pairs; wanted 0.75.
    early_wasted: against all tokens of the prompts: tokens computed early that no prompt went on
        with / these, one user and 16 (lower is better); wanted 0.05.
    early_saturated: against the same graph without early beginnings: requests a second of 16 users
        at once / without; median over pairs; wanted 0.99.
    early_lists: against the same graph without ``pipeline_decoding`` and ``rerank_by_source``,
        which are on by default for a lone request: seconds of a request / without, one user (lower
        is better); median over pairs; wanted 0.8.
    early_answers: against the same program without ``early_prefill``, which is on by default:
        seconds of a request / without, one user (lower is better); median over pairs.
    one_user: against the same programs without what begins early: time of one user's request with
        it / without (lower is better; accepted: at most 1.03); median over pairs, the worst of
        the three programs.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.early_server import ASKS_LINES, NUM_LINES
from bench.graders import grading_graph
from bench.loads import counted
from bench.measure import Pairs, alternate, median, ratios
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from bench.serving.processes import ServerProcess
from bench.together.material import Material, real_material
from bench.workflows.parts import embedders_of
from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Capability, Engine, LatencyModel, PrimitiveKind
from rag_accel.engines import RemoteLLM
from rag_accel.graph import FrozenRAGraph
from rag_accel.passes.early_prefill import EARLY_PREFILL
from rag_accel.passes.manager import passes_named
from rag_accel.testing import FAKE_PROFILE, FakeEngine
from rag_accel.workflows import steps

OFF, ON = "early off", "early on"
LISTS_OFF, LISTS_ON = "whole list", "line by line"
GRADES_OFF, GRADES_ON = "one by one", "together"
DIFFERENT, TTFT, LATENCY = "different_answers", "ttft_ms", "latency_ms"
LISTS = frozenset({"pipeline_decoding", "rerank_by_source"})

SCRIPTED = "the hosted model and the engines of the list sleep; the model of the grader is real"
_logger = logging.getLogger("bench.early")
_Found = tuple[list[Row], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and the script.

    Args:
        pairs: of requests of one user.
        history: tokens before a prompt's documents.
        rest: tokens of the documents and the question.
        search_s: seconds of a search.
        load_pairs: of runs of all users at once.
        users: that ask at once.
        requests: of each of them in a run.
        load_history, load_rest: tokens of their prompts.
        list_pairs: of requests with a list.
        line_search_s: seconds of the search of a line.
        documents: found for a line.
        pair_s: seconds of a pair in the reranker.
        grader_pairs: of requests of the grader.
        texts, words: documents that it searches, and of each the most words.
        tokens: most tokens of a grade, or an answer.
    """

    pairs: int = 15
    history: int = 2000
    rest: int = 500
    search_s: float = 0.15
    load_pairs: int = 3
    users: int = 16
    requests: int = 3
    load_history: int = 500
    load_rest: int = 125
    list_pairs: int = 5
    line_search_s: float = 0.1
    documents: int = 16
    pair_s: float = 0.012
    grader_pairs: int = 7
    texts: int = 200
    words: int = 60
    tokens: int = 12


QUICK = Sizes()
FULL = Sizes(pairs=100, load_pairs=15, requests=6, list_pairs=30, grader_pairs=30)


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over real models."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or real_material(chosen.texts, 1_000, 32)
    alone = dict[str, Pairs[float]]()
    rows, found = _beginnings(chosen, alone)
    for more_rows, more in (_lists(chosen, alone), _graders(chosen, given, alone)):
        rows += more_rows
        found |= more
    more_rows, more = one_user(alone)
    rows += more_rows
    found |= more
    _logger.info("%s", found)
    wrong = too_many(rows, DIFFERENT)
    return SuiteResult(
        "early", tuple(rows), found, scripted=SCRIPTED, sizes=sizes_of(chosen), wrong=wrong
    )


class PromptServer(ServerProcess):
    """A process of ``bench.early_server``."""

    def __init__(self) -> None:
        super().__init__("bench.early_server")

    def state(self) -> dict[str, int]:
        """Return the tokens since the last time."""
        return json.loads(self.asked("state"))


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the seconds until its first piece and until its last."""

    text: str
    first_s: float
    all_s: float


class Arm:
    """The graph on an accelerator of its own, over a server of its own.

    Args:
        accelerator: with the model.
        server: of the model.
        sizes: of the search and the documents.
    """

    def __init__(self, accelerator: Accelerator, server: PromptServer, sizes: Sizes) -> None:
        self._accelerator, self.server, self._sizes = accelerator, server, sizes
        accelerator.add_engine("index", self._search)
        graph = RAGraph(["input", "history"])
        graph.add_retrieval("search", query="input", top_k=1, output="docs")
        graph.add_generation("answer", prompt="{history}\n\n{docs}\n\n{input}")
        graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
        self._graph = graph.freeze()

    def ask(self, turn: int) -> Answered:
        """Return the answer to a question that nobody has asked before."""
        question, history = self._asked(f"user {turn}", self._sizes.history, self._sizes.rest)
        began = time.perf_counter()
        pieces = self._accelerator.stream(self._graph, input=question, history=history)
        first = next(pieces)
        first_s = time.perf_counter() - began
        text = "".join([first, *pieces])
        return Answered(text, first_s, time.perf_counter() - began)

    def load(self, turn: int) -> tuple[float, list[str]]:
        """Let all users ask; return the seconds until the last has its answers, and these."""
        sizes = self._sizes

        def ask_all(user: int) -> list[str]:
            names = [f"load {turn} {user} {number}" for number in range(sizes.requests)]
            asked = [self._asked(name, sizes.load_history, sizes.load_rest) for name in names]
            return [
                self._accelerator.run(self._graph, input=question, history=history)
                for question, history in asked
            ]

        began = time.perf_counter()
        with ThreadPoolExecutor(sizes.users) as threads:
            found = list(threads.map(ask_all, range(sizes.users)))
        return time.perf_counter() - began, [text for texts in found for text in texts]

    def _asked(self, name: str, history: int, rest: int) -> tuple[str, str]:
        """Return a question, whose length tells how long its documents are, and a history."""
        question = f"{name} {rest}"
        return question, " ".join(f"{name.replace(' ', '-')}-{at}" for at in range(history))

    def _search(self, query: str, k: int) -> list[str]:
        time.sleep(self._sizes.search_s)
        rest = int(query.rpartition(" ")[2]) - len(query.split()) - 1  # a document has a number
        return [" ".join(["passage"] * rest)]


@contextmanager
def _arm(sizes: Sizes, *, early: bool) -> Iterator[Arm]:
    with PromptServer() as server, bench_accelerator() as accelerator:
        accelerator.add_engine("llm", RemoteLLM(server.url("/v1"), "scripted", early=early))
        yield Arm(accelerator, server, sizes)


def _beginnings(sizes: Sizes, lone: dict[str, Pairs[float]]) -> _Found:
    with _arm(sizes, early=False) as plain, _arm(sizes, early=True) as early:
        alone = alternate(plain.ask, early.ask, sizes.pairs, warm_up=1)
        loads = alternate(plain.load, early.load, sizes.load_pairs)
        tokens = early.server.state()
    firsts = alone.map(lambda answered: answered.first_s)
    walls = loads.map(lambda load: load[0])
    num_loaded = sizes.users * sizes.requests
    rates = walls.map(lambda wall_s: num_loaded / wall_s)
    alone_name, load_name = "1 user", f"{counted(sizes.users, 'user')} at once"
    lone["1 user, a search"] = alone.map(lambda answered: in_ms(answered.all_s))
    rows = [
        *_both(row_of, alone_name, TTFT, firsts.map(in_ms), (OFF, ON)),
        *_both(median_row, load_name, "requests_per_s", rates, (OFF, ON)),
        _different(ON, alone_name, alone.map(lambda answered: [answered.text])),
        _different(ON, load_name, loads.map(lambda load: load[1])),
        *(Row(ON, "all", f"{name}_tokens", count, None, 1) for name, count in tokens.items()),
    ]
    return rows, {
        "early_ttft": median(ratios(firsts)),
        "early_wasted": (tokens["early"] - tokens["used"]) / tokens["prompt"],
        "early_saturated": median(ratios(rates)),
    }


def _lists(sizes: Sizes, lone: dict[str, Pairs[float]]) -> _Found:
    graph = _list_graph(sizes).freeze()
    without = (passes_named("default") or LISTS) - LISTS
    with (
        PromptServer() as server,
        _list_accelerator(sizes, server, ",".join(sorted(without))) as whole,
        _list_accelerator(sizes, server, "default") as by_line,
    ):
        pairs = alternate(_lister(whole, graph), _lister(by_line, graph), sizes.list_pairs)
    walls, workload = pairs.map(lambda each: each[0]), "1 user, a list"
    lone[workload] = walls.map(in_ms)
    rows = [
        *_both(row_of, workload, LATENCY, walls.map(in_ms), (LISTS_OFF, LISTS_ON)),
        _different(LISTS_ON, workload, pairs.map(lambda each: each[1])),
    ]
    return rows, {"early_lists": median(ratios(walls))}


def _list_graph(sizes: Sizes) -> RAGraph:
    graph = RAGraph()
    graph.add_generation("expand", prompt=f"{{input}}\n{ASKS_LINES}", output="expansion")
    graph.add_function("lines", steps.Queries(NUM_LINES), inputs=["expansion", "input"])
    graph.add_edge(START, "expand").add_edge("expand", "lines")
    numbers = range(1, NUM_LINES + 1)
    for number in numbers:
        line, search = f"line{number}", f"search{number}"
        graph.add_function(line, steps.Nth(number - 1), inputs="lines")
        graph.add_retrieval(search, query=line, top_k=sizes.documents, output=f"found{number}")
        graph.add_edge("lines", line).add_edge(line, search)
    found = [f"found{number}" for number in numbers]
    graph.add_function("merge", steps.merged, inputs=found, output="found")
    graph.add_rerank("rerank", documents="found", top_n=sizes.documents, output="docs")
    graph.add_edge([f"search{number}" for number in numbers], "merge")
    return graph.add_edge("merge", "rerank").add_edge("rerank", END)


@contextmanager
def _list_accelerator(sizes: Sizes, server: PromptServer, passes: str) -> Iterator[Accelerator]:
    with bench_accelerator(passes=passes) as accelerator:
        accelerator.add_engine("llm", RemoteLLM(server.url("/v1"), "scripted"))
        accelerator.add_engine("embedder", _sleeping(PrimitiveKind.EMBEDDING, LatencyModel()))
        search = LatencyModel(base_s=sizes.line_search_s)
        accelerator.add_engine("index", _sleeping(PrimitiveKind.SEARCHING, search))
        pairs = LatencyModel(per_item_s=sizes.pair_s)
        accelerator.add_engine("reranker", _sleeping(PrimitiveKind.RERANKING, pairs))
        yield accelerator


def _sleeping(kind: PrimitiveKind, latency: LatencyModel) -> Engine:
    """Return an engine of one lane that computes elsewhere, and sleeps meanwhile."""
    abilities = frozenset({Capability.ITEMWISE})
    kinds = frozenset({kind})
    profile = replace(
        FAKE_PROFILE, kinds=kinds, latency=latency, max_threads=0, capabilities=abilities
    )
    return FakeEngine(profile, wait=time.sleep)


def _lister(accelerator: Accelerator, graph: FrozenRAGraph) -> Any:
    """Return an arm: the seconds of a request, and the documents in their order."""

    def ask(turn: int) -> tuple[float, list[str]]:
        began = time.perf_counter()
        found = accelerator.run(graph, input=f"question {turn}")
        return time.perf_counter() - began, [hit.document.id for hit in found]

    return ask


def _graders(sizes: Sizes, material: Material, lone: dict[str, Pairs[float]]) -> _Found:
    texts = [" ".join(text.split()[: sizes.words]) for text in material.texts]
    without = ",".join(sorted((passes_named("default") or {EARLY_PREFILL}) - {EARLY_PREFILL}))
    chat = ChatRagAccel(model=material.model, tokenizer=material.tokenizer, max_tokens=sizes.tokens)
    embeddings = embedders_of(material)[0]
    with bench_accelerator(passes=without) as one, bench_accelerator() as other:
        plain, early = (
            _grader(
                accelerate(grading_graph(chat, embeddings, texts, 4), accelerator=each), material
            )
            for each in (one, other)
        )
        for turn in (-1, -2):
            plain(turn)
            early(turn)
        pairs = alternate(plain, early, sizes.grader_pairs)
    walls, workload = pairs.map(lambda each: each[0]), "1 user, grades"
    lone[workload] = walls.map(in_ms)
    rows = [
        *_both(row_of, workload, LATENCY, walls.map(in_ms), (GRADES_OFF, GRADES_ON)),
        _different(GRADES_ON, workload, pairs.map(lambda each: each[1])),
    ]
    return rows, {"early_answers": median(ratios(walls))}


def _grader(graph: Any, material: Material) -> Any:
    """Return an arm: the seconds of a request, and its grades and answer."""
    asked = [question.text for question in material.questions]

    def ask(turn: int) -> tuple[float, list[str]]:
        began = time.perf_counter()
        found = graph.invoke({"question": asked[turn % len(asked)]})
        return time.perf_counter() - began, [*found["grades"], found["answer"]]

    return ask


def _both(
    row: Any, workload: str, metric: str, pairs: Pairs[float], systems: tuple[str, str]
) -> list[Row]:
    plain, other = systems
    return [row(plain, workload, metric, pairs.plain), row(other, workload, metric, pairs.other)]


def _different(system: str, workload: str, answers: Pairs[Sequence[str]]) -> Row:
    """Count the answers that are not those of the other arm."""
    pairs = list(zip(answers.plain, answers.other, strict=True))
    texts = [pair for plain, other in pairs for pair in zip(plain, other, strict=True)]
    different = sum(plain != other for plain, other in texts)
    return Row(system, workload, DIFFERENT, different, None, len(texts))
