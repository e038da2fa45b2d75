"""The traced models of this user, kept by what a trace depends on."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import (
    CompileError,
    ProgramFailedError,
    convert,
    private_folder,
)
from rag_accel.engines.compiled.compiled_forms import BackgroundTask
from rag_accel.engines.llm.local.paged import tracing
from rag_accel.system.files import folder_made_once, read_regular, replaced_file, user_cache

logger = logging.getLogger("rag_accel.llm")

T = TypeVar("T")

#: The traces of another form are other folders.
_FORM = 1
_FOLDER = "paged"
_FILES = (GRAPH, "model.bin")
#: Beside them, the digest of both: a trace without it, or with another, is made again.
_DIGEST = "digest"
_REFUSED = ".refused"
_FORGET = "rag-accel cache purge --traces forgets it"
#: Traces of a user, those lately used; and how long one is kept that nobody uses.
MOST_TRACES = 32
UNUSED_S = 60 * 86400.0
#: For how long a trace that failed is not tried again: what was wrong with it may have gone.
REFUSED_S = 7 * 86400.0


def is_kept(spec: Mapping[str, Any]) -> bool:
    """Tell whether a model was traced on this machine before, be it in vain."""
    folder = folder_of(spec)
    return _is_whole(folder) or _refusal(folder) is not None


def kept_folder() -> Path:
    """Return the folder of all traces, whether it is there or not."""
    return user_cache() / _FOLDER


def folder_of(spec: Mapping[str, Any]) -> Path:
    """Return the folder of a trace, whether it is there or not."""
    told = json.dumps([_FORM, spec], sort_keys=True, default=str)
    return kept_folder() / hashlib.sha256(told.encode()).hexdigest()[:32]


def read_trace(spec: Mapping[str, Any], read: Callable[[Path], T]) -> T:
    """Return what is made of the file of a traced model, see ``traced``.

    If nothing can be made of it, this is remembered for a week.

    Args:
        spec: what it depends on.
        read: returns it; raises ``TraceError`` where the file is at fault.

    Raises:
        CompileError: as for ``traced``, or nothing can be made of it.
        OSError: as for ``traced``.
    """
    from rag_accel.engines.llm.local.paged.graph import TraceError  # needs torch

    path = traced(spec)
    try:
        return read(path)
    except TraceError as error:
        reason = f"the traced model {path.parent} cannot be used: {error}"
        _refuse(path.parent, reason)
        raise CompileError(f"{reason} ({_FORGET})") from error


def traced(spec: Mapping[str, Any]) -> Path:
    """Return the file of a traced model, made first by a child process if it is not kept whole.

    A process that crashed, or an operator that failed its trial, is remembered for a week.

    Args:
        spec: what it depends on, see ``making.trace_spec``.

    Raises:
        CompileError: it cannot be traced, or the operator failed its trial; says why.
        OSError: the cache cannot be written, or is not this user's alone.
    """
    folder = folder_of(spec)
    _require_own(folder.parent)
    refused = _refusal(folder)
    if refused is not None:
        raise CompileError(f"{refused} (found before; {_FORGET})")
    is_new = not os.path.lexists(folder)
    if not is_new and not _is_whole(folder):
        logger.warning("the traced model %s is damaged, and made again", folder)
    try:
        folder_made_once(folder, lambda begun: _make(spec, begun), _is_whole)
    except ProgramFailedError as error:
        _refuse(folder, str(error))
        raise
    with suppress(OSError):  # a cache that may only be read
        os.utime(folder)
    if is_new:
        remove_traces(MOST_TRACES, UNUSED_S)
    return folder / GRAPH


def trace_in_background(spec: Mapping[str, Any]) -> None:
    """Have a model traced that is not kept, for later; a failure is told to whoever needs it."""

    def trace() -> None:
        with suppress(CompileError, OSError):
            traced(spec)

    BackgroundTask(trace).start()


@dataclass(frozen=True, slots=True)
class KeptTrace:
    """A trace of the cache, or the reason why there is none.

    Args:
        path: of its folder, or of the file with the reason.
        size_bytes: of its files.
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
        OSError: the cache is not this user's alone, or cannot be read.
    """
    if not kept_folder().exists():
        return []
    _require_own(kept_folder())
    found = [_kept(path) for path in kept_folder().iterdir() if not path.name.startswith(".")]
    return sorted((trace for trace in found if trace), key=lambda trace: trace.unused_s)


def remove_traces(most: int = 0, unused_s: float = math.inf) -> int:
    """Remove all but the most lately used traces, and those unused for longer; return how many.

    Raises:
        OSError: as for ``kept_traces``.
    """
    removed = 0
    for at, trace in enumerate(kept_traces()):
        if at < most and trace.unused_s <= unused_s:
            continue
        if trace.refused is None:
            shutil.rmtree(trace.path, ignore_errors=True)
        else:
            trace.path.unlink(missing_ok=True)
        removed += not trace.path.exists()
        with suppress(OSError):
            trace.path.with_name(f".{trace.path.stem}.lock").unlink(missing_ok=True)
    return removed


def _kept(path: Path) -> KeptTrace | None:
    """Return what is known of a trace; None if it has gone meanwhile."""
    with suppress(OSError):
        unused_s = max(0.0, time.time() - path.stat().st_mtime)
        files = [path] if path.is_file() else list(path.iterdir())
        size = sum(file.stat().st_size for file in files)
        refused = None
        if path.suffix == _REFUSED:
            refused = read_regular(path).decode("utf-8", "replace")
        return KeptTrace(path, size, unused_s, refused)
    return None


def _require_own(folder: Path) -> None:
    """Make the folder of all traces where it is missing; it holds what is computed with.

    Raises:
        OSError: it cannot be made, or others may write to it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = os.lstat(folder)
    found = None
    if not stat.S_ISDIR(seen.st_mode):
        found = "a link or a file"
    elif hasattr(os, "geteuid") and seen.st_uid != os.geteuid():
        found = "another user's"
    elif os.name == "posix" and seen.st_mode & 0o022:
        found = f"of mode {stat.S_IMODE(seen.st_mode):04o}, so that others may write to it"
    if found is not None:
        raise OSError(f"the folder of traced models {folder} is {found}: remove it")


def _refusal(folder: Path) -> str | None:
    """Return why a trace failed a short time ago; None if it did not."""
    path = folder.with_name(folder.name + _REFUSED)
    with suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) < REFUSED_S:
            return read_regular(path).decode("utf-8", "replace")
    return None


def _refuse(folder: Path, reason: str) -> None:
    with suppress(OSError), replaced_file(folder.with_name(folder.name + _REFUSED)) as file:
        file.write(reason.encode())


def _make(spec: Mapping[str, Any], begun: Path) -> None:
    package = str(Path(__file__).resolve().parents[4])
    config = spec["config"]
    largest = 4 * config["vocab_size"] * config["hidden_size"]
    with private_folder() as folder:
        convert(tracing.__file__, folder, {**spec, "package": package}, largest)
        for name in _FILES:
            if not (folder / name).is_file():
                raise CompileError(f"the process that traces it left no {name}")
            shutil.copy(folder / name, begun / name)
    (begun / _DIGEST).write_text(_digest_of_files(begun))


def _is_whole(folder: Path) -> bool:
    with suppress(OSError):
        return read_regular(folder / _DIGEST).decode("utf-8", "replace") == _digest_of_files(folder)
    return False


def _digest_of_files(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in _FILES:
        content = read_regular(folder / name)
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()
