"""Start, watch and stop the process that embeds for this one."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rag_accel.engine_api import TextBatch
from rag_accel.engines.embedding.frames import read_frame, write_frame
from rag_accel.engines.embedding.vectors import Vector

logger = logging.getLogger("rag_accel.embedding")

STOP_S = 2.0
#: The helper must give the model's own vectors of these, to this accuracy, before it is used.
_PROBES = ("a", "What does this helper have to show before it is trusted?", "one two three " * 40)
_TOLERANCE = 1e-6


class HelperProcess:
    """Embed in another process with its own interpreter, started in the background.

    The helper loads the model from where this process loaded it, without network. ``is_ready``
    becomes true when it has shown that it computes the same vectors as the model here, whatever
    happened to that one since; until then, and after any failure, the owner computes by himself.

    Args:
        model: a ``SentenceTransformer`` on the CPU.
        query_kwargs, document_kwargs: arguments of ``encode`` by role.
        max_threads: most threads of a step.
        reproducible: as the engine's.
    """

    def __init__(
        self,
        model: Any,
        query_kwargs: Mapping[str, Any],
        document_kwargs: Mapping[str, Any],
        *,
        max_threads: int,
        reproducible: bool,
    ) -> None:
        self._model = model
        self._start = {
            "query_kwargs": dict(query_kwargs),
            "document_kwargs": dict(document_kwargs),
            "max_threads": max_threads,
            "reproducible": reproducible,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.is_ready = False
        self._thread = threading.Thread(target=self._open, name="rag-accel-helper", daemon=True)
        self._thread.start()

    def embed(
        self, works: Sequence[TextBatch], threads: int
    ) -> tuple[dict[int, Vector], list[int]]:
        """Return ``vectors: [texts, dim], float32`` by place of the work, and places that failed.

        Raises:
            OSError, EOFError, ValueError: the helper is gone; it is not ready any more.
        """
        try:
            return self._ask(works, threads)
        except BaseException:
            self.is_ready = False
            self._kill()
            raise

    def close(self) -> None:
        """Stop the helper; it also stops by itself when this process ends."""
        with self._lock:
            self._closed = True
            self.is_ready = False
        self._kill()

    def _open(self) -> None:
        try:
            self._launch()
            self._write({"model": _source(self._model), **self._start})
            self._read()
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
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def _prove(self) -> None:
        for role in ("query", "document"):
            kwargs = self._start[f"{role}_kwargs"]
            expected = self._model.encode(list(_PROBES), show_progress_bar=False, **kwargs)
            found, _ = self._ask([TextBatch(_PROBES, role)], 1)  # pyright: ignore[reportArgumentType]
            if np.abs(found[0] - np.asarray(expected)).max() > _TOLERANCE:
                raise ValueError("the helper's vectors differ from the model's")
        with self._lock:
            self.is_ready = not self._closed

    def _ask(self, works: Sequence[TextBatch], threads: int) -> tuple[dict[int, Vector], list[int]]:
        asked = [{"texts": work.texts, "role": work.role} for work in works]
        self._write({"threads": threads, "works": asked})
        header, body = self._read()
        flat = np.frombuffer(body, dtype=np.float32)
        vectors: dict[int, Vector] = {}
        used = 0
        for place, (rows, dim) in header["shapes"].items():
            vectors[int(place)] = flat[used : used + rows * dim].reshape(rows, dim)
            used += rows * dim
        return vectors, header["failed"]

    def _write(self, header: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise EOFError("the helper is not running")
        write_frame(process.stdin, header)  # pyright: ignore[reportArgumentType]

    def _read(self) -> tuple[dict[str, Any], bytes]:
        process = self._process
        if process is None or process.stdout is None:
            raise EOFError("the helper is not running")
        return read_frame(process.stdout)  # pyright: ignore[reportArgumentType]

    def _kill(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _source(model: Any) -> str:
    """Return the name or path a ``SentenceTransformer`` was loaded from.

    Raises:
        ValueError: it was put together in memory.
    """
    name = getattr(getattr(model[0], "auto_model", None), "config", None)
    path = getattr(name, "_name_or_path", "")
    if not path:
        raise ValueError("the model was not loaded from anywhere")
    return str(path)
