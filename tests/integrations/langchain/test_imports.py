"""Importing the integration loads neither a model library nor another framework."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "faiss", "sentence_transformers", "langchain_classic", "langgraph")


def test_the_integration_imports_langchain_core_only() -> None:
    code = (
        "import sys; import langchain_rag_accel;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
