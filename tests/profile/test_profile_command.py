"""``rag-accel profile`` runs a program as it is, tells of its calls, and refuses what it cannot."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_classic")
pytest.importorskip("llama_index.core")

from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import get_response_synthesizer
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.accelerator import current_request
from rag_accel.cli import main
from rag_accel.cli.profile import ProgramProfile, profile_program
from rag_accel.clock import MonotonicClock
from rag_accel.interception import watching
from rag_accel.interception.patches import patches
from rag_accel.profile.prediction import WatchedCall
from rag_accel.testing import ManualClock

CLOCK = ManualClock()
HERE = "test_profile_command"


class Search(BaseRetriever):
    takes_s: float

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        CLOCK.advance(self.takes_s)
        return [Document(f"{self.takes_s} {query}")]


class Lengths(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        CLOCK.advance(2.0)
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Streaming(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "streaming"

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="an answer"))


def answer(documents: list[Document]) -> str:
    CLOCK.advance(1.0)
    if "bad" in documents[0].page_content:
        raise ValueError("no bad questions")
    return documents[0].page_content


def ensemble() -> Runnable[Any, Any]:
    searches: list[Any] = [Search(takes_s=3.0), Search(takes_s=4.0)]
    return EnsembleRetriever(retrievers=searches, weights=[0.5, 0.5]) | RunnableLambda(answer)


chain = ensemble()
number = 3


def __getattr__(name: str) -> Any:
    """Accelerate the chain as long as somebody holds it: classes stay patched meanwhile."""
    if name == "fast":
        return accelerate(chain)
    raise AttributeError(name)


@pytest.fixture(autouse=True)
def on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MonotonicClock, "now", lambda _: CLOCK.now())


def profiled(
    program: Any, *questions: Any, names: tuple[str, ...] = (f"{__name__}.Search",), **more: Any
) -> ProgramProfile:
    with Accelerator(thread_safe_classes=names) as accelerator:
        return profile_program(program, questions or ("one?", "two?"), accelerator, **more)


def shares(found: ProgramProfile) -> dict[str, tuple[float, float]]:
    return {part.part: (part.calls, round(part.share, 3)) for part in found.parts}


def gains(found: ProgramProfile) -> dict[str, float | None]:
    return {row.option: row.gain for row in found.predictions}


def test_each_moment_belongs_to_a_part_or_to_the_program() -> None:
    found = profiled(ensemble())
    assert shares(found) == {"Search": (2.0, 0.875)}
    assert found.rest_share == pytest.approx(1 / 8)
    assert (found.answered, found.mean_ms) == (2, pytest.approx(8000))
    assert gains(found)["accelerate()"] == pytest.approx(8 / 5)
    assert any(
        "EnsembleRetriever.rank_fusion makes its calls in parallel" in at for at in found.acts
    )


def test_classes_that_are_not_named_are_an_option() -> None:
    found = profiled(ensemble(), names=())
    assert gains(found)["accelerate()"] == 1.0
    assert gains(found)["thread_safe_classes"] == pytest.approx(8 / 5)


def test_a_call_inside_of_a_call_has_its_own_time() -> None:
    store = InMemoryVectorStore.from_texts(["a", "bb"], Lengths())
    found = profiled(store.as_retriever() | RunnableLambda(answer))
    assert shares(found)["Lengths"] == (1.0, 0.667)
    assert found.rest_share == pytest.approx(1 / 3)


def test_the_plain_run_schedules_nothing_and_leaves_no_patch() -> None:
    before, seen = patches.patched(), list[Any]()
    profiled(RunnableLambda(lambda text: seen.append(current_request.get())) | ensemble())
    assert seen == [None] * 3
    assert patches.patched() == before


def test_a_question_that_fails_is_told_and_the_others_go_on() -> None:
    found = profiled(ensemble(), "one?", "bad?", "two?")
    assert (found.answered, found.failed) == (2, 1)
    assert "question 2 failed: ValueError: no bad questions" in found.notes


def test_a_program_that_changes_its_shape_every_time_is_told() -> None:
    search = Search(takes_s=1.0)

    def several(text: str) -> list[Any]:
        return [search.invoke(text) for _ in text]

    found = profiled(RunnableLambda(several), "a", "ab", "abc")
    assert any(note.startswith("3 requests made 3 different sequences") for note in found.notes)
    assert shares(found) == {"Search": (2.0, 1.0)}


def test_calls_and_requests_beyond_the_bounds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_CALLS", 5)
    search = Search(takes_s=1.0)
    found = profiled(RunnableLambda(lambda _: [search.invoke(f"{n}") for n in range(20)]), "a")
    assert shares(found) == {"Search": (5.0, 0.25)}
    assert found.rest_share == pytest.approx(0.75)
    assert found.notes[0].startswith("15 calls beyond the first ")
    monkeypatch.setattr(watching, "MOST_CALLS_IN_ALL", 6)
    notes = profiled(ensemble(), "a", "b", "c", "d").notes
    assert any(note.startswith("2 requests after ") for note in notes)


def test_streams_and_calls_in_bare_threads_are_counted() -> None:
    search, model = Search(takes_s=1.0), Streaming()

    def ask(text: str) -> int:
        thread = threading.Thread(target=search.invoke, args=(text,))
        thread.start()
        thread.join()
        return len(list(model.stream(text)))

    found = profiled(RunnableLambda(ask), "a")
    assert found.parts == ()
    assert found.notes[0].startswith("2 calls were streamed, or made in threads without context")


def test_a_call_that_outlives_its_caller_takes_the_time_from_it() -> None:
    left = watching.TimedCall("left", "", WatchedCall(1), 1.0, 3.0)
    caller = watching.TimedCall("caller", "", WatchedCall(1), 0.0, 2.0, [left])
    pieces = [(began_s, ended_s, call.name) for began_s, ended_s, call, _ in caller.pieces(2.5)]
    assert pieces == [(0.0, 1.0, "caller"), (1.0, 2.5, "left")]


def test_a_program_that_is_async_only_is_awaited() -> None:
    search = Search(takes_s=1.0)

    async def ask(text: str) -> str:
        await search.ainvoke(text)
        return text

    found = profiled(RunnableLambda(ask), measure=True)
    assert (found.answered, found.failed) == (2, 0)
    assert shares(found) == {"Search": (1.0, 1.0)}
    assert found.measured is not None


def test_a_question_of_a_megabyte_is_kept_nowhere() -> None:
    found = profiled(ensemble(), "x" * 2**20, "one?")
    assert found.answered == 2
    assert len(str(found)) < 20_000


def test_a_measured_gain_stands_beside_the_prediction() -> None:
    found = profiled(ensemble(), *map(str, range(6)), users=3, measure=True)
    assert (found.answered, found.users, shares(found)["Search"][0]) == (6, 3, 2.0)
    assert re.search(r"accelerate\(\): \d\.\d\dx, measured \d+\.\d\dx", str(found))


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    path = tmp_path / "questions.jsonl"
    path.write_text('one?\n\n"two?"\n')
    return path


def test_the_command_prints_a_page_or_json(
    questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", f"{HERE}:chain", str(questions), "--calls", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["program"], found["answered"]) == (f"{HERE}:chain", 3)
    assert found["parts"][0]["part"] == "Search"
    assert found["predictions"][0]["option"] == "accelerate()"
    assert main(["profile", f"{HERE}:chain", str(questions)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{HERE}:chain: 2 answered, 0 failed, 1 at once, plain; mean 8000.0 ms")
    assert "  Search  searching    2.0  7000.0  87.5%\n" in shown


@pytest.mark.parametrize(
    ("arguments", "text", "told"),
    [
        ((f"{HERE}:none",), "one?", "the module has no such name"),
        ((f"{HERE}:number",), "one?", "this is no program; found builtins.int"),
        ((f"{HERE}:chain",), "\n", "there are no questions"),
        ((f"{HERE}:chain",), 'one?\n{"a": 1', "line 2; found no JSON: "),
        ((f"{HERE}:chain",), "bad?", "the program answers none of the questions"),
        ((f"{HERE}:chain", "--users", "0"), "one?", "option out of range; at --users; found 0"),
        ((f"{HERE}:chain", "--calls", "0"), "one?", "option out of range; at --calls; found 0"),
        ((f"{HERE}:fast",), "one?", "the program is accelerated already"),
    ],
)
def test_what_cannot_be_profiled_is_told_in_a_line(
    arguments: tuple[str, ...],
    text: str,
    told: str,
    questions: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions.write_text(text)
    assert main(["profile", arguments[0], str(questions), *arguments[1:]]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("rag-accel: [RA100] ")
    assert told in printed.err


class Nodes(LlamaRetriever):
    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        CLOCK.advance(4.0)
        return [NodeWithScore(node=TextNode(text=f"{n}"), score=1.0) for n in range(3)]


class Model(MockLLM):
    def complete(self, *args: Any, **kwargs: Any) -> Any:
        CLOCK.advance(1.0)
        return super().complete(*args, **kwargs)


def test_a_llama_index_engine_is_profiled_with_its_composites() -> None:
    llm = Model(max_tokens=None)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.ACCUMULATE)
    found = profiled(RetrieverQueryEngine(Nodes(), synthesizer), "When?")
    assert shares(found) == {"Nodes": (1.0, 0.571), "Model": (3.0, 0.429)}
    # Its class is not named, so that its three calls could run together and do not.
    assert gains(found)["accelerate()"] == 1.0
    assert gains(found)["thread_safe_classes"] == pytest.approx(7 / 5)
