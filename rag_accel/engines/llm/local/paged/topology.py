"""The traced models of this user, kept by what a trace depends on."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_accel.engines.compiled.background_task import BackgroundTask
from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import CompileError, convert, private_folder
from rag_accel.engines.llm.local.paged import trace_program
from rag_accel.system.files import folder_made_once, user_cache

#: The traces of another form are other folders.
_FORM = 1
_FOLDER = "paged"
_FILES = (GRAPH, "model.bin")


def is_kept(spec: Mapping[str, Any]) -> bool:
    """Tell whether a model was traced on this machine before."""
    return folder_of(spec).is_dir()


def folder_of(spec: Mapping[str, Any]) -> Path:
    """Return the folder of a trace, whether it is there or not."""
    told = json.dumps([_FORM, spec], sort_keys=True, default=str)
    return user_cache() / _FOLDER / hashlib.sha256(told.encode()).hexdigest()[:32]


def traced(spec: Mapping[str, Any]) -> Path:
    """Return the file of a traced model, made first by a child process if it is not kept.

    Args:
        spec: what it depends on, see ``making.trace_spec``.

    Raises:
        CompileError: it cannot be traced, or the operator failed its trial; says why.
        OSError: the cache cannot be written.
    """
    return folder_made_once(folder_of(spec), lambda begun: _make(spec, begun)) / GRAPH


def trace_in_background(spec: Mapping[str, Any]) -> None:
    """Have a model traced that is not kept, for later; a failure is logged by whoever needs it."""

    def trace() -> None:
        with suppress(CompileError, OSError):
            traced(spec)

    BackgroundTask(trace).start()


def _make(spec: Mapping[str, Any], begun: Path) -> None:
    package = str(Path(__file__).resolve().parents[4])
    config = spec["config"]
    largest = 4 * config["vocab_size"] * config["hidden_size"]
    with private_folder() as folder:
        convert(trace_program.__file__, folder, {**spec, "package": package}, largest)
        for name in _FILES:
            if not (folder / name).is_file():
                raise CompileError(f"the process that traces it left no {name}")
            shutil.copy(folder / name, begun / name)
