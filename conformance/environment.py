"""The environment that the suites run in, made once."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.suites import ConformanceError

_CONSTRAINTS = ("constraints.txt", "conformance/constraints.txt")
_REQUIREMENTS = "conformance/requirements.txt"
_INPUTS = ("pyproject.toml", _REQUIREMENTS)
_LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment's interpreter, and a stamp that changes with what is installed."""

    python: Path
    stamp: str


def pins_of(root: Path) -> str:
    """Return the text of all constraints of a checkout that hold in the environment."""
    return "".join((root / path).read_text() for path in _CONSTRAINTS)


def prepare(root: Path, home: Path, pins: str) -> Environment:
    """Return the environment in ``home``, made anew unless it is finished and up to date.

    It has the suites' needs in the versions of ``pins``, and this checkout, editable.

    Raises:
        ConformanceError: if it cannot be made.
    """
    folder = home / "venv"
    stamp_file = folder / ".installed"
    environment = Environment(folder / "bin/python", stamp_of(root, pins))
    if is_sound(environment, stamp_file):
        return environment
    call([sys.executable, "-m", "venv", "--clear", str(folder)], root)
    constraints = home / "constraints.txt"
    constraints.write_text(pins)
    line = [str(environment.python), "-m", "pip", "install", "--quiet", "-c", str(constraints)]
    call([*line, "-r", _REQUIREMENTS, "-e", ".[langchain]"], root)
    stamp_file.write_text(environment.stamp)
    return environment


def stamp_of(root: Path, pins: str) -> str:
    """Name the checkout, the interpreter and everything that says what is installed."""
    digest = hashlib.sha256(pins.encode())
    for path in _INPUTS:
        digest.update((root / path).read_bytes())
    return f"{root} {platform.python_version()} {digest.hexdigest()}\n"


def is_sound(environment: Environment, stamp_file: Path) -> bool:
    """Tell whether an environment was finished, is of this checkout, and still runs."""
    if not stamp_file.exists() or stamp_file.read_text() != environment.stamp:
        return False
    try:
        started = subprocess.run([environment.python, "-c", ""], check=False, timeout=_LIMIT_S)
    except OSError:
        return False
    return started.returncode == 0


def call(line: Sequence[str], place: Path) -> None:
    """Run a command of the set-up in a folder.

    Raises:
        ConformanceError: if it fails, does not start or takes too long; it has said why itself.
    """
    try:
        subprocess.run(line, cwd=place, check=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConformanceError(f"the suites cannot be set up: {error}") from error
