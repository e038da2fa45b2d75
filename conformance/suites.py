"""The suites and how each is run; the versions are those of the pins of their environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Everything that is fetched, installed and found; git ignores it.
HOME = ROOT / ".conformance"


class ConformanceError(Exception):
    """Say why the suites could not be run; whether they pass is another question."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Hold which distribution's tests these are and how its own project runs them.

    ``tests`` is their folder in the source distribution, ``arguments`` are pytest's, and
    ``builds_graphs`` tells whether they compile LangGraph graphs.
    """

    distribution: str
    tests: str = "tests"
    arguments: tuple[str, ...] = ()
    builds_graphs: bool = True


SUITES = (
    Suite(
        "langchain-core",
        "tests/unit_tests",
        ("--benchmark-disable", "--disable-socket", "--allow-unix-socket"),
        builds_graphs=False,
    ),
    Suite("langgraph"),
    Suite("langgraph-prebuilt"),
)


def pinned_version(distribution: str, pins: str) -> str:
    """Return the version that the text of a constraints file pins.

    Raises:
        ConformanceError: if there is none.
    """
    found = _pin(distribution).search(pins)
    if found is None:
        raise ConformanceError(f"constraints.txt pins no version of {distribution}")
    return found[1]


def repinned(distribution: str, version: str, pins: str) -> str:
    """Return the text of a constraints file with another version of one distribution.

    Raises:
        ConformanceError: if the text pins no version of it.
    """
    pinned_version(distribution, pins)
    return _pin(distribution).sub(f"{distribution}=={version}", pins)


def _pin(distribution: str) -> re.Pattern[str]:
    return re.compile(rf"^{re.escape(distribution)}==(\S+)$", re.MULTILINE)
