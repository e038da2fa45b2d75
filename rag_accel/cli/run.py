"""``run``: a Python program as it is, with the frameworks that it uses accelerated.

The program gets an interpreter of its own, so that arguments, exit status, tracebacks and its
child processes are unchanged. That interpreter finds ``startup`` first among its modules, whose
``sitecustomize`` switches acceleration on once the program imports a framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rag_accel.cli.automatic import watched_modules

STARTUP = str(Path(__file__).parent / "startup")
PATH = "PYTHONPATH"
#: what ``sitecustomize`` reads: the program's process, and the modules that it waits for
VARIABLE = "_RAG_ACCEL_RUN"

#: options of Python that keep it from looking into ``PYTHONPATH`` for a ``sitecustomize``
_DEAF = {
    "E": "has Python ignore the variables",
    "I": "has Python ignore the variables",
    "S": "has Python skip the start-up module",
}
#: options that take a value, in the same word or in the next
_WITH_VALUE = "WX"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
#: options after which all is the program's
_LAST = "cm"


def run_program(line: Sequence[str]) -> NoReturn:
    """Become a Python interpreter that is given these arguments; this process ends here."""
    option = next((option for option in python_options(line) if option in _DEAF), None)
    if option is not None:
        print(
            f"rag-accel: nothing is accelerated: -{option} {_DEAF[option]} by which acceleration"
            " is switched on",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *line], accelerated_environment(os.environ))


def python_options(line: Sequence[str]) -> Iterator[str]:
    """Yield the letters of the interpreter's own options, which end where the program begins."""
    words = iter(line)
    for word in words:
        if word == _LONG_WITH_VALUE:
            next(words, None)
        elif word in ("-", "--") or not word.startswith("-"):
            return
        elif not word.startswith("--"):
            for at, letter in enumerate(word[1:], start=2):
                yield letter
                if letter in _LAST:
                    return
                if letter in _WITH_VALUE:
                    if not word[at:]:
                        next(words, None)
                    break


def accelerated_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every interpreter waits for the import of a framework.

    The program becomes this very process, so its id tells it apart from those that it starts.
    """
    before = variables.get(PATH)
    return {
        **variables,
        PATH: STARTUP if not before else os.pathsep.join((STARTUP, before)),
        VARIABLE: f"{os.getpid()}:{','.join(watched_modules())}",
    }
