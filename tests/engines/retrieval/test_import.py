"""FAISS is needed only by those who make an index, and then its absence is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rag_accel.engines.retrieval import DocumentIndex, IndexSpec


def test_importing_the_room_does_not_import_faiss() -> None:
    code = "import sys, rag_accel.engines.retrieval; sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_faiss_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install 'rag-accel\[local\]'"):
        DocumentIndex(IndexSpec(2))
