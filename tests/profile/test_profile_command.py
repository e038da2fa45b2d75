"""``rag-accel profile`` runs a program as it is, tells of its calls, and refuses what it cannot."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_classic")

from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.cli import main
from rag_accel.cli.profile import ProgramProfile, profile_program
from rag_accel.clock import MonotonicClock
from rag_accel.interception import watching
from rag_accel.interception.patches import patches
from rag_accel.testing import ManualClock

CLOCK = ManualClock()
HERE = "test_profile_command"


class Search(BaseRetriever):
    """Find a document in so many seconds of the clock."""

    takes_s: float

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        CLOCK.advance(self.takes_s)
        return [Document(f"{self.takes_s} {query}")]


class Lengths(Embeddings):
    """Embed a text as its length, in two seconds."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        CLOCK.advance(2.0)
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Streaming(BaseChatModel):
    """Answer in pieces only."""

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="an answer"))


def answer(documents: list[Document]) -> str:
    """Answer in a second, unless the question is bad."""
    CLOCK.advance(1.0)
    if "bad" in documents[0].page_content:
        raise ValueError("no bad questions")
    return documents[0].page_content


def ensemble() -> Runnable[Any, Any]:
    searches: list[Any] = [Search(takes_s=3.0), Search(takes_s=4.0)]
    return EnsembleRetriever(retrievers=searches, weights=[0.5, 0.5]) | RunnableLambda(answer)


chain = ensemble()
number = 3


@pytest.fixture
def on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MonotonicClock, "now", lambda _: CLOCK.now())


@pytest.fixture
def profiled(on_the_clock: None) -> Iterator[Callable[..., ProgramProfile]]:
    names = (f"{Search.__module__}.Search",)
    with Accelerator(thread_safe_classes=names) as accelerator:

        def run(program: Any, *questions: Any, **more: Any) -> ProgramProfile:
            return profile_program(program, questions or ("one?", "two?"), accelerator, **more)

        yield run


def shares(found: ProgramProfile) -> dict[str, tuple[float, float]]:
    return {part.part: (part.calls, round(part.share, 3)) for part in found.parts}


def gains(found: ProgramProfile) -> dict[str, float | None]:
    return {row.option: row.gain for row in found.predictions}


def test_each_moment_belongs_to_a_part_or_to_the_program(profiled: Any) -> None:
    found = profiled(ensemble())
    assert shares(found) == {"Search": (2.0, 0.875)}
    assert found.rest_share == pytest.approx(1 / 8)
    assert (found.answered, found.mean_ms) == (2, pytest.approx(8000))
    assert gains(found)["accelerate()"] == pytest.approx(8 / 5)
    assert any(
        "EnsembleRetriever.rank_fusion makes its calls in parallel" in at for at in found.acts
    )


def test_classes_that_are_not_named_are_an_option(on_the_clock: None) -> None:
    with Accelerator() as accelerator:
        found = profile_program(ensemble(), ["one?"], accelerator)
    assert gains(found)["accelerate()"] == 1.0
    assert gains(found)["thread_safe_classes"] == pytest.approx(8 / 5)


def test_a_call_inside_of_a_call_has_its_own_time(profiled: Any) -> None:
    store = InMemoryVectorStore.from_texts(["a", "bb"], Lengths())
    found = profiled(store.as_retriever() | RunnableLambda(answer))
    assert shares(found)["Lengths"] == (1.0, 0.667)
    assert found.rest_share == pytest.approx(1 / 3)


def test_the_plain_run_schedules_nothing_and_leaves_no_patch(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = patches.patched()
    program, seen = ensemble(), list[Any]()

    def note(documents: list[Document]) -> list[Document]:
        from rag_accel.accelerator import current_request

        seen.append(current_request.get())
        return documents

    profiled(program.first | RunnableLambda(note) | RunnableLambda(answer))  # pyright: ignore[reportAttributeAccessIssue]
    assert seen == [None] * 3
    assert patches.patched() == before


def test_a_question_that_fails_is_told_and_the_others_go_on(profiled: Any) -> None:
    found = profiled(ensemble(), "one?", "bad?", "two?")
    assert (found.answered, found.failed) == (2, 1)
    assert "question 2 failed: ValueError: no bad questions" in found.notes


def test_a_program_that_changes_its_shape_every_time_is_told(profiled: Any) -> None:
    search = Search(takes_s=1.0)

    def several(text: str) -> list[Any]:
        return [search.invoke(text) for _ in text]

    program = RunnableLambda(several)
    found = profiled(program, "a", "ab", "abc")
    assert any(note.startswith("3 requests made 3 different sequences") for note in found.notes)
    assert shares(found) == {"Search": (2.0, 1.0)}


def test_calls_beyond_the_bound_are_counted(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_CALLS", 5)
    search = Search(takes_s=1.0)
    found = profiled(RunnableLambda(lambda _: [search.invoke(f"{n}") for n in range(20)]), "a")
    assert shares(found) == {"Search": (5.0, 0.25)}
    assert found.rest_share == pytest.approx(0.75)
    assert found.notes[0].startswith("15 calls beyond the first ")


def test_streams_and_calls_in_bare_threads_are_counted(profiled: Any) -> None:
    search = Search(takes_s=1.0)
    model = Streaming()

    def ask(text: str) -> int:
        thread = threading.Thread(target=search.invoke, args=(text,))
        thread.start()
        thread.join()
        return len(list(model.stream(text)))

    found = profiled(RunnableLambda(ask), "a")
    assert found.parts == ()
    assert found.notes == (
        "2 calls were streamed, or made in threads that carry no context: they count as the"
        " program's own code",
    )


def test_a_call_that_outlives_its_caller_is_no_part_of_the_time_after(profiled: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class Left(Search):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            begun.set()
            assert go_on.wait(10)
            return super()._get_relevant_documents(query, run_manager=run_manager)

    class Leaving(Search):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            call = partial(copy_context().run, Left(takes_s=1.0).invoke, query)
            threads.append(threading.Thread(target=call))
            threads[-1].start()
            assert begun.wait(10)
            return super()._get_relevant_documents(query, run_manager=run_manager)

    def ask(text: str) -> str:
        Leaving(takes_s=2.0).invoke(text)
        go_on.set()
        threads.pop().join()
        begun.clear()
        go_on.clear()
        CLOCK.advance(1.0)
        return text

    found = profiled(RunnableLambda(ask), "a")
    # The caller has no time of its own while the call that it left behind runs.
    assert shares(found) == {"Left": (1.0, 0.75), "Leaving": (1.0, 0.0)}
    assert found.rest_share == pytest.approx(0.25)


def test_requests_beyond_the_bound_are_counted(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_CALLS_IN_ALL", 6)
    found = profiled(ensemble(), "a", "b", "c", "d")
    assert any(note.startswith("2 requests after ") for note in found.notes)


def test_a_question_of_a_megabyte_is_kept_nowhere(profiled: Any) -> None:
    found = profiled(ensemble(), "x" * 2**20, "one?")
    assert found.answered == 2
    assert len(str(found)) < 20_000


def test_several_users_ask_at_the_same_time_each_a_request(profiled: Any) -> None:
    found = profiled(ensemble(), *map(str, range(6)), users=3)
    assert (found.answered, found.users) == (6, 3)
    assert shares(found)["Search"][0] == 2.0


def test_the_measured_gain_stands_beside_the_prediction(profiled: Any) -> None:
    found = profiled(ensemble(), measure=True)
    assert found.measured is not None
    assert re.search(r"accelerate\(\): 1\.60x, measured \d+\.\d\dx", str(found))


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    path = tmp_path / "questions.jsonl"
    path.write_text('one?\n\n"two?"\n')
    return path


def test_the_command_prints_json(
    questions: Path, on_the_clock: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", f"{HERE}:chain", str(questions), "--calls", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["program"], found["answered"]) == (f"{HERE}:chain", 3)
    assert found["parts"][0]["part"] == "Search"
    assert found["predictions"][0]["option"] == "accelerate()"


def test_the_command_prints_a_page(
    questions: Path, on_the_clock: None, capsys: pytest.CaptureFixture[str]
) -> None:
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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "fast", accelerate(chain), raising=False)
    questions.write_text(text)
    assert main(["profile", arguments[0], str(questions), *arguments[1:]]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("rag-accel: [RA100] ")
    assert told in printed.err
    assert printed.err.count("\n") == 1


def test_a_llama_index_engine_is_profiled_with_its_composites(profiled: Any) -> None:
    core = pytest.importorskip("llama_index.core")
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.retrievers import BaseRetriever as Retriever
    from llama_index.core.schema import NodeWithScore, TextNode

    class Nodes(Retriever):
        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            CLOCK.advance(4.0)
            return [NodeWithScore(node=TextNode(text=f"{n}"), score=1.0) for n in range(3)]

    class Model(MockLLM):
        def complete(self, *args: Any, **kwargs: Any) -> Any:
            CLOCK.advance(1.0)
            return super().complete(*args, **kwargs)

    synthesizer = core.get_response_synthesizer(
        llm=Model(max_tokens=None), response_mode="accumulate"
    )
    found = profiled(RetrieverQueryEngine(Nodes(), synthesizer), "When?")
    assert shares(found) == {"Nodes": (1.0, 0.571), "Model": (3.0, 0.429)}
    # Its class is not named, so that its three calls could run together and do not.
    assert gains(found)["accelerate()"] == 1.0
    assert gains(found)["thread_safe_classes"] == pytest.approx(7 / 5)
