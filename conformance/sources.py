"""Fetch the tests that a distribution ships in its source form."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from conformance.environment import call
from conformance.suites import ConformanceError

#: All that is unpacked: the package under test is the installed one.
_WANTED = ("tests", "pyproject.toml")


def fetch(python: Path, distribution: str, version: str, home: Path) -> Path:
    """Return the folder with a distribution's tests and settings; pip fetches it where needed.

    Raises:
        ConformanceError: if pip does not get it, or it ships no tests.
    """
    folder = home / "sources" / f"{distribution}-{version}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        line = [str(python), "-m", "pip", "download", "--quiet", "--no-deps"]
        line += ["--no-binary", distribution, "--dest", scratch, f"{distribution}=={version}"]
        call(line, home)
        unpacked = unpack(_archive(Path(scratch)), Path(scratch) / "unpacked")
        unpacked.rename(folder)
    return folder


def unpack(archive: Path, into: Path) -> Path:
    """Unpack the tests and settings of a source archive and return the folder that holds them.

    Raises:
        ConformanceError: if it has none.
    """
    with tarfile.open(archive) as opened:
        wanted = [
            member
            for member in opened.getmembers()
            if PurePosixPath(member.name).parts[1:2] in [(name,) for name in _WANTED]
        ]
        opened.extractall(into, wanted, filter="data")
    found = [path for path in into.glob("*") if all((path / name).exists() for name in _WANTED)]
    if len(found) != 1:
        raise ConformanceError(f"{archive.name} ships no tests")
    return found[0]


def _archive(folder: Path) -> Path:
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise ConformanceError(f"pip fetched {len(archives)} source archives instead of one")
    return archives[0]
