"""One graph, compiled by OpenVINO for each number of threads, with weights in float32 or int8.

The number of threads is fixed when a graph is compiled, and each form has its own copy of the
weights. So it is compiled for all threads and for one, which a step is granted while other engines
use the cores; for numbers between on first use.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from rag_accel.engines.compiled.background_task import BackgroundTask, never_free
from rag_accel.engines.compiled.compile_process import require_time

_TELEMETRY = "openvino_telemetry"


class CompiledForms:
    """A graph compiled for all threads and for one, and in time for two, four and so on.

    Args:
        graph: an OpenVINO model.
        threads: most threads of one run.
        most: how many numbers of threads it is compiled for at most.
        settings: of OpenVINO, for its precision.
        parallel: how many runs on one thread each compute at the same time, over the same weights.
    """

    def __init__(
        self, graph: Any, threads: int, most: int, settings: Mapping[str, str], parallel: int = 1
    ) -> None:
        self._graph = graph
        self._threads = threads
        self._parallel = parallel
        self._most = most
        self._settings = settings
        self._forms = {number: self._made(number) for number in {threads, 1}}
        self._tasks: dict[int, BackgroundTask] = {}

    def find(self, threads: int) -> CompiledForm | None:
        """Return the form for at most so many threads, None if there is none yet."""
        wanted = self._threads
        if threads < wanted:
            wanted = 1 << (max(1, threads).bit_length() - 1)
        form = self._forms.get(wanted)
        if form is None and wanted not in self._tasks and len(self._forms) < self._most:
            task = BackgroundTask(partial(self._compile, wanted))
            self._tasks[wanted] = task
            task.start()
        return form

    def _compile(self, threads: int) -> None:
        self._forms[threads] = self._made(threads)

    def _made(self, threads: int) -> CompiledForm:
        require_time()
        streams = self._parallel if threads == 1 else 1
        settings = {
            **self._settings,
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads * streams,
            "ENABLE_CPU_PINNING": False,
        }
        return CompiledForm(openvino().Core().compile_model(self._graph, "CPU", settings))


class CompiledForm:
    """A compiled graph; runs beyond its number of streams are queued."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._tensor = openvino().Tensor
        self._idle: deque[Any] = deque()

    def start(self, arrays: list[Any], output: int) -> _CompiledRun:
        """Start a run; calling the result waits for one of its outputs."""
        # Popped and pushed back: a deque's single operations need no lock.
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, self._tensor(array, shared_memory=True))
        request.start_async()
        return _CompiledRun(request, arrays, output, self._idle.append)


class _CompiledRun:
    """One run; it keeps its inputs alive until it has ended, even if its output is not wanted."""

    __slots__ = ("_arrays", "_give_back", "_output", "_pid", "_request")

    def __init__(
        self, request: Any, arrays: list[Any], output: int, give_back: Callable[[Any], object]
    ) -> None:
        self._request: Any = request
        self._arrays = arrays
        self._output = output
        self._pid = os.getpid()
        self._give_back = give_back

    def wait(self, timeout_s: float) -> bool:
        """Tell whether it has ended, at the latest after so many seconds."""
        return self._request.wait_for(round(1000 * timeout_s))

    def __call__(self) -> Any:
        """Wait and return the output, once."""
        request = self._request
        request.wait()
        self._request = None
        found = request.get_output_tensor(self._output).data.copy()
        self._give_back(request)
        return found

    def __del__(self) -> None:
        if self._request is None:
            return
        if os.getpid() != self._pid:
            never_free(self._request)  # it would wait for a thread that does not exist here
            return
        with suppress(Exception):
            self._request.wait()


def openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import and each conversion."""
    if "openvino" in sys.modules:
        return importlib.import_module("openvino")
    known = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("openvino")
    finally:
        if known is None:
            del sys.modules[_TELEMETRY]
        else:
            sys.modules[_TELEMETRY] = known
