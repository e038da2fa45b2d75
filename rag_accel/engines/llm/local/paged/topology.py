"""The traced models of this user, kept by what a trace depends on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rag_accel.engines.compiled.compile_process import (
    CompileError,
    ProgramFailedError,
    convert,
    private_folder,
)
from rag_accel.engines.compiled.compiled_forms import BackgroundTask
from rag_accel.engines.llm.local.paged import tracing
from rag_accel.errors import ConfigError
from rag_accel.kv.cached_files import CachedFiles
from rag_accel.system.files import user_cache

T = TypeVar("T")

_FORGET = "rag-accel cache purge --traces forgets it"
#: For how long a trace that failed is not tried again: what was wrong with it may have gone.
REFUSED_S = 7 * 86400.0
#: Raised whenever models are tried in another way, so that what failed before is tried again.
_TRIAL = 2


def kept_folder() -> Path:
    """Return the folder of all traces, whether it is there or not."""
    return user_cache() / "traces"


TRACES = CachedFiles(kept_folder, ".trace", most=32)
#: Why models could not be traced.
REFUSALS = CachedFiles(kept_folder, ".refused", most=32)


def is_kept(spec: Mapping[str, Any]) -> bool:
    """Tell whether a model was traced on this machine before, be it in vain.

    Raises:
        ConfigError: the cache is not this user's alone.
        OSError: it cannot be read.
    """
    return TRACES.read(_key(spec)) is not None or _refused(spec) is not None


def read_trace(spec: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
    """Return what is made of a traced model, see ``traced``.

    If nothing can be made of it, this is remembered for a week.

    Args:
        spec: what it depends on.
        read: returns it; raises ``TraceError`` where the trace is at fault.

    Raises:
        CompileError: as for ``traced``, or nothing can be made of it.
        ConfigError: as for ``traced``.
        OSError: as for ``traced``.
    """
    from rag_accel.engines.llm.local.paged.graph import TraceError  # needs torch

    trace = traced(spec)
    try:
        return read(trace)
    except TraceError as error:
        reason = f"the traced model in {kept_folder()} cannot be used: {error}"
        _refuse(spec, reason)
        raise CompileError(f"{reason} ({_FORGET})") from error


def traced(spec: Mapping[str, Any]) -> bytes:
    """Return a traced model, made first by a child process if it is not kept whole.

    A process that crashed, or an operator that failed its trial, is remembered for a week.

    Args:
        spec: what it depends on, see ``making.trace_spec``.

    Raises:
        CompileError: it cannot be traced, or the operator failed its trial; says why.
        ConfigError: the cache is not this user's alone.
        OSError: the cache cannot be written.
    """
    refused = _refused(spec)
    if refused is not None:
        raise CompileError(f"{refused.decode()} (found before; {_FORGET})")
    try:
        return TRACES.read_or_make(_key(spec), lambda: _make(spec))
    except ProgramFailedError as error:
        _refuse(spec, str(error))
        raise


def trace_in_background(spec: Mapping[str, Any]) -> None:
    """Have a model traced that is not kept, for later; a failure is told to whoever needs it."""

    def trace() -> None:
        with suppress(CompileError, ConfigError, OSError):
            traced(spec)

    BackgroundTask(trace).start()


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """A trace of the cache, or the reason why there is none.

    Args:
        path: of its file, or of that with the reason.
        size_bytes: of the file.
        unused_s: seconds since it was used.
        refused: the reason; None for a trace.
    """

    path: Path
    size_bytes: int
    unused_s: float
    refused: str | None


def kept_traces() -> list[KeptTrace]:
    """Return the traces of this user, the most lately used first.

    Raises:
        ConfigError: the cache is not this user's alone.
        OSError: it cannot be read.
    """
    found = [
        KeptTrace(
            file.path,
            file.size,
            max(0.0, time.time() - file.used),
            (content or b"for a reason that is damaged").decode() if files is REFUSALS else None,
        )
        for files in (TRACES, REFUSALS)
        for file, content in files.entries()
    ]
    return sorted(found, key=lambda trace: trace.unused_s)


def remove_traces() -> int:
    """Remove all traces, and the reasons why there are none; return how many.

    Raises:
        ConfigError: the cache is not this user's alone.
        OSError: it cannot be read.
    """
    return TRACES.purge() + REFUSALS.purge()


def _key(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True, default=str)


def _refused(spec: Mapping[str, Any]) -> bytes | None:
    return REFUSALS.read(_refusal_key(spec), REFUSED_S)


def _refuse(spec: Mapping[str, Any], reason: str) -> None:
    with suppress(ConfigError, OSError):
        REFUSALS.write(_refusal_key(spec), reason.encode())


def _refusal_key(spec: Mapping[str, Any]) -> str:
    return _key({**spec, "trial": _TRIAL})


def _make(spec: Mapping[str, Any]) -> bytes:
    package = str(Path(__file__).resolve().parents[4])
    config = spec["config"]
    largest = 4 * config["vocab_size"] * config["hidden_size"]
    with private_folder() as folder:
        convert(tracing.__file__, folder, {**spec, "package": package}, largest)
        return (folder / tracing.TRACE).read_bytes()
