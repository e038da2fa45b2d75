"""A model compiled in the background, and used only while it is the same model."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.compiled.background_task import BackgroundTask, never_free
from rag_accel.engines.compiled.compile_process import CompileError, turn_of
from rag_accel.engines.compiled.forked import FORKED, note_start

logger = logging.getLogger("rag_accel.embedding")

State = Literal["new", "building", "ready", "refused"]
Output = Literal["sentence_embedding", "token_embeddings"]
Tables = dict[str, NDArray[np.int64]]
"""What a tokenizer gives, ``[texts, tokens]`` each, by name."""

#: Compilations of a changing model before it stays on torch, such as one in training.
MAX_BUILDS = 3

_runtimes: WeakSet[BackgroundRuntime] = WeakSet()


def _note_fork() -> None:
    for runtime in _runtimes:
        runtime.note_fork()


os.register_at_fork(after_in_child=_note_fork)


class Compiled(Protocol):
    """A compiled model, as a runtime uses it."""

    modules: Sequence[Any]

    def is_current(self) -> bool:
        """Tell whether it still is the model that was compiled."""
        ...

    def prepare(self, texts: Sequence[str], prompt: str | None) -> Tables | None:
        """Tokenise texts; None where the model itself has to run them."""
        ...

    def start(self, tables: Tables, threads: int, output: Output) -> Callable[[], Any] | None:
        """Start it on so many threads and return what gives its result; None if it cannot."""
        ...


class BackgroundRuntime:
    """The compiled form of one model, made in the background when first asked for.

    Models are compiled one at a time. What waits for its turn is kept by its users only, and left
    out once they are gone, as is a compilation that is under way.

    Args:
        build: compiles the model; raises if it cannot be.
        prove: says how near its vectors are; raises unless that is near enough.
    """

    def __init__(self, build: Callable[[], Compiled], prove: Callable[[Compiled], str]) -> None:
        self._build = build
        self._prove = prove
        self._lock = threading.Lock()
        self._ready: Compiled | None = None
        self._builds = 0
        self._task: BackgroundTask | None = None
        self.state: State = "new"
        #: how near its vectors are, or why there is none, in a few words
        self.reason = ""
        _runtimes.add(self)

    def current(self) -> Compiled | None:
        """Return the compiled model if it may be used now; from any thread."""
        ready = self._ready
        if ready is not None:
            if ready.is_current():
                return ready
            self._drop(ready)
        if self.state == "new":
            self._start()
        return None

    def give_up(self, error: Exception) -> None:
        """Never use it again, because it failed."""
        with self._lock:
            self._ready = None
            self._refuse(f"compiled, it failed: {error}")

    def wait(self, timeout_s: float) -> None:
        """Wait for a compilation that is under way."""
        task = self._task
        if task is not None:
            task.wait(timeout_s)

    def describe(self) -> str:
        """Say in a few words what runs the model now."""
        if self.state == "ready":
            return f"compiled by OpenVINO, {self.reason}"
        if self.state == "refused":
            return f"runs on torch: {self.reason}"
        return "runs on torch until OpenVINO has compiled it"

    def note_fork(self) -> None:
        """Forget, in a forked child, what does not run there."""
        self._lock = threading.Lock()
        self._task = None
        if self.state in ("building", "ready"):
            never_free(self._ready)  # that would wait for its threads, which do not exist here
            self._ready = None
            self._refuse(FORKED)

    def _drop(self, changed: Compiled) -> None:
        with self._lock:
            if self._ready is not changed:
                return
            self._ready = None
            self.state = "new"
        logger.info("a model has changed; it runs on torch until it is compiled again")

    def _start(self) -> None:
        with self._lock:
            if self.state != "new":
                return
            if self._builds >= MAX_BUILDS:
                self._refuse("it keeps changing")
                return
            self.state = "building"
            self._builds += 1
            self._task = BackgroundTask(partial(_compile, ref(self)))
            try:
                self._task.start()
            except RuntimeError as error:  # no thread to be had: no request fails for that
                self._refuse(str(error))

    def _settle(self, made: Compiled, found: str) -> None:
        if made.is_current():
            self._ready = made
            self.state, self.reason = "ready", found
        else:
            self.state = "new"

    def _refuse(self, reason: str) -> None:
        self.state, self.reason = "refused", reason
        logger.info("a model is not compiled: %s", reason)


def _compile(kept: ref[BackgroundRuntime]) -> None:
    """Compile the model of a runtime, which this thread must not keep from going."""
    try:
        note_start()
        made, found = _made(kept)
        runtime = kept()
        if runtime is not None:
            runtime._settle(made, found)
    except Exception as error:
        runtime = kept()
        if runtime is not None:
            runtime._refuse(str(error))


def _made(kept: ref[BackgroundRuntime]) -> tuple[Compiled, str]:
    with turn_of(lambda: kept() is not None):
        build, prove = _steps(kept)
        made = build()
    return made, prove(made)


def _steps(
    kept: ref[BackgroundRuntime],
) -> tuple[Callable[[], Compiled], Callable[[Compiled], str]]:
    runtime = kept()
    if runtime is None:
        raise CompileError("nobody uses it any more")
    return runtime._build, runtime._prove
