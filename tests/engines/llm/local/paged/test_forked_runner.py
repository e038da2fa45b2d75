"""A forked child neither waits for threads that only its parent has nor computes without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models

pytest.importorskip("openvino")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()"),
]

PATIENCE_S = 100.0
PROGRAM = """
import gc, os, signal, sys, torch
torch.set_num_threads(1)  # torch itself hangs in children of processes that have used OpenMP
from tiny_models import fresh, ids_of, own_logits, paged_runner_for, part, shared
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError, ForkedError

def chosen(runner):
    options = LocalOptions(runner=runner, pool_bytes=1 << 26)
    return load(fresh("qwen3"), needs_tokenizer=False, options=options).chosen

def logits(runner):
    lane = runner.pool.take(5)
    return runner.run([part(lane, ids_of(5, 3), 0, 5)])

made = paged_runner_for(shared("qwen3"))
expected = own_logits(shared("qwen3"), ids_of(5, 3))
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that waits for ever
    WORK
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert (logits(made) - expected).abs().max() <= 1e-5
sys.exit(status)
"""
WORKS = {
    "ends": "",
    "drops what it inherited": "del made; gc.collect()",
    "runs what it inherited": """
    try:
        logits(made)
    except ForkedError as error:
        assert 'runner="torch"' in str(error)
    else:
        sys.exit(1)""",
    "asks for another by name": """
    try:
        chosen("paged")
    except ConfigError as error:
        assert "forked" in str(error)
    else:
        sys.exit(1)""",
    "makes another on torch": """
    found = chosen("torch").runner
    assert (logits(found) - expected).abs().max() <= 1e-5""",
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_a_child_that(work: str) -> None:
    paths = os.pathsep.join([str(Path(tiny_models.__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.replace("WORK", work)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (7, "")
