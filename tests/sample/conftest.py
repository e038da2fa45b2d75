"""Give the tests of this room the default corpus and graph, read once, and small files to read."""

from __future__ import annotations

import pytest

from rag_accel.sample import LibraryGraph, LoadReport, read_corpus, read_library_graph


def make_pdf(*lines: str) -> bytes:
    """Write a PDF of one page that shows the lines; by hand, so that no writer is needed."""
    shown = "".join(f"({line}) Tj T* " for line in lines)
    content = f"BT /F1 12 Tf 14 TL 20 150 Td {shown}ET"
    objects = (
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R"
        "/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(content)}>>stream\n{content}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    text, table = "%PDF-1.4\n", "0000000000 65535 f \n"
    for number, body in enumerate(objects, start=1):
        table += f"{len(text):010} 00000 n \n"
        text += f"{number} 0 obj{body}endobj\n"
    size = len(objects) + 1
    end = f"xref\n0 {size}\n{table}trailer<</Size {size}/Root 1 0 R>>\nstartxref\n{len(text)}\n"
    return f"{text}{end}%%EOF".encode()


@pytest.fixture(scope="session")
def corpus() -> LoadReport:
    return read_corpus(2200)


@pytest.fixture(scope="session")
def library() -> LibraryGraph:
    return read_library_graph()


@pytest.fixture
def pdf() -> bytes:
    return make_pdf("The pump moves water.", "Its filter is cleaned every month.")


@pytest.fixture
def image_pdf() -> bytes:
    return make_pdf()
