"""Results of checks of int8 weights by model: whether their answers are near enough."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import UncheckedWeightsWarning
from rag_accel.kv.agreement import WEIGHTS_CHECKS
from rag_accel.kv.verdicts import result_folders
from rag_accel.system.locks import RenewedLock

_lock = RenewedLock()
_warned: set[str] = set()


def describe_weights(
    model: Any,
    name: str,
    identity: str,
    *,
    dtype: str | None,
    template: str | None,
    bounds: LocalOptions,
) -> str:
    """Say in a few words how near int8 weights are; warn once a model unless a check has passed.

    Args:
        model: a folder or a name, or a model object.
        name: the model's name.
        identity: of its int8 weights.
        dtype: as of ``LocalModel``.
        template: as of ``LocalModel``.
        bounds: where verdicts may be.
    """
    verdict = WEIGHTS_CHECKS.find(lambda: identity, result_folders(bounds.kv_folder))
    how = _call(bounds)
    if isinstance(model, str | Path):
        how = _command(name, dtype, template, bounds)
    if verdict is None:
        found = f"not checked: {how}"
    else:
        found = f"top 1 {verdict.top1:.2f} on {verdict.prompts} prompts"
        if not verdict.passed:
            found += f", below the {verdict.target:g} asked for"
    if verdict is None or not verdict.passed:
        _warn(f"{name}: int8 weights may change answers; {found}", name)
    return f"int8 weights, approximate ({found})"


def _warn(text: str, name: str) -> None:
    with _lock.lock:
        if name in _warned:
            return
        _warned.add(name)
    warnings.warn(UncheckedWeightsWarning(text), stacklevel=2)


def _command(name: str, dtype: str | None, template: str | None, bounds: LocalOptions) -> str:
    words = ["rag-accel", "cache", "check", name, "--weights", "int8"]
    for option, value in (("--folder", bounds.kv_folder), ("--dtype", dtype)):
        words += [option, value] if value is not None else []
    said = shlex.join(words)
    return said if template is None else f"{said} --template FILE"


def _call(bounds: LocalOptions) -> str:
    folder = "" if bounds.kv_folder is None else f", folder={bounds.kv_folder!r}"
    return f"rag_accel.fidelity.check_weights(model, tokenizer{folder})"
