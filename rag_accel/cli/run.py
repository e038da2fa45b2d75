"""``run``: a Python program as it is, with the frameworks that it uses accelerated from the start.

The program gets an interpreter of its own, so that arguments, exit status, tracebacks and what it
starts itself are the plain ones. That interpreter finds ``startup`` first among its modules, whose
``sitecustomize`` switches acceleration on before the program's first line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

STARTUP = str(Path(__file__).parent / "startup")
PATH = "PYTHONPATH"


def run_program(line: Sequence[str]) -> NoReturn:
    """Become a Python interpreter that is given these arguments; this process ends here."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *line], accelerated_environment(os.environ))


def accelerated_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every interpreter switches acceleration on as it starts."""
    before = variables.get(PATH)
    return {**variables, PATH: STARTUP if not before else os.pathsep.join((STARTUP, before))}
