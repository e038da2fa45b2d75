"""A file replaced by another process: whoever reads it gets one index or the other, never both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexSpec,
    Metric,
    RetrievalEngine,
    load_index,
    save_index,
)
from rag_accel.engines.retrieval.index import files
from rag_accel.errors import IndexFileError

SAVER = """
import sys
import numpy as np
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, save_index

index = DocumentIndex(IndexSpec(int(sys.argv[2])))
documents = [Document(f"new {n}", "", {"of": "new"}) for n in range(9)]
index.add(documents, np.ones((9, int(sys.argv[2]))))
save_index(index, sys.argv[1], "new")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the path of a saved index of four documents."""
    path = tmp_path / "index"
    save_index(_old(), path, "old")
    return path


def _old() -> DocumentIndex:
    index = DocumentIndex(IndexSpec(4))
    index.add([Document(f"old {n}", "", {"of": "old"}) for n in range(4)], np.ones((4, 4)))
    return index


def _replace_in_another_process(path: Path, dimension: int = 4) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVER, str(path), str(dimension)], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def _ids(engine: RetrievalEngine) -> list[str]:
    query = SearchQuery(np.ones(4), 99)
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.SEARCHING, query)])
    (output,) = engine.step(StepBudget())
    assert output.error is None, output.error
    return [hit.document.id for hit in output.value]


def test_an_index_that_serves_stays_whole_and_the_next_load_sees_the_new_file(path: Path) -> None:
    engine = RetrievalEngine(load_index(path))
    _replace_in_another_process(path)
    assert _ids(engine) == [f"old {n}" for n in range(4)]
    assert _ids(RetrievalEngine(load_index(path))) == [f"new {n}" for n in range(9)]


def test_a_file_replaced_while_it_is_read_gives_the_old_index_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.read_parts

    def replace_first(*arguments: Any) -> Any:
        _replace_in_another_process(path)
        return read(*arguments)

    monkeypatch.setattr(files, "read_parts", replace_first)
    assert _ids(RetrievalEngine(load_index(path))) == [f"old {n}" for n in range(4)]
    monkeypatch.undo()
    assert len(load_index(path, fingerprint="new")) == 9


def test_a_loaded_index_knows_the_fields_of_its_documents(path: Path) -> None:
    index = load_index(path)
    assert index.fields == {"of"}
    index.add([Document("d", "", {"year": 1, "of": "me"})], np.ones((1, 4)))
    index.delete(["d"])
    assert index.fields == {"of", "year"}


def test_a_file_of_another_metric_is_refused_by_name(path: Path) -> None:
    assert len(load_index(path, metric=Metric.INNER_PRODUCT)) == 4
    with pytest.raises(
        IndexFileError, match=r"found metric inner_product; valid: metric l2"
    ) as caught:
        load_index(path, metric=Metric.L2)
    assert caught.value.where == str(path)
