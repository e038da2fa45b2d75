"""The warning about fused prompts of a model that no check has passed for."""

from __future__ import annotations

import shlex
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import UncheckedReuseWarning
from rag_accel.kv.reuse_check import REUSE_CHECKS, ReuseCheckResult
from rag_accel.kv.verdicts import result_folders

_lock = threading.Lock()
_warned: set[str] = set()


def warn_if_unchecked(
    model: Any,
    name: str,
    identity: Callable[[], str],
    *,
    dtype: str | None,
    template: str | None,
    bounds: LocalOptions,
) -> None:
    """Warn if prompts are fused at a ratio that no check of the model has found to be enough.

    It is said once for each model of a process. All weights are read if there is any verdict.

    Args:
        model: a folder or a name, or a model object.
        name: the model's name.
        identity: returns the model's identity.
        dtype: as of ``LocalModel``.
        template: as of ``LocalModel``.
        bounds: how texts are reused, and where their states are kept.
    """
    if bounds.kv_reuse != "fused" or name in _warned:
        return
    verdict = REUSE_CHECKS.find(identity, result_folders(bounds.kv_folder))
    if verdict is not None and verdict.passes(bounds.recompute_ratio):
        return
    with _lock:
        if name in _warned:
            return
        _warned.add(name)
    named = isinstance(model, str | Path)
    how = _command(name, dtype, template, bounds) if named else _call(bounds)
    found = _found(verdict, bounds.recompute_ratio)
    warnings.warn(UncheckedReuseWarning(f"{name}: {found} Run: {how}"), stacklevel=2)


def _found(verdict: ReuseCheckResult | None, ratio: float) -> str:
    if verdict is None:
        return 'kv_reuse="fused" was not checked on this model, whose answers it may change.'
    if verdict.ratio is None:
        return 'a check found that kv_reuse="fused" does not pay on this model.'
    return (
        f'kv_reuse="fused" passed its check from recompute_ratio={verdict.ratio:g} on, and is '
        f"used with {ratio:g}."
    )


def _command(name: str, dtype: str | None, template: str | None, bounds: LocalOptions) -> str:
    words = ["rag-accel", "cache", "check", name]
    for option, value in (("--folder", bounds.kv_folder), ("--dtype", dtype)):
        words += [option, value] if value is not None else []
    said = shlex.join(words)
    return said if template is None else f"{said} --template FILE"


def _call(bounds: LocalOptions) -> str:
    folder = "" if bounds.kv_folder is None else f", folder={bounds.kv_folder!r}"
    return f"rag_accel.fidelity.check_reuse(model, tokenizer{folder})"
