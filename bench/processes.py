"""Put what processes found together that ran the same suite at different times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.environment import SAME_PLACE
from bench.results import SuiteResult, load, over_processes
from rag_accel.errors import ConfigError

_SAME = ("commit", *SAME_PLACE)


def combined(results: Sequence[SuiteResult]) -> SuiteResult:
    """Return what all processes of several results found, as one result.

    Raises:
        ConfigError: if they do not have the same ratios.
    """
    each = [one for result in results for one in (result.processes or (result,))]
    if len(each) == 1:
        return each[0]
    found = over_processes(each)
    return replace(found, environment={**found.environment, "num_processes": len(each)})


def appendable(path: Path, suite: str, environment: dict[str, Any]) -> SuiteResult | None:
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
    _require_same(path, {name: (old.environment.get(name), environment[name]) for name in _SAME})
    return old


def appended(path: Path, old: SuiteResult, new: SuiteResult) -> SuiteResult:
    """Return an old result with the processes of a new one.

    Raises:
        ConfigError: if both did not measure the same.
    """
    _require_same(path, {"sizes": (dict(old.sizes), dict(new.sizes))})
    return combined([old, new])


def _require_committed(environment: Any, where: str) -> None:
    if environment.get("commit") is None or environment.get("is_dirty") is not False:
        raise ConfigError(
            "code that no commit names",
            where=where,
            found=f"commit {environment.get('commit')}, dirty {environment.get('is_dirty')}",
            valid="code as it was committed",
            hint="commit first, or start a new file without --append",
        )


def _require_same(path: Path, pairs: dict[str, tuple[Any, Any]]) -> None:
    other = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if other:
        raise ConfigError(
            "a process that measured something else",
            where=str(path),
            found="; ".join(f"{name} {new}" for name, (_, new) in other.items()),
            valid="; ".join(f"{name} {old}" for name, (old, _) in other.items()),
            hint="start a new file without --append",
        )
