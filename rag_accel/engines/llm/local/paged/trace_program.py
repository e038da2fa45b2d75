"""The program that traces a model and tries the operator, in a process of its own.

``compile_process`` runs it. What is tried is a model of two layers of the same shapes with random
weights: should the operator crash on this machine, this process ends and not the user's.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def convert(folder: Path, spec: Mapping[str, Any]) -> None:
    """Write the traced model to a folder, once the operator has been tried.

    Args:
        folder: gets ``model.xml`` and ``model.bin``.
        spec: as for ``tracing.trace``, and ``package``, the folder of the package.

    Raises:
        Exception: the model cannot be traced, or the operator computes something else.
    """
    # The frame has left these packages empty; what is run here is this project's own.
    for name, place in ("rag_accel", ""), ("rag_accel.engines", "engines"):
        sys.modules[name].__path__ = [os.path.join(spec["package"], place)]
    room = "rag_accel.engines.llm.local.paged"
    trial, tracing = (importlib.import_module(f"{room}.{name}") for name in ("trial", "tracing"))
    warnings.simplefilter("ignore")
    frame = importlib.import_module("rag_accel.engines.compiled.child_program")
    frame.limit_memory(spec["memory_bytes"])
    trial.try_operator(spec, folder)
    tracing.trace(spec, folder / frame.GRAPH)
