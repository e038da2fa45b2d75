"""What is saved is loaded again, and a file that cannot be trusted is refused by name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexHeader,
    IndexKind,
    IndexSpec,
    Metric,
    load_index,
    read_header,
    save_index,
)
from rag_accel.engines.retrieval.index.file_format import LISTS_VERSION, MAGIC, write_parts
from rag_accel.errors import ConfigError, DocumentError, IndexFileError

Maker = Callable[..., Any]

HINT = "build the index again"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a path to save to."""
    return tmp_path / "documents.index"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Give the bytes of a small trained index."""
    path = tmp_path_factory.mktemp("stored") / "index"
    spec = IndexSpec(3, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=1, train_size=5)
    index = DocumentIndex(spec)
    documents = [Document(str(number), f"text {number}", {"n": number}) for number in range(6)]
    index.add(documents, np.arange(18).reshape(6, 3))
    save_index(index, path, "embedder 1")
    return path.read_bytes()


@pytest.mark.parametrize("emptied", [False, True])
def test_an_empty_index_is_saved_and_loaded(
    make_index: Maker, make_documents: Maker, make_vectors: Maker, path: Path, emptied: bool
) -> None:
    index = make_index(60 if emptied else 0)
    index.delete(f"d{number}" for number in range(60))
    save_index(index, path, "")
    loaded = load_index(path)
    assert (len(loaded), loaded.is_trained) == (0, index.is_trained)
    loaded.add(make_documents(3), make_vectors(3))
    assert len(loaded.search(np.ones((1, 6)), 5)[0]) == 3


def test_any_text_and_json_metadata_come_back_equal(path: Path) -> None:
    documents = [
        Document("", ""),
        Document("line\nbreak\r\n\u2028\x85", "tab\tand \x00 and 雪 and \ud800", {"é": "\n\r"}),
        Document("deep", "", {"a": [1, -2.5, None, True, {"b": [[]]}], "big": 10**40, "": ""}),
    ]
    index = DocumentIndex(IndexSpec(1))
    index.add(documents, np.ones((3, 1)))
    save_index(index, path, "雪")
    assert load_index(path, fingerprint="雪").get(d.id for d in documents) == documents


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "x"}, {"x"}, object(), float("nan"), b"x", np.float32(1), [float("inf")]]
)
def test_metadata_that_json_would_change_is_refused_by_document_and_key(
    make_index: Maker, path: Path, value: object
) -> None:
    index = make_index(3)
    index.add([Document("odd", "", {"fine": 1, "bad key": value})], np.ones((1, 6)))
    with pytest.raises(DocumentError, match="document 'odd', key 'bad key'"):
        save_index(index, path, "")
    assert os.listdir(path.parent) == []


def test_the_file_is_its_owners_alone_and_nothing_is_left_beside_it(
    make_index: Maker, path: Path
) -> None:
    path.touch(0o644)
    save_index(make_index(), path, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_a_link_is_followed(make_index: Maker, path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    save_index(make_index(7), link, "")
    assert link.is_symlink()
    assert len(load_index(path)) == 7


def test_a_fingerprint_that_is_no_text_is_refused(make_index: Maker, path: Path) -> None:
    with pytest.raises(ConfigError, match="at fingerprint"):
        save_index(make_index(), path, None)  # type: ignore[arg-type]
    assert not path.exists()


def test_the_header_describes_the_file(stored: bytes, path: Path) -> None:
    path.write_bytes(stored)
    spec = IndexSpec(3, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=1, train_size=5)
    assert read_header(path) == IndexHeader(spec, 6, 2, "embedder 1")


def test_an_index_of_another_embedder_is_refused(stored: bytes, path: Path) -> None:
    path.write_bytes(stored)
    assert len(load_index(path, fingerprint="embedder 1", dimension=3)) == 6
    with pytest.raises(IndexFileError, match=f"'embedder 1'.*valid: .*'embedder 2'.*{HINT}"):
        load_index(path, fingerprint="embedder 2")


def test_an_index_of_another_dimension_is_refused(stored: bytes, path: Path) -> None:
    path.write_bytes(stored)
    with pytest.raises(IndexFileError, match=f"found dimension 3.*valid: dimension 4.*{HINT}"):
        load_index(path, dimension=4)


def test_a_newer_file_is_refused_by_its_version(stored: bytes, path: Path) -> None:
    newer = (LISTS_VERSION + 1).to_bytes(4, "little")
    path.write_bytes(stored[: len(MAGIC)] + newer + stored[len(MAGIC) + 4 :])
    with pytest.raises(IndexFileError, match=r"found version 3; valid: version 1 or 2; next: use"):
        load_index(path)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"hello, world" * 100, b"\x80\x04K\x01.", MAGIC[1:]]
)
def test_a_foreign_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(IndexFileError, match=r"not a stored index.*next: check the path") as caught:
        load_index(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_the_systems_own_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_index(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(
    stored: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(stored) * 8 - 1))
    content = bytearray(stored)
    content[place // 8] ^= 1 << place % 8
    _check_refused(tmp_path_factory.getbasetemp() / "flipped", bytes(content))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_file_cut_short_anywhere_is_found(
    stored: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(stored) - 1))
    _check_refused(tmp_path_factory.getbasetemp() / "cut", stored[:length])


@pytest.mark.parametrize("extra", [b"\0", b"\n" * 100])
def test_bytes_after_the_end_are_found(stored: bytes, path: Path, extra: bytes) -> None:
    _check_refused(path, stored + extra)


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("documents", b'{"id": "a", "text": "", "metadata": {}}\n' * 2),
        ("documents", b'{"id": "a", "text": "", "metadata": {}}\n'),
        ("documents", b'{"id": "a", "text": "", "metadata": {}}\n{"id": 1, "text": ""}\n'),
        ("documents", b'{"id": "a", "text": "", "metadata": {}}\n[1]\n'),
        ("documents", b'{"id": "a", "text": "", "metadata": {}}\n\xff\n'),
        ("documents", b'{"id": "a", "text": "", "metadata": ' + b"[" * 100_000),
        ("vectors", b"\0" * 8),
        ("vectors", b"\0" * 7),
        ("vectors", b"\xff" * 16),
        ("centroids", b"\xff" * 8),
        ("centroids", b""),
        ("assignments", b"\1" + b"\0" * 15),
        ("assignments", b"\xff" * 16),
        ("assignments", b"\0" * 8),
        ("assignments", b"\0" * 9),
    ],
)
def test_contents_that_contradict_the_footer_are_refused(
    path: Path, part: str, data: bytes
) -> None:
    parts = _forged_parts()
    _write(path, parts)
    assert len(load_index(path)) == 2, "the forgery itself must be readable"
    _write(path, {**parts, part: data})
    with pytest.raises(IndexFileError, match=HINT):
        load_index(path)


@pytest.mark.parametrize("part", ["documents", "vectors", "centroids", "assignments"])
def test_a_missing_part_is_refused(path: Path, part: str) -> None:
    parts = _forged_parts()
    del parts[part]
    _write(path, parts)
    with pytest.raises(IndexFileError, match=HINT):
        load_index(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "other"},
        {"spec": None},
        {"spec": {"dimension": 0}},
        {"spec": {"dimension": 10**30}},
        {"spec": {"dimension": 2, "metric": "cosine"}},
        {"spec": {"dimension": 2, "unknown": 1}},
        {"count": -1},
        {"count": "2"},
        {"count": 3},
        {"num_clusters": None},
        {"fingerprint": 5},
    ],
)
def test_a_footer_that_makes_no_sense_is_refused(path: Path, fields: dict[str, Any]) -> None:
    _write(path, _forged_parts(), **fields)
    with pytest.raises(IndexFileError, match=HINT):
        load_index(path)


def _forged_parts() -> dict[str, bytes]:
    lines = b'{"id": "a", "text": "", "metadata": {}}\n{"id": "b", "text": "", "metadata": {}}\n'
    zeros = {"vectors": b"\0" * 16, "centroids": b"\0" * 8, "assignments": b"\0" * 16}
    return {"documents": lines, **zeros}


def _write(path: Path, parts: dict[str, bytes], **fields: Any) -> None:
    spec = {"dimension": 2, "kind": "ivf"}
    known = {"spec": spec, "count": 2, "num_clusters": 1, "fingerprint": ""}
    with path.open("wb") as file:
        write_parts(file, ((name, [data]) for name, data in parts.items()), {**known, **fields})


def _check_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(IndexFileError, match=r"found .*valid: .*next: ") as caught:
        load_index(path)
    assert caught.value.where == str(path)
