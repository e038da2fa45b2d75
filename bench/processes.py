"""Put what processes found together that ran the same suite at different times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import SAME_PLACE
from bench.results import SuiteResult, load, over_processes
from rag_accel.errors import ConfigError

_SAME = ("commit", "is_dirty", *SAME_PLACE)


def combined(results: Sequence[SuiteResult]) -> SuiteResult:
    """Return what all processes of several results found, as one result.

    Raises:
        ConfigError: if they measured different code or sizes, or in different surroundings.
    """
    first = results[0]
    for number, one in enumerate(results):
        where = f"{first.suite}: process {number}"
        _require_same(where, _surroundings(first.environment, one.environment))
        _require_same(where, {"sizes": (dict(first.sizes), dict(one.sizes))})
    return over_processes(results) if len(results) > 1 else first


def appendable(path: Path, suite: str, environment: Mapping[str, Any]) -> SuiteResult | None:
    """Return the result in a file that a process here and now may be added to; None without file.

    Raises:
        ConfigError: if the file holds something else, or if the process would measure other code,
            code that no commit names, or in other surroundings.
    """
    _require_committed(environment, f"{suite} here")
    if not path.exists():
        return None
    found = load(path)
    if [one.suite for one in found] != [suite]:
        raise ConfigError(
            "another suite's results",
            where=str(path),
            found=", ".join(one.suite for one in found),
            valid=f"one result of {suite}",
            hint="name another file",
        )
    (old,) = found
    _require_committed(old.environment, str(path))
    _require_same(str(path), _surroundings(old.environment, environment))
    return old


def _surroundings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (old.get(name), new.get(name)) for name in _SAME}


def _require_committed(environment: Mapping[str, Any], where: str) -> None:
    if environment.get("commit") is None or environment.get("is_dirty") is not False:
        raise ConfigError(
            "code that no commit names",
            where=where,
            found=f"commit {environment.get('commit')}, dirty {environment.get('is_dirty')}",
            valid="code as it was committed",
            hint="commit first, or start a new file without --append",
        )


def _require_same(where: str, pairs: Mapping[str, tuple[Any, Any]]) -> None:
    other = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if other:
        raise ConfigError(
            "a process that measured something else",
            where=where,
            found="; ".join(f"{name} {new}" for name, (_, new) in other.items()),
            valid="; ".join(f"{name} {old}" for name, (old, _) in other.items()),
            hint="start a new file without --append",
        )
