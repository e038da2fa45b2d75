"""The switch for acceleration in an interpreter that starts; it removes itself afterwards.

Python imports a module of this name before a program's first line; ``rag-accel run`` sees to it
that it is this one. Interpreters that the program starts inherit it, as a server's workers do.
"""

import importlib
import os
import sys


def _leave() -> None:
    """Let the program see the modules that it would see without us, another ``sitecustomize`` too.

    The variable stays for the interpreters that it starts.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # there is no other, and the import system wants one


def _switch_on() -> None:
    try:
        from rag_accel.cli.automatic import switch_on

        switch_on()
    except Exception as error:
        print(f"rag-accel: the program runs plainly: {error}", file=sys.stderr)


_leave()
_switch_on()
