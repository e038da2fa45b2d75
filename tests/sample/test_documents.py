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
        "Raw",
        "",
        "markup",
        "",
        "indented code",
    ]


def test_headings_in_markdown_may_be_underlined_or_tags(tmp_path: Path) -> None:
    body = " ".join([GOOD] * 12)
    text = f'<h1 align="center">Pumps</h1>\n\n{body}\n\nCare of *it*\n---\n\n{body}\n'
    (tmp_path / "a.md").write_text(f"{text}\n## Use ##\n{body}")
    titles = [one.metadata["title"] for one in load_folder(tmp_path).documents]
    assert titles == ["Pumps", "Pumps, Care of it", "Pumps, Use"]


def test_blocks_of_html_are_paragraphs_items_and_rows(tmp_path: Path) -> None:
    page = """<h2>Care <a href="#care">\u00b6</a></h2>One<b>word</b> and<br>a line.
        <ul><li><p>Oil it.</p><p>Often.</p><li>Clean it.<ol><li>Twice.</ol></ul>
        <table><tr><th>part<th>use<tr><td>pump</td><td>moves</td></table>
        <nav>Home<nav>Up</nav>Down</nav><svg/>Seen<svg><title>no</title>no</svg>
        <h3>Open<p>Text."""
    assert _paragraphs(tmp_path, "a.html", page).split("\n") == [
        "a, Care: Oneword and",
        "",
        "a line.",
        "- Oil it.",
        "",
        "Often.",
        "- Clean it.",
        "- Twice.",
        "",
        "part | use",
        "",
        "pump | moves",
        "",
        "Seen",
        "",
        "Open: Text.",
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'<meta charset="iso-8859-1"><p>Gr\xfc\xdfe',
        b"<p>Gr\xfc\xdfe",
        "<p>Gr\xfc\xdfe".encode(),
        "<p>Gr\xfc\xdfe".encode("utf-8-sig"),
        "<p>Gr\xfc\xdfe".encode("utf-16"),
    ],
)
def test_html_is_decoded_as_it_says_or_as_it_looks(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.html").write_bytes(data)
    assert _texts(load_folder(tmp_path)) == {"a.html": "a: Gr\xfc\xdfe"}


@pytest.mark.parametrize("name", ["a.md", "a.html"])
def test_a_heading_that_is_too_long_for_one_is_text(tmp_path: Path, name: str) -> None:
    long = "word " * 2000
    heading = f"# {long}\n\n" if name == "a.md" else f"<h1>{long}</h1>"
    (tmp_path / name).write_text(f"{heading}End.")
    documents = load_folder(tmp_path).documents
    assert sum(one.text.count("word") for one in documents) == 2000
    assert {one.metadata["title"] for one in documents} == {"a"}


def test_a_long_title_is_shortened(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f"<title>{'word ' * 2000}</title>{GOOD}")
    (document,) = load_folder(tmp_path).documents
    assert len(document.metadata["title"]) < 200


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", "<h1>" * 6400 + "</h1>" + GOOD),
        ("a.html", "<div>" * 6400 + GOOD),
        ("a.html", "<ul><li>" * 6400 + GOOD),
        ("a.md", "> " * 15 + GOOD),
    ],
)
def test_text_that_stands_deep_is_found(tmp_path: Path, name: str, text: str) -> None:
    assert GOOD in _paragraphs(tmp_path, name, text)


def _pdf_objects(*objects: str) -> bytes:
    numbered = "".join(f"{at} 0 obj{one}endobj\n" for at, one in enumerate(objects, start=1))
    return f"%PDF-1.4\n{numbered}trailer<</Root 1 0 R>>\nstartxref\n0\n%%EOF".encode()


def _stream(text: str, entries: str = "") -> str:
    return f"<</Length {len(text)}{entries}>>stream\n{text}\nendstream"


def _shared_contents() -> bytes:
    """Return a file of 2000 pages that show one and the same long text."""
    pages = ["<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 3 0 R/Resources<<>>>>"] * 2000
    kids = " ".join(f"{number} 0 R" for number in range(4, 2004))
    return _pdf_objects(
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count 2000/Kids[{kids}]>>",
        _stream("BT " + "(a) Tj " * 3000 + "ET"),
        *pages,
    )


def _doubling_forms(levels: int) -> bytes:
    """Return a file whose form shows another twice, which shows another twice, and so on."""
    forms = [
        _stream(
            "/X Do /X Do" if number < levels else "BT (a) Tj ET",
            f"/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X {6 + number} 0 R>>>>",
        )
        for number in range(1, levels + 1)
    ]
    return _pdf_objects(
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Count 1/Kids[3 0 R]>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R"
        "/Resources<</XObject<</X 6 0 R>>>>>>",
        _stream("/X Do"),
        "<<>>",
        *forms,
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_shared_contents(), "its pages repeat far more than the file holds"),
        (_doubling_forms(18), "its pages repeat far more than the file holds"),
        (_doubling_forms(40), "forms nest more than 32 deep"),
    ],
    ids=["shared contents", "doubling forms", "deep forms"],
)
def test_a_pdf_that_is_far_more_work_than_its_size_is_skipped(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "good.txt").write_text(GOOD)
    (tmp_path / "bad.pdf").write_bytes(data)
    assert _skipped(load_folder(tmp_path)) == {"bad.pdf": reason}


def test_forms_of_a_pdf_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(_doubling_forms(2))
    assert _texts(load_folder(tmp_path))["a.pdf"].split() == ["a:", "a", "a"]


def test_a_pdf_with_damaged_fonts_and_forms_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = _pdf_objects(
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Count 1/Kids[3 0 R]>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R"
        "/Resources<</Font<</F1 5 0 R>>/XObject<</X 6 0 R>>>>>>",
        _stream("BT /F1 9 Tf (a b c) Tj ET /X Do"),
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Widths 5/Encoding<</Differences 5>>>>",
        _stream("broken", "/Subtype/Form/BBox[0 0 9 9]/Filter/FlateDecode/Resources<<>>"),
    )
    (tmp_path / "a.pdf").write_bytes(data)
    assert _texts(load_folder(tmp_path)) == {"a.pdf": "a: a b c"}


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


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("a.pdf", "pypdf"),
        ("a.html", "turbohtml"),
        ("a.md", "markdown_it"),
        ("a.md", "mdit_py_plugins"),
    ],
)
def test_a_missing_parser_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    real = builtins.__import__

    def refuse(wanted: str, *rest: object) -> object:
        if wanted.split(".")[0] == module:
            raise ImportError(wanted)
        return real(wanted, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("rag_accel.sample.file_text.import_module", refuse)
    (tmp_path / name).write_text("something")
    with pytest.raises(ImportError, match=r"rag-accel\[documents\]"):
        load_folder(tmp_path)
