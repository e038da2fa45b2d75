"""Test the reading of a user's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rag_accel.errors import DocumentError
from rag_accel.sample import LoadReport
from rag_accel_demo import load_folder

GOOD = "The pump moves water from the well to the tank."


def _texts(report: LoadReport) -> dict[str, str]:
    return {one.id: one.text for one in report.documents}


def _skipped(report: LoadReport) -> dict[str, str]:
    return {one.path: one.reason for one in report.skipped}


def test_every_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / "b.md").write_text(f"# Pumps\n\n{GOOD}")
    report = load_folder(tmp_path)
    assert _texts(report) == {
        "a.txt": f"a: {GOOD}",
        "b.md": f"Pumps: {GOOD}",
    }
    assert report.skipped == ()


def test_documents_come_in_the_order_of_their_paths_with_full_metadata(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "zoo.txt").write_text(GOOD)
    (tmp_path / "guide" / "pump_care.txt").write_text(GOOD)
    first, second = load_folder(str(tmp_path)).documents
    assert (first.id, second.id) == ("guide/pump_care.txt", "zoo.txt")
    assert first.metadata == {
        "source": "guide/pump_care.txt",
        "title": "pump care",
        "qualname": "guide/pump_care.txt",
    }


def test_chunks_of_one_file_are_numbered_through_its_sections(tmp_path: Path) -> None:
    body = " ".join([GOOD] * 12)
    (tmp_path / "a.md").write_text(f"# Pumps\n\n{body}\n\n## Care\n\n{body}\n\n## Use\n\n{body}")
    report = load_folder(tmp_path)
    assert [one.id for one in report.documents] == ["a.md", "a.md#2", "a.md#3"]
    titles = [one.metadata["title"] for one in report.documents]
    assert titles == ["Pumps", "Pumps, Care", "Pumps, Use"]


def test_short_sections_share_a_chunk_and_keep_their_headings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# Pumps\n\n{GOOD}\n\n## Care\n\nOil it.\n\n## Use\n\nPull it.")
    (document,) = load_folder(tmp_path).documents
    assert document.text == f"Pumps: {GOOD}\n\nCare: Oil it.\n\nUse: Pull it."


def test_front_matter_and_fences_are_no_text_and_no_headings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        f"---\nlayout: x\n---\n{GOOD}\n\n```sh\n# no heading\nrun it\n```\n"
    )
    (document,) = load_folder(tmp_path).documents
    assert "layout" not in document.text
    assert document.metadata["title"] == "a"


def _paragraphs(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    (document,) = load_folder(folder).documents
    return document.text


def test_markdown_is_read_by_its_structure(tmp_path: Path) -> None:
    text = """
A [link](https://a.example "its title") and ![a picture](a.png) in
a wrapped *line* <b>of</b> text\\
<https://a.example/b>

1. first
   - inner

   more of the first
2. `a < b` &amp; \\*c\\*

> quoted
> twice

| name | use |
| --- | --- |
| pump | moves *water* |
| tank | |

<div>Raw<br>markup</div>

    indented code
"""
    assert _paragraphs(tmp_path, "a.md", text).split("\n") == [
        "a: A link and in a wrapped line of text https://a.example/b",
        "- first",
        "- inner",
        "",
        "more of the first",
        "- a < b & *c*",
        "",
        "quoted twice",
        "",
        "name | use",
        "",
        "pump | moves water",
        "",
        "tank",
        "",
        "indented code",
    ]


def test_headings_in_markdown_may_be_underlined(tmp_path: Path) -> None:
    body = " ".join([GOOD] * 12)
    text = f"Pumps\n===\n\n{body}\n\nCare of *it*\n---\n\n{body}\n"
    (tmp_path / "a.md").write_text(f"{text}\n## Use ##\n{body}")
    titles = [one.metadata["title"] for one in load_folder(tmp_path).documents]
    assert titles == ["Pumps", "Pumps, Care of it", "Pumps, Use"]


def test_a_heading_that_is_too_long_for_one_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"# {'word ' * 2000}\n\nEnd.")
    documents = load_folder(tmp_path).documents
    assert sum(one.text.count("word") for one in documents) == 2000
    assert {one.metadata["title"] for one in documents} == {"a"}


def test_a_long_title_is_shortened(tmp_path: Path) -> None:
    (tmp_path / f"{'word ' * 48}.txt").write_text(GOOD)
    (document,) = load_folder(tmp_path).documents
    assert len(document.metadata["title"]) < 200


def test_text_that_stands_deep_is_found(tmp_path: Path) -> None:
    assert GOOD in _paragraphs(tmp_path, "a.md", "> " * 15 + GOOD)


def test_unreadable_files_are_named_with_a_reason_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text(GOOD)
    (tmp_path / "latin.txt").write_bytes("Stra\xdfe der Pumpen".encode("latin-1"))
    (tmp_path / "binary.txt").write_bytes(b"abc\0def")
    (tmp_path / "binary.md").write_bytes(b"\0\1\2")
    (tmp_path / "empty.md").write_text("")
    (tmp_path / "blank.txt").write_text(" \n")
    report = load_folder(tmp_path)
    assert list(_texts(report)) == ["good.txt"]
    reasons = _skipped(report)
    assert reasons["latin.txt"] == "not utf-8-sig text at byte 4"
    assert reasons["binary.txt"] == "binary data at byte 3"
    assert reasons["binary.md"] == "binary data at byte 0"
    assert reasons["empty.md"] == reasons["blank.txt"] == "no text in it"


def test_utf16_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Gr\xfc\xdfe".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfHello\r\nthere")
    assert _texts(load_folder(tmp_path)) == {"a.txt": "a: Gr\xfc\xdfe", "b.txt": "b: Hello there"}


def test_large_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_text(GOOD * 10)
    (tmp_path / "small.txt").write_text(GOOD)
    report = load_folder(tmp_path, max_bytes=100)
    assert list(_texts(report)) == ["small.txt"]
    assert "more than the 100 allowed" in _skipped(report)["large.txt"]


def test_hidden_files_and_other_formats_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / ".hidden.txt").write_text(GOOD)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "b.txt").write_text(GOOD)
    (tmp_path / "program.py").write_text(GOOD)
    report = load_folder(tmp_path)
    assert (list(_texts(report)), report.skipped) == (["a.txt"], ())


def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text(GOOD)
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    (tmp_path / "turning.txt").symlink_to(tmp_path / "turning.txt")
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "missing.txt")
    report = load_folder(tmp_path)
    assert list(_texts(report)) == ["sub/a.txt"]
    assert set(_skipped(report)) == {"sub/loop", "turning.txt", "nowhere.txt"}


def test_a_file_linked_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    report = load_folder(tmp_path)
    assert list(_texts(report)) == ["a.txt"]
    assert _skipped(report) == {"b.txt": "a link to something already read"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    os.mkfifo(tmp_path / "pipe.txt")
    assert _skipped(load_folder(tmp_path)) == {"pipe.txt": "not a regular file"}


def test_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    with pytest.raises(DocumentError, match="found nothing"):
        load_folder(tmp_path / "missing")
    with pytest.raises(DocumentError, match="valid: a folder"):
        load_folder(tmp_path / "a.txt")


def test_a_folder_without_a_readable_document_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    with pytest.raises(DocumentError, match="no document of a known format"):
        load_folder(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DocumentError, match=r"a\.txt: no text in it"):
        load_folder(tmp_path)


@pytest.mark.parametrize("module", ["markdown_it", "mdit_py_plugins.front_matter"])
def test_a_missing_parser_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.md").write_text("something")
    with pytest.raises(ImportError, match=rf"needs {module}.*rag-accel\[documents\]"):
        load_folder(tmp_path)
