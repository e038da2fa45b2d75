"""A user sees how much a folder keeps and has texts, tenants or all of it removed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from chunk_states import chunk_state

from rag_accel.cli import main
from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel

TEXTS = [("mine", "One text."), ("mine", "Another text."), ("theirs", "One text.")]


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    made = DiskStore(tmp_path / "kept", limit_bytes=1 << 20, model="m" * 64, dtype=torch.float32)
    for at, (namespace, text) in enumerate(TEXTS):
        made.put(bytes([at]) * 32, chunk_state(at), ChunkLabel(namespace, text))
    return made


def kept(store: DiskStore) -> list[int]:
    return [at for at in range(len(TEXTS)) if store.find(bytes([at]) * 32) is not None]


def run(store: DiskStore, verb: str, *options: str) -> int:
    return main(["cache", verb, str(store.folder.path), *options])


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--text", "One text."], [1]),
        (["--text", "  One text.\n"], [1]),
        (["--text", "No text."], [0, 1, 2]),
        (["--namespace", "mine"], [2]),
        (["--all"], []),
    ],
)
def test_what_is_meant_is_removed_and_nothing_else(
    store: DiskStore, options: list[str], left: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(store, "purge", *options) == 0
    assert kept(store) == left
    assert capsys.readouterr().out == f"{3 - len(left)} files removed\n"


def test_a_text_is_read_from_the_input(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Another text.\n"))
    run(store, "purge", "--text", "-")
    assert kept(store) == [0, 2]


def test_what_cannot_be_read_is_removed_with_any_text(store: DiskStore) -> None:
    broken = store.folder.path_of("0" * 64)
    broken.write_bytes(b"broken")
    run(store, "purge", "--text", "No text.")
    assert not broken.exists()
    assert kept(store) == [0, 1, 2]


def test_the_list_shows_sizes_and_no_text(
    store: DiskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    run(store, "list")
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("3 texts, ")
    assert shown.count("4 tokens, float32") == 3
    assert "text." not in shown
    assert "mine" not in shown


def test_the_list_is_there_for_machines(
    store: DiskStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.folder.path_of("0" * 64).write_bytes(b"broken")
    run(store, "list", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line.get("tokens", 0) for line in lines) == [0, 4, 4, 4]
    assert {line["model"] for line in lines} == {"m" * 64, None}


def test_a_folder_that_is_missing_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list", str(tmp_path / "none")]) == 2
    assert "missing" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / f"{'0' * 64}.kv").write_bytes(b"mine")
    assert main(["cache", "purge", str(tmp_path / "other"), "--all"]) == 2
    assert (tmp_path / "other" / f"{'0' * 64}.kv").exists()
    assert "secret" in capsys.readouterr().err
