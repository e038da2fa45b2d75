"""It acts in a program as people have it, and says what acts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import embeddings_server
import pytest

PROGRAM = Path(__file__).with_name("hosted_program.py")


def test_calls_are_shared_nobody_is_lost_and_reasons_are_told() -> None:
    pytest.importorskip("sentry_sdk")
    paths = [str(Path(embeddings_server.__file__).parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["answers"] == ["AIMessage"] * 60
    assert found["embedding_calls"] <= 6
    assert found["chat_calls"] <= 2.1 * 60
    explained = found["explain"]
    assert "OpenAIEmbeddings: recognised server" in explained
    assert "ChatOpenAI: recognised model on a server" in explained
    assert "once its endpoint refuses calls, they wait for their turn" in explained
    assert "OpenAIEmbeddings.aembed_query: " in found["coverage"]
