"""Results of checks of ``kv_reuse="fused"`` by model, kept in a folder of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.kv.verdicts import (
    FILE_BYTES,
    VerdictKind,
    default_folder,
    find_result,
    read_values,
    write_values,
)

__all__ = [
    "FILE_BYTES",
    "KIND",
    "ReuseCheckResult",
    "default_folder",
    "find_verdict",
    "read_verdict",
    "write_verdict",
]

#: Its version rises with every change in the computation of fused prompts, to which old results do
#: not apply.
KIND = VerdictKind("rag_accel.kv_check", 1, b"check ")


@dataclass(frozen=True, slots=True)
class ReuseCheckResult:
    """The result of a check.

    Args:
        model: identifies the weights and how states are computed.
        name: of the model.
        target: the requested agreement.
        ratio: the smallest that meets it; None if fused does not pay on this model.
        top1: agreement at that ratio; at the largest one below 0.5, if none meets the target.
        top1_error: its standard error.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
    """

    model: str
    name: str
    target: float
    ratio: float | None
    top1: float
    top1_error: float
    prompts: int
    tokens: int
    written: float
    versions: Mapping[str, str]

    def passes(self, ratio: float) -> bool:
        """Tell whether recomputing this share is enough."""
        return self.ratio is not None and self.ratio <= ratio


def write_verdict(path: Path, verdict: ReuseCheckResult) -> Path:
    """Write a result to a folder, whole or not at all, and return its file.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be written.
    """
    return write_values(path, KIND, asdict(verdict))


def read_verdict(path: Path, model: str) -> ReuseCheckResult | None:
    """Return the result of a model in a folder; None where there is none.

    Args:
        path: of the folder.
        model: the model's identity.

    Raises:
        ChunkFileError: the file is damaged, foreign or of another version.
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be read.
    """
    return read_values(path, KIND, model, _parsed)


def find_verdict(model: Callable[[], str], folders: Iterable[Path]) -> ReuseCheckResult | None:
    """Return the first result that can be trusted; None where there is none.

    Args:
        model: returns the model's identity; slow, so called only if there is any result.
        folders: where to search.
    """
    return find_result(read_verdict, model, folders)


def _parsed(said: dict[str, Any]) -> ReuseCheckResult:
    verdict = ReuseCheckResult(**said)
    numbers = (verdict.target, verdict.ratio or 0.0, verdict.top1, verdict.top1_error)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("numbers out of range")
    return verdict
