"""What the command line says of itself, and of arguments that cannot work."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from rag_accel.cli import main
from rag_accel.cli.corpus import read_corpus


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails and return the one line that it prints."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("rag-accel: [RA100] ")
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1
    return printed.err


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "entry point" not in shown
    _, _, commands = shown.partition("COMMAND\n")
    commands, _, _ = commands.partition("\n\n")
    named = [line.split(maxsplit=1) for line in commands.splitlines() if line[4] != " "]
    assert {words[0] for words in named} >= {"doctor", "trace", "cache", "run", "demo"}
    assert [words for words in named if len(words) < 2] == []


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rag-accel {metadata.version('rag-accel')}\n"


def test_a_model_that_cannot_be_loaded_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = str(tmp_path / "no-model")
    line = error_of(capsys, "doctor", "--measure", "--embedder", "cpu", "--model", missing)
    assert "at --model" in line
    assert missing in line


def test_an_embedder_of_no_known_kind_is_told_what_would_be_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = error_of(capsys, "doctor", "--measure", "--embedder", "nonsense")
    assert "valid: a device such as cpu or cuda:0, process, or a server as URL=MODEL" in line


def test_a_folder_that_is_to_be_listed_is_not_said_to_be_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = error_of(capsys, "cache", "list", str(tmp_path / "nofolder"))
    assert "there is no such folder" in line
    assert "valid: the kv_folder of a program that has run" in line
    assert not (tmp_path / "nofolder").exists()


def test_a_text_file_is_a_corpus_of_a_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("One text.\n\n  Another. \n")
    assert read_corpus(path) == ["One text.", "  Another. "]
