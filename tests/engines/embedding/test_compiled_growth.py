"""Models that were compiled and dropped leave nothing: no memory, thread, process or file."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel.engine_api import (  # noqa: E402
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.compiled.compile_process import (  # noqa: E402
    CompileError,
    convert,
    private_folder,
)
from rag_accel.engines.embedding.engine import SentenceTransformerEngine  # noqa: E402

PATIENCE_S = 100.0
#: How long no thread may have ended or begun before they are counted.
QUIET_S = 0.5
#: Models before memory is looked at: what libraries keep for their first few is theirs.
FIRST, MODELS = 8, 10
#: Most bytes that a model may leave: fewer than the 2 MiB of one whose graph is kept.
LEFT_BYTES = 3 * 2**19

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
MANY = pytest.mark.parametrize(
    "conversions",
    [
        # test_growth.py of langchain counts what programs leave always
        pytest.param("kept", marks=pytest.mark.slow),
        pytest.param(
            "real",
            marks=[pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)],
        ),
    ],
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have temporary files made in a folder of this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


def native_threads() -> int:
    """Count all threads, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def wait_for_ended_threads() -> None:
    """Wait until as many threads are left for a while: one that was joined may still be there."""
    until, seen, since = time.monotonic() + PATIENCE_S, native_threads(), time.monotonic()
    while time.monotonic() < min(until, since + QUIET_S):
        if (now := native_threads()) != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.01)


def settled() -> tuple[int, int, list[str], int]:
    """Return what this process holds once the garbage is collected."""
    for thread in threading.enumerate():
        if thread.name == "rag-accel-compile":
            thread.join(PATIENCE_S)
    gc.collect()
    wait_for_ended_threads()
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # what was freed in the arena of any thread
    return native_threads(), open_files(), children(), rss_bytes()


def compile_and_drop(model: Any) -> None:
    engine = SentenceTransformerEngine(model)
    for _ in range(2):
        work = EngineRequest(WorkId("w"), "1", PrimitiveKind.EMBEDDING, TextBatch(("a",), "query"))
        engine.submit([work])
        while not engine.step(StepBudget(None, 2)):
            pass
        assert engine.runtime is not None
        engine.runtime.wait(PATIENCE_S)
        assert engine.runtime.state == "ready", engine.runtime.reason
    engine.close()


@MANY
def test_models_compiled_and_dropped(small_model: Any, temporary: Path, conversions: str) -> None:
    for _ in range(FIRST):
        compile_and_drop(copy.deepcopy(small_model))
    threads, files, processes, rss = settled()
    for _ in range(MODELS):
        compile_and_drop(copy.deepcopy(small_model))
    threads_after, files_after, processes_after, rss_after = settled()
    assert threads_after <= threads
    assert files_after <= files
    assert processes_after == processes
    assert (rss_after - rss) / MODELS < LEFT_BYTES
    assert list(temporary.glob("rag-accel-compile-*")) == []


def test_nothing_is_traced_in_this_process(
    small_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []

    def trace(*given: Any, **_: Any) -> Any:
        traced.append(given)
        raise RuntimeError("what is traced here stays here")

    for name in ("trace", "trace_module", "script"):
        monkeypatch.setattr(torch.jit, name, trace)
    compile_and_drop(copy.deepcopy(small_model))
    assert traced == []


@pytest.mark.parametrize("ends", ["with a graph", "refused", "killed"])
def test_children(temporary: Path, ends: str) -> None:
    words = {"with a graph": "pass", "refused": "raise SystemExit(3)"}
    program = temporary / "program.py"
    body = words.get(ends, "os.kill(os.getpid(), 9)")
    program.write_text(f"import os\ndef convert(folder, spec):\n    {body}\n")
    before = settled()[:3]
    for _ in range(MODELS):
        try:
            with private_folder() as folder:
                convert(str(program), folder, {}, 0)
        except CompileError:
            assert ends != "with a graph"
    assert settled()[:3] == before
    assert list(temporary.iterdir()) == [program]
