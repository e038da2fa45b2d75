"""Start, feed, watch and stop the process that embeds for this one."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engine_api import EngineRequest, PrimitiveKind, TextBatch, WorkId
from rag_accel.engines.embedding.frames import read_frame, write_frame
from rag_accel.engines.embedding.vectors import Vector

logger = logging.getLogger("rag_accel.embedding")

STOP_S = 2.0
#: The helper must give the model's own vectors of these, to this accuracy, before it is used.
_PROBES = ("a", "What does this helper have to show before it is trusted?", "one two three " * 40)
_TOLERANCE = 1e-6
#: A compute thread that waits for another one sleeps: the cores also run the program it serves,
#: and a thread that spins takes from that program what it wants to wait for.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold ``vectors: [texts, dim], float32`` by work, and the works that failed."""

    vectors: Mapping[WorkId, Vector]
    failed: tuple[WorkId, ...]


class HelperProcess:
    """Embed in another process with its own interpreter, started in the background.

    The helper loads the model from where this process loaded it, without network. ``is_ready``
    becomes true when it has shown that it computes the same vectors as the model here, whatever
    happened to that one since; until then, and after any failure, the owner computes by himself.

    Args:
        model: a ``SentenceTransformer`` on the CPU.
        query_kwargs, document_kwargs: arguments of ``encode`` by role.
        threads: compute threads of the helper.
        reproducible: as the engine's.
    """

    def __init__(
        self,
        model: Any,
        query_kwargs: Mapping[str, Any],
        document_kwargs: Mapping[str, Any],
        *,
        threads: int,
        reproducible: bool,
    ) -> None:
        self._model = model
        self._start = {
            "query_kwargs": dict(query_kwargs),
            "document_kwargs": dict(document_kwargs),
            "threads": threads,
            "reproducible": reproducible,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self.is_ready = False
        self._thread = threading.Thread(target=self._open, name="rag-accel-helper", daemon=True)
        self._thread.start()

    def send(self, works: Sequence[EngineRequest]) -> None:
        """Give works to the helper.

        Raises:
            OSError, EOFError: the helper is gone.
        """
        asked = [
            {"id": one.id, "texts": one.payload.texts, "role": one.payload.role} for one in works
        ]
        self._write({"works": asked})

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Take works back; raises like ``send``."""
        self._write({"cancel": list(ids)})

    def wait(self, timeout_s: float) -> Answer | None:
        """Return what the helper sends next, or ``None`` when interrupted or after the timeout.

        Raises:
            OSError, EOFError, ValueError: the helper is gone.
        """
        pipe = self._running().stdout
        assert pipe is not None, "the helper's output is a pipe"
        ready, _, _ = select.select([pipe, self._wake_read], [], [], timeout_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        return self._read_answer() if pipe in ready else None

    def interrupt(self) -> None:
        """Make ``wait`` return; from any thread."""
        with contextlib.suppress(OSError):  # full means that a wake-up is on its way already
            os.write(self._wake_write, b"w")

    def fail(self) -> None:
        """Give the helper up."""
        self.is_ready = False
        self._kill()

    def close(self) -> None:
        """Stop the helper; it also stops by itself when this process ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.is_ready = False
        self._kill()
        # A thread that still computes when the interpreter ends would abort the process.
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _open(self) -> None:
        try:
            self._launch()
            self._write({"model": _source(self._model), **self._start})
            read_frame(self._running().stdout)  # pyright: ignore[reportArgumentType]
            self._prove()
        except Exception as error:
            logger.info("embedding stays in this process: %s: %s", type(error).__name__, error)
            self._kill()

    def _launch(self) -> None:
        with self._lock:
            if self._closed:
                raise EOFError("closed before the helper was started")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rag_accel.engines.embedding.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def _prove(self) -> None:
        for role in ("query", "document"):
            kwargs = self._start[f"{role}_kwargs"]
            expected = self._model.encode(list(_PROBES), show_progress_bar=False, **kwargs)
            probe = TextBatch(_PROBES, role)  # pyright: ignore[reportArgumentType]
            self.send([EngineRequest(WorkId("probe"), "", PrimitiveKind.EMBEDDING, probe)])
            found = self._read_answer().vectors[WorkId("probe")]
            if np.abs(found - np.asarray(expected)).max() > _TOLERANCE:
                raise ValueError("the helper's vectors differ from the model's")
        with self._lock:
            self.is_ready = not self._closed

    def _read_answer(self) -> Answer:
        header, body = read_frame(self._running().stdout)  # pyright: ignore[reportArgumentType]
        flat = np.frombuffer(body, dtype=np.float32)
        vectors: dict[WorkId, Vector] = {}
        used = 0
        for work, rows, dim in header["shapes"]:
            vectors[WorkId(work)] = flat[used : used + rows * dim].reshape(rows, dim)
            used += rows * dim
        return Answer(vectors, tuple(WorkId(work) for work in header["failed"]))

    def _write(self, header: dict[str, Any]) -> None:
        write_frame(self._running().stdin, header)  # pyright: ignore[reportArgumentType]

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            raise EOFError("the helper is not running")
        return process

    def _kill(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _source(model: Any) -> str:
    """Return the name or path a ``SentenceTransformer`` was loaded from.

    Raises:
        ValueError: it was put together in memory.
    """
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    path = getattr(config, "_name_or_path", "")
    if not path:
        raise ValueError("the model was not loaded from anywhere")
    return str(path)
