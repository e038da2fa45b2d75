"""The warning about reused texts, or trees of paths, of a model that no check has passed for."""

from __future__ import annotations

import shlex
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import UncheckedReuseWarning
from rag_accel.kv.agreement import PATHS_CHECKS
from rag_accel.kv.reuse_check import REUSE_CHECKS
from rag_accel.kv.verdicts import result_folders

_lock = threading.Lock()
#: names of models, each with the way of reuse that was warned of
_warned: set[tuple[str, str]] = set()


def warn_if_unchecked(
    model: Any,
    name: str,
    identity: Callable[[], str],
    *,
    dtype: str | None,
    template: str | None,
    bounds: LocalOptions,
) -> None:
    """Warn if no check of the model has found that texts are recomputed at a high enough ratio.

    Or that answers over trees of relation paths agree with those over their text.

    It is said once in a process for each model and way of reuse. All weights are read if there is
    any verdict.

    Args:
        model: a folder or a name, or a model object.
        name: the model's name.
        identity: returns the model's identity.
        dtype: as of ``LocalModel``.
        template: as of ``LocalModel``.
        bounds: how texts are reused, and where their states are kept.
    """
    if bounds.kv_reuse == "exact" or (name, bounds.kv_reuse) in _warned:
        return
    find = _found_of_paths if bounds.kv_reuse == "dependency" else _found_of_texts
    found = find(identity, bounds)
    if found is None:
        return
    with _lock:
        if (name, bounds.kv_reuse) in _warned:
            return
        _warned.add((name, bounds.kv_reuse))
    named = isinstance(model, str | Path)
    how = _command(name, dtype, template, bounds) if named else _call(bounds)
    warnings.warn(UncheckedReuseWarning(f"{name}: {found} Run: {how}"), stacklevel=2)


def _found_of_paths(identity: Callable[[], str], bounds: LocalOptions) -> str | None:
    """Return what keeps answers over trees from being trusted; None if nothing does."""
    verdict = PATHS_CHECKS.find(identity, result_folders(bounds.kv_folder))
    if verdict is None:
        return 'kv_reuse="dependency" was not checked on this model, whose answers it may change.'
    if verdict.passed:
        return None
    return (
        f'a check found that kv_reuse="dependency" agrees in {verdict.top1:.0%} of the tokens of'
        f" this model, not in {verdict.target:.0%}."
    )


def _found_of_texts(identity: Callable[[], str], bounds: LocalOptions) -> str | None:
    """Return what keeps reused texts from being trusted; None if nothing does."""
    verdict = REUSE_CHECKS.find(identity, result_folders(bounds.kv_folder))
    way, ratio = f'kv_reuse="{bounds.kv_reuse}"', bounds.recompute_ratio
    if bounds.kv_reuse == "full":
        ratio = 0.0
    if verdict is None:
        return f"{way} was not checked on this model, whose answers it may change."
    if verdict.passes(ratio):
        return None
    if verdict.ratio is None:
        return f"a check found that {way} does not pay on this model."
    if bounds.kv_reuse == "full":
        return f'{way} did not pass its check, kv_reuse="fused" did with {verdict.ratio:g}.'
    return (
        f"{way} passed its check from recompute_ratio={verdict.ratio:g} on, and is "
        f"used with {ratio:g}."
    )


def _command(name: str, dtype: str | None, template: str | None, bounds: LocalOptions) -> str:
    words = ["rag-accel", "cache", "check", name]
    for option, value in (("--folder", bounds.kv_folder), ("--dtype", dtype)):
        words += [option, value] if value is not None else []
    words += ["--paths"] if bounds.kv_reuse == "dependency" else []
    said = shlex.join(words)
    return said if template is None else f"{said} --template FILE"


def _call(bounds: LocalOptions) -> str:
    folder = "" if bounds.kv_folder is None else f", folder={bounds.kv_folder!r}"
    check = "check_paths" if bounds.kv_reuse == "dependency" else "check_reuse"
    return f"rag_accel.fidelity.{check}(model, tokenizer{folder})"
