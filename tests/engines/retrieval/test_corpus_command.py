"""``rag-accel corpus`` counts what searches of a saved index have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rag_accel.cli import corpus_searches, main
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexSnapshot,
    IndexSpec,
    TrainedClusters,
    save_index,
)
from rag_accel.engines.retrieval.vectors.spec import IndexKind, Metric

CENTRES = np.asarray([[0, 0], [10, 0], [100, 0], [200, 0], [300, 0]], dtype=np.float32)
EACH = 40


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Save an index of five clusters, of which a search reads the two nearest."""
    spec = IndexSpec(2, Metric.L2, IndexKind.IVF, num_clusters=5, nprobe=2, train_size=5)
    places = np.repeat(np.arange(5), EACH)
    vectors = CENTRES[places] + np.random.default_rng(3).random((5 * EACH, 2), np.float32)
    documents = tuple(Document(f"d{number}", "") for number in range(5 * EACH))
    snapshot = IndexSnapshot(spec, documents, vectors, TrainedClusters(CENTRES, places))
    save_index(DocumentIndex.from_snapshot(snapshot), tmp_path / "index", "small model")
    return tmp_path / "index"


def asked(saved: Path, *questions: object, options: Sequence[str] = ()) -> int:
    path = saved.with_suffix(".jsonl")
    path.write_text("".join(f"{json.dumps(question)}\n" for question in questions))
    return main(["corpus", str(saved), str(path), *options])


def vector(place: int) -> dict[str, list[float]]:
    return {"vector": CENTRES[place].tolist()}


@pytest.mark.parametrize("third", [vector(1), {"question": "b"}])
def test_shares_are_counted(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, third: object
) -> None:
    made = {"m": lambda texts: CENTRES[[len(text) for text in texts]]}
    monkeypatch.setattr(corpus_searches, "load_embedder", made.get)
    assert asked(saved, vector(0), vector(0), third, options=["--embedder", "m"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "200 documents in 5 clusters, 2 read by a search; 3 questions for 5"
    # The second question repeats the first one; the third finds all in the cluster beside it.
    shares = [line.split()[0] for line in lines]
    assert shares == ["50.0%", "50.0%", "100.0%", *["50.0%"] * 4, "50.0%"]


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        ([], "there are no questions"),
        ([vector(0)], "too few questions"),
        ([vector(0), {"vector": [1.0]}], "question 2; found 1 numbers; valid: two or more"),
        ([vector(0), {"text": "a"}], "question 2; found {'text': 'a'}"),
        (["a", "b"], "which names it 'small model'"),
        ([{"vector": ["a", 0]}, vector(0)], "vectors that are not numbers"),
    ],
)
def test_questions_of_no_use_are_named(
    saved: Path, capsys: pytest.CaptureFixture[str], questions: list[object], told: str
) -> None:
    assert asked(saved, *questions) == 2
    assert told in capsys.readouterr().err


def test_other_embedders_options_and_files_are_refused(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_searches, "load_embedder", lambda _: lambda _: np.ones((2, 3)))
    assert asked(saved, "a", "b", options=["--embedder", "m"]) == 2
    assert "found shape (2, 3); valid: shape (n, 2)" in capsys.readouterr().err
    assert asked(saved, vector(0), vector(1), options=["--k", "0"]) == 2
    assert "--k; found 0; valid: from 1 to 1000" in capsys.readouterr().err
    save_index(DocumentIndex(IndexSpec(2)), saved, "small model")
    assert asked(saved, vector(0), vector(1)) == 2
    assert "an index without clusters" in capsys.readouterr().err
    assert asked(saved.parent / "none", vector(0), vector(1)) == 2
    assert "no index can be read" in capsys.readouterr().err
