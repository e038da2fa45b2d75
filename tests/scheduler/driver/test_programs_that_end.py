"""A program ends as it should while an engine that nobody uses any more is still closing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0

#: Ends while an engine's thread computes in torch; the first word says how the engine has left.
PROGRAM = """
import gc, sys, threading, time
import torch
from rag_accel import Accelerator
from rag_accel.testing import FakeEngine

ROWS = torch.zeros(1, 8, 256, 64)
began = threading.Event()

class Computing(FakeEngine):
    def close(self):
        began.set()
        ends_at = time.monotonic() + 0.3
        while time.monotonic() < ends_at:
            torch.nn.functional.scaled_dot_product_attention(ROWS, ROWS, ROWS)
        super().close()
        print("closed", flush=True)

class Holder:
    pass

holder = Holder()
accelerator = Accelerator()
accelerator.own(object(), "embedding", Computing, "", holder)
if sys.argv[1] == "engine":
    del holder
else:
    del accelerator
gc.collect()
began.wait()
"""


@pytest.mark.parametrize(
    "gone", ["engine", pytest.param("accelerator", marks=pytest.mark.processes)]
)
def test_an_engine_is_closed_before_the_interpreter_goes(gone: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, gone],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
