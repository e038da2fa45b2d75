"""A process of an opponent answers line by line, and its end is an error that tells why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.baselines.peer_process import PeerProcess
from rag_accel.errors import EngineError

ECHO = """
import json, os, sys
ready = {"ready": sys.argv[1:], "env": os.environ.get("PEER"), "path": sys.path}
print(json.dumps(ready), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "end":
        sys.exit("the model is\\nno model")
    print(json.dumps({"said": asked}), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


def test_questions_are_answered_one_by_one(
    script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    with PeerProcess(Path(sys.executable), script, "a", "b", env={"PEER": "1"}) as peer:
        assert (peer.ready["ready"], peer.ready["env"]) == (["a", "b"], "1")
        assert str(tmp_path / "ours") not in peer.ready["path"]
        assert [peer.ask({"n": at})["said"]["n"] for at in range(3)] == [0, 1, 2]


def test_an_end_in_the_middle_tells_the_last_lines_of_its_errors(script: Path) -> None:
    with PeerProcess(Path(sys.executable), script) as peer:
        with pytest.raises(EngineError, match=r"the model is \| no model"):
            peer.ask("end")  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="ended without an answer"):
            peer.ask({})
