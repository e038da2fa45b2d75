"""Results of checks of int8 weights by model: whether their answers are near enough."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import UncheckedWeightsWarning
from rag_accel.kv.verdicts import (
    VerdictKind,
    default_folder,
    find_result,
    read_values,
    write_values,
)
from rag_accel.system.locks import RenewedLock

KIND = VerdictKind("rag_accel.weights_check", 1, b"weights check ")
_lock = RenewedLock()
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class WeightsCheckResult:
    """The result of a check.

    Args:
        model: identifies the weights and how they were rounded.
        name: of the model.
        target: the requested agreement.
        passed: whether it was met, less two standard errors.
        top1: the share of tokens whose most probable one is that of the model's own weights.
        top1_error: its standard error.
        kl: Kullback-Leibler divergence from the model's own weights a token, in nats.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
    """

    model: str
    name: str
    target: float
    passed: bool
    top1: float
    top1_error: float
    kl: float
    prompts: int
    tokens: int
    written: float
    versions: Mapping[str, str]


def write_verdict(path: Path, verdict: WeightsCheckResult) -> Path:
    """Write a result to a folder, whole or not at all, and return its file.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be written.
    """
    return write_values(path, KIND, asdict(verdict))


def read_verdict(path: Path, model: str) -> WeightsCheckResult | None:
    """Return the result of a model in a folder; None where there is none.

    Args:
        path: of the folder.
        model: the identity of its int8 weights.

    Raises:
        ChunkFileError: the file is damaged, foreign or of another version.
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be read.
    """
    return read_values(path, KIND, model, _parsed)


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
    folders = [default_folder()]
    if bounds.kv_folder is not None:
        folders.insert(0, Path(bounds.kv_folder).expanduser())
    verdict = find_result(read_verdict, partial(str, identity), folders)
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


def _parsed(said: dict[str, Any]) -> WeightsCheckResult:
    verdict = WeightsCheckResult(**said)
    numbers = (verdict.target, verdict.top1, verdict.top1_error, verdict.kl)
    if not all(map(math.isfinite, numbers)) or not isinstance(verdict.passed, bool):
        raise ValueError("numbers out of range")
    return verdict
