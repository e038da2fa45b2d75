"""Test the reading of a user's folder."""

from __future__ import annotations

import builtins
import os
from pathlib import Path

import pytest

from rag_accel.errors import DocumentError
from rag_accel.sample import LoadReport, load_folder

GOOD = "The pump moves water from the well to the tank."


def _texts(report: LoadReport) -> dict[str, str]:
    return {one.id: one.text for one in report.documents}


def _skipped(report: LoadReport) -> dict[str, str]:
    return {one.path: one.reason for one in report.skipped}


def test_every_format_is_read(tmp_path: Path, pdf: bytes) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / "b.md").write_text(f"# Pumps\n\n{GOOD}")
    (tmp_path / "c.html").write_text(f"<title>Wells</title><body><p>{GOOD}</p></body>")
    (tmp_path / "d.pdf").write_bytes(pdf)
    report = load_folder(tmp_path)
    assert _texts(report) == {
        "a.txt": f"a: {GOOD}",
        "b.md": f"Pumps: {GOOD}",
        "c.html": f"Wells: {GOOD}",
        "d.pdf": "d: The pump moves water. Its filter is cleaned every month.",
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


def test_html_is_read_without_scripts_and_cut_at_headings(tmp_path: Path) -> None:
    body = " ".join([GOOD] * 12)
    page = (
        f"<html><head><style>p {{}}</style></head><body><nav>Home</nav><h1>Pumps</h1><p>{body}</p>"
        f"<script>alert(1)</script><h2>Care</h2><ul><li>Oil it.</li><li>Clean it.</li></ul></body>"
    )
    (tmp_path / "a.html").write_text(page)
    first, second = load_folder(tmp_path).documents
    assert first.text == f"Pumps: {body}"
    assert second.text == "Pumps, Care:\n- Oil it.\n- Clean it."


def test_unreadable_files_are_named_with_a_reason_and_the_rest_is_read(
    tmp_path: Path, image_pdf: bytes
) -> None:
    (tmp_path / "good.txt").write_text(GOOD)
    (tmp_path / "latin.txt").write_bytes("Stra\xdfe der Pumpen".encode("latin-1"))
    (tmp_path / "binary.txt").write_bytes(b"abc\0def")
    (tmp_path / "binary.html").write_bytes(b"\0\1\2")
    (tmp_path / "broken.pdf").write_bytes(b"this is no pdf at all")
    (tmp_path / "scanned.pdf").write_bytes(image_pdf)
    (tmp_path / "empty.md").write_text("")
    (tmp_path / "blank.html").write_text("<html><body> </body></html>")
    report = load_folder(tmp_path)
    assert list(_texts(report)) == ["good.txt"]
    reasons = _skipped(report)
    assert reasons["latin.txt"] == "not utf-8-sig text at byte 4"
    assert reasons["binary.txt"] == "binary data at byte 3"
    assert reasons["binary.html"] == "binary data at byte 0"
    assert reasons["broken.pdf"]
    assert reasons["scanned.pdf"] == "no text layer (scanned pages?)"
    assert reasons["empty.md"] == reasons["blank.html"] == "no text in it"


def test_an_encrypted_pdf_is_skipped(tmp_path: Path, pdf: bytes) -> None:
    pypdf = pytest.importorskip("pypdf")
    (tmp_path / "plain.pdf").write_bytes(pdf)
    writer = pypdf.PdfWriter(clone_from=tmp_path / "plain.pdf")
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(tmp_path / "secret.pdf")
    report = load_folder(tmp_path)
    assert list(_texts(report)) == ["plain.pdf"]
    assert _skipped(report)["secret.pdf"] == "encrypted with a password"


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


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="found nothing"):
        load_folder(tmp_path / "missing")


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    with pytest.raises(DocumentError, match="valid: a folder"):
        load_folder(tmp_path / "a.txt")


def test_a_folder_without_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    with pytest.raises(DocumentError, match="no document of a known format"):
        load_folder(tmp_path)


def test_a_folder_of_bad_documents_is_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DocumentError, match=r"a\.txt: no text in it"):
        load_folder(tmp_path)


@pytest.mark.parametrize(("name", "module"), [("a.pdf", "pypdf"), ("a.html", "bs4")])
def test_a_missing_parser_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    real = builtins.__import__

    def refuse(wanted: str, *rest: object) -> object:
        if wanted.split(".")[0] == module:
            raise ImportError(wanted)
        return real(wanted, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("rag_accel.sample.formats.import_module", refuse)
    (tmp_path / name).write_text("something")
    with pytest.raises(ImportError, match=r"rag-accel\[documents\]"):
        load_folder(tmp_path)
