"""The container's files: its command serves behind a token, and its stack fits its service."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from serving_kit import ROOT

FOLDER = ROOT / "cookbook" / "container"
DOCKERFILE = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
SERVICE = """
from langchain_core.runnables import RunnableLambda
build = lambda: RunnableLambda(lambda asked: asked["question"][::-1])
"""
TOKEN = "token-of-this-test"


def _command(instruction: str) -> list[str]:
    """Return the command that an instruction of the Dockerfile names."""
    return json.loads(re.findall(rf"^{instruction}.*?(\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def test_the_command_serves_behind_its_token_and_its_check_finds_it(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "SERVE_TOKEN": TOKEN,
        "SERVE_ARGS": "--port 0",
    }
    command = _command("CMD")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = re.search(r":(\d+)", process.stdout.readline())
            assert port is not None
            url = f"http://127.0.0.1:{port[1]}"
            check = [part.replace(":8000", f":{port[1]}") for part in _command("HEALTHCHECK")]
            until = time.monotonic() + 60
            while subprocess.run(check, env=environment, capture_output=True).returncode:
                assert time.monotonic() < until
            asked: dict[str, Any] = {"json": {"question": "abc"}}
            assert httpx.post(f"{url}/invoke", **asked).status_code == 401
            asked["headers"] = {"Authorization": f"Bearer {TOKEN}"}
            assert httpx.post(f"{url}/invoke", **asked).json() == {"output": "cba"}
            assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_no_container_starts_without_a_token(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    done = subprocess.run(_command("CMD"), env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SERVE_TOKEN: set a token" in done.stderr


def test_the_stack_gives_the_service_what_it_reads_and_no_more() -> None:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["service"]
    read = set(re.findall(r"environ\[\"(\w+)\"\]", (FOLDER / "service.py").read_text()))
    of_clients = {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
    of_command = set(re.findall(r"\$\{(SERVE_\w+)", DOCKERFILE))
    assert set(service["environment"]) == read | of_clients | of_command
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("copied", re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE))
def test_what_is_copied_is_there_and_not_ignored(copied: str) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    for name in shlex.split(copied):
        assert (ROOT / name).exists()
        assert name in kept
