"""The warning about a way to compute a model that no check has passed for."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import UncheckedReuseWarning, UncheckedWeightsWarning
from rag_accel.kv.verdicts import DEPENDENCY, FUSED, INT8, CheckVerdict, VerdictKind, result_folders
from rag_accel.system.locks import RenewedLock

_lock = RenewedLock()
#: names of models, each with the option that was warned of
_warned: set[tuple[str, str]] = set()


def warn_if_unchecked(
    model: Any,
    name: str,
    identity: Callable[[], str],
    *,
    dtype: str | None,
    template: str | None,
    bounds: LocalOptions,
) -> str:
    """Warn of each way that is used and for which no check of the model has passed.

    It is said once in a process for each model and way. All weights are read if there is any
    verdict. Returns a few words on int8 weights; "" with the model's own.

    Args:
        model: a folder or a name, or a model object.
        name: the model's name.
        identity: returns the model's identity.
        dtype: as of ``LocalModel``.
        template: as of ``LocalModel``.
        bounds: the ways, and where verdicts may be.
    """
    described = ""
    for kind, option, ratio in _used(bounds):
        if kind is not INT8 and (name, option) in _warned:
            continue
        verdict = kind.find(identity, result_folders(bounds.kv_folder))
        named = isinstance(model, str | Path)
        how = _command(kind, name, dtype, template, bounds) if named else _call(kind, bounds)
        if kind is INT8:
            described = f"int8 weights, approximate ({_figures(verdict, how)})"
        if verdict is None or not verdict.passes(ratio):
            warning = UncheckedWeightsWarning if kind is INT8 else UncheckedReuseWarning
            said = f"{name}: {_finding(kind, option, ratio, verdict)} Run: {how}"
            _warn_once((name, option), warning(said))
    return described


def _used(bounds: LocalOptions) -> Iterator[tuple[VerdictKind, str, float]]:
    """Yield the approximate ways: the checks of each, its option, and its ratio."""
    if bounds.reuses_paths:
        yield DEPENDENCY, DEPENDENCY.option, 0.0
    if bounds.recomputes:
        yield FUSED, FUSED.option, bounds.recompute_ratio
    elif bounds.reuses_texts:
        yield FUSED, 'kv_reuse="full"', 0.0
    if bounds.weights == "int8":
        yield INT8, INT8.option, 0.0


def _finding(kind: VerdictKind, option: str, ratio: float, verdict: CheckVerdict | None) -> str:
    """Return what keeps answers from being trusted."""
    if verdict is None:
        return f"{option} was not checked on this model, whose answers it may change."
    if not kind.by_ratio:
        return (
            f"a check found that {option} agrees in {verdict.top1:.0%} of the tokens of this model,"
            f" less two standard errors below the {verdict.target:g} asked for."
        )
    if verdict.ratio is None:
        return f"a check found that {option} does not pay on this model."
    if option != kind.option:
        return f"{option} did not pass its check, {kind.option} did with {verdict.ratio:g}."
    passed = f"{option} passed its check from recompute_ratio={verdict.ratio:g} on"
    return f"{passed}, and is used with {ratio:g}."


def _figures(verdict: CheckVerdict | None, how: str) -> str:
    if verdict is None:
        return f"not checked: {how}"
    below = "" if verdict.passes() else f", below the {verdict.target:g} asked for"
    return f"top 1 {verdict.top1:.2f} on {verdict.prompts} prompts{below}"


def _warn_once(key: tuple[str, str], warning: UserWarning) -> None:
    with _lock.lock:
        if key in _warned:
            return
        _warned.add(key)
    warnings.warn(warning, stacklevel=3)


def _command(
    kind: VerdictKind, name: str, dtype: str | None, template: str | None, bounds: LocalOptions
) -> str:
    named = {"--variant": kind.variant, "--folder": bounds.kv_folder, "--dtype": dtype}
    given = (word for pair in named.items() if pair[1] is not None for word in pair)
    said = shlex.join(["rag-accel", "check", name, *map(str, given)])
    return said if template is None else f"{said} --template FILE"


def _call(kind: VerdictKind, bounds: LocalOptions) -> str:
    folder = "" if bounds.kv_folder is None else f", folder={bounds.kv_folder!r}"
    return f"rag_accel.fidelity.check(model, tokenizer, variant={kind.variant!r}{folder})"
