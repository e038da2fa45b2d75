"""``rag-accel corpus`` counts what searches of a saved index have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.cli import corpus_searches, main
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSnapshot, IndexSpec, TrainedClusters
from rag_accel.engines.retrieval.index.files import load_index, save_index
from rag_accel.engines.retrieval.index.list_files import give_back_pages, mapped_range
from rag_accel.engines.retrieval.vectors.spec import IndexKind, Metric
from rag_accel.engines.retrieval.vectors.tiered import TieredVectors

CENTRES = np.asarray([[0, 0], [10, 0], [100, 0], [200, 0], [300, 0]], dtype=np.float32)
FIRST, SECOND = ({"vector": centre.tolist()} for centre in CENTRES[:2])
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Save an index of five clusters, of which a search reads the two nearest."""
    spec = IndexSpec(2, Metric.L2, IndexKind.IVF, num_clusters=5, nprobe=2, train_size=5)
    places = np.repeat(np.arange(5), [30, 50, 40, 40, 40])
    vectors = CENTRES[places] + np.random.default_rng(3).random((200, 2), np.float32)
    documents = tuple(Document(f"d{number}", "") for number in range(200))
    snapshot = IndexSnapshot(spec, documents, vectors, TrainedClusters(CENTRES, places))
    save_index(DocumentIndex.from_snapshot(snapshot), tmp_path / "index", "small model")
    return tmp_path / "index"


def asked(index: Path, *questions: object, **options: object) -> int:
    path = index.with_suffix(".jsonl")
    path.write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    named = [
        text
        for name, value in options.items()
        for text in (f"--{name}", *([] if value is None else [str(value)]))
    ]
    return main(["corpus", str(index), str(path), *named])


@pytest.mark.parametrize("third", [SECOND, {"question": "b"}])
def test_shares_are_counted(
    saved: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch, third: object
) -> None:
    made = {"m": lambda texts: CENTRES[[len(text) for text in texts]]}
    monkeypatch.setattr(corpus_searches, "load_embedder", made.get)
    assert asked(saved, FIRST, FIRST, third, embedder="m") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "200 documents in 5 clusters, 2 read by a search; 3 questions for 5"
    # The second question repeats the first one; the third finds all in the cluster beside it.
    # Of 80 vectors the second search needs 30, the third 50.
    in_last, final = ["50.0%", "50.0%", "100.0%"], ["50.0%", "60.0%"]
    assert [line.split()[0] for line in lines] == [
        *(*in_last, *final, *final, "62.5%"),
        *("0.0%", "37.5%"),  # of 200 vectors 20 and 66 would lie in memory, as whole clusters
    ]


@pytest.mark.parametrize(
    ("questions", "options", "error"),
    [
        ([], {}, "there are no questions"),
        ([FIRST], {}, "too few questions"),
        ([FIRST, {"vector": [1.0]}], {}, "question 2; found 1 numbers; valid: two or more"),
        ([FIRST, {"text": "a"}], {}, "question 2; found {'text': 'a'}"),
        (["a", "b"], {}, "which names it 'small model'"),
        (["a", "b"], {"embedder": "m"}, "found shape (2, 3); valid: shape (n, 2)"),
        ([{"vector": ["a", 0]}, FIRST], {}, "vectors that are not numbers"),
        ([FIRST, SECOND], {"k": 0}, "--k; found 0; valid: from 1 to 1000"),
    ],
)
def test_questions_and_options_of_no_use_are_named(
    saved: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch, questions: list[object],
    options: dict[str, Any], error: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(corpus_searches, "load_embedder", lambda _: lambda _: np.ones((2, 3)))
    assert asked(saved, *questions, **options) == 2
    assert error in capsys.readouterr().err


def test_files_without_clusters_are_named(saved: Path, capsys: Printed) -> None:
    save_index(DocumentIndex(IndexSpec(2)), saved, "small model")
    for index, error in (
        (saved, "an index without clusters"),
        (saved.parent / "none", "no index can be read"),
    ):
        assert asked(index, FIRST, SECOND) == 2
        assert error in capsys.readouterr().err


def test_what_a_tier_brings_is_measured_on_a_copy(
    saved: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = list[Path]()

    def give_back(path: Path, *place: int) -> float:
        given_back.append(path)
        return 0.0

    monkeypatch.setattr(corpus_searches, "give_back_pages", give_back)
    before = saved.read_bytes()
    assert asked(saved, FIRST, SECOND, measure=None) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.partition(" searches/s ")[2] for line in lines] == [
        "with all clusters in memory",
        "from the file, with hot_bytes=800, one cluster",
        "from the file, with hot_bytes=800",
        "from the file, with hot_bytes=1056",
    ]
    assert all(float(line.split()[0]) > 0 for line in lines)
    assert {path.name for path in given_back} == {saved.name}
    assert saved not in given_back
    assert saved.read_bytes() == before
    assert sorted(one.name for one in saved.parent.iterdir()) == ["index", "index.jsonl"]


def test_pages_that_are_not_given_back_are_named(
    saved: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_searches, "give_back_pages", lambda *_: 1.0)
    assert asked(saved, FIRST, SECOND, measure=None) == 2
    assert "cannot be given back here" in capsys.readouterr().err
    assert sorted(one.name for one in saved.parent.iterdir()) == ["index", "index.jsonl"]


def test_pages_of_a_mapped_file_are_given_back(saved: Path) -> None:
    held = load_index(saved, hot="ram").view().vectors
    assert isinstance(held, TieredVectors)
    assert held.given[0].data.sum() > 0  # a page of it is in memory
    if give_back_pages(saved, *mapped_range(held.given[0])) == 1:
        pytest.skip("the file system keeps its pages, or the system cannot be asked")
    assert give_back_pages(saved, *mapped_range(held.given[0])) == 0
