"""One graph, compiled by OpenVINO for each number of threads, with weights in float32 or int8.

The number of threads is fixed when a graph is compiled, and each form has its own copy of the
weights. So it is compiled for all threads and for one, which a step is granted while other engines
use the cores; for numbers between on first use.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.compiled.compile_process import CompileError, end_all, require_time
from rag_accel.system.forks import at_fork

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


#: Operators that only change the form of a weight.
_PLAIN = ("Convert", "Reshape", "Transpose")


def to_eight_bits(graph: Any) -> None:
    """Replace each weight of a product by int8 with a scale for each of its rows, in place.

    Symmetric: the largest component of a row becomes 127. OpenVINO then multiplies in int8, with
    the other factor rounded when it is there.
    """
    operators = importlib.import_module("openvino.opset13")
    for product in graph.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        constant = product.input(1).get_source_output().get_node()
        while constant.get_type_name() in _PLAIN:
            constant = constant.input(0).get_source_output().get_node()
        if constant.get_type_name() != "Constant" or len(constant.shape) != 2:
            continue
        rows, scales = _rounded(constant.get_data().astype(np.float32))
        whole = operators.convert(operators.constant(rows, dtype=np.int8), "f32")
        scaled = operators.multiply(whole, operators.constant(scales))
        for target in list(constant.output(0).get_target_inputs()):
            target.replace_source_output(scaled.output(0))


def _rounded(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return ``[out, in], int8`` and its scales ``[out, 1], float32``."""
    largest = np.abs(weight).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales


#: Longest wait at the end of the process, in seconds: for one call of native code. Conversions run
#: in processes that are killed then, and between two calls a task looks whether it is to stop.
EXIT_WAIT_S = 10.0


class BackgroundTask:
    """A thread that runs ``call``, and that the end of the process waits for, but not for long.

    What it raises is its own to report.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._thread = threading.Thread(target=self._run, name="rag-accel-compile", daemon=True)

    def start(self) -> None:
        """Start it, once.

        Raises:
            RuntimeError: if the process cannot have another thread.
        """
        # A daemon that comes back from C++ after the interpreter has ended is unwound through it,
        # which aborts the process.
        atexit.register(self._end)
        try:
            self._thread.start()
        except RuntimeError:
            atexit.unregister(self._end)
            raise

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout_s)

    def _end(self) -> None:
        end_all()
        self.wait(EXIT_WAIT_S)

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self._call = lambda: None  # its owner may hold this task: they would keep each other
            atexit.unregister(self._end)


def never_free(obj: object) -> None:
    """Keep an object until the process ends, even past the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))


#: Why nothing is compiled in a forked child of a process that has compiled graphs.
FORKED = "this process was forked from one that has compiled models"


#: The process whose threads run what was compiled, once something was.
_owners: set[int] = set()
_holders: WeakSet[Any] = WeakSet()


def _note_fork() -> None:
    """Keep for ever, in a child, what would wait for threads that do not exist there."""
    for holder in _holders:
        never_free(holder)
    _holders.clear()


at_fork(after_in_child=_note_fork)


def note_start() -> None:
    """Note that a graph is compiled in this process now.

    Raises:
        CompileError: this process was forked from one that has compiled graphs.
    """
    _owners.add(os.getpid())
    if len(_owners) > 1:
        raise CompileError(FORKED)


def keep_past_fork(holder: object) -> None:
    """Have an object that holds compiled graphs never freed in forked children."""
    _holders.add(holder)
