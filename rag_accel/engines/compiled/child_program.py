"""The frame of a child process that makes a graph: its start, its bounds and its end.

``compile_process`` runs this file by its path in a fresh, isolated interpreter, with the path of a
program: a Python file with ``convert(folder, spec)``, which saves the graph as ``GRAPH``. Tracing
keeps its state in the process, for all threads and for ever; here that ends with the process.

A program may import the modules of this room that need the standard library alone, by their usual
names, and nothing else of rag_accel. Its heavy imports belong into ``convert``: the process that
has the model imports the file, too, for its path and its names.

The folder holds ``SPEC`` and whatever the parent wrote for the program; added are the graph, or
``FAILED`` with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import shutil
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

SPEC, GRAPH, FAILED = "spec.json", "model.xml", "failed.txt"
#: exit status of a child that could not get memory
OUT_OF_MEMORY = 4
#: exit status of a child that says in ``FAILED`` what is wrong
REFUSED = 3
#: how C++, torch and the system say that there is none
_NO_MEMORY = ("bad_alloc", "can't allocate memory", "Cannot allocate memory")
#: how often a child looks whether its parent lives, in seconds
_LOOK_S = 0.5
#: how often it tries to remove a folder that grows meanwhile
_MOST_TRIES = 100
_ROOM = "rag_accel.engines.compiled"


def main(program: Path, folder: Path) -> int:
    """Make the graph of a folder with a program; return an exit status."""
    spec = json.loads((folder / SPEC).read_text())
    _end_with(spec["parent"], folder)
    # After the standard library, which no file of the user's may shadow.
    sys.path.extend(spec["path"])
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        _loaded(program).convert(folder, spec)
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:
        if any(word in str(error) for word in _NO_MEMORY):
            return OUT_OF_MEMORY
        (folder / FAILED).write_text(f"not traced: {error}")
        return REFUSED
    return 0


def _loaded(program: Path) -> Any:
    """Import a file by its path, under a name that no package has."""
    spec = importlib.util.spec_from_file_location("rag_accel_child_program", program)
    assert spec is not None, "a program is a file of Python"
    assert spec.loader is not None, "a program is a file of Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shared() -> Any:
    """Return this file as the module that programs import, so that both know the same errors.

    From here on the modules of this room are imported by their names, and nothing else of
    rag_accel is, even if it is installed: the packages above the room are empty.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    above: ModuleType | None = None
    for name, folders in (("rag_accel", []), ("rag_accel.engines", []), (_ROOM, [here])):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = folders
        if above is not None:
            setattr(above, name.rpartition(".")[2], package)
        above = package
    return importlib.import_module(f"{_ROOM}.child_program")


def _end_with(parent: int, folder: Path) -> None:
    """End this process, and remove its folder, as soon as its parent has ended.

    Then the pipe to it is closed, unless a forked process holds it too: that has another parent.
    """

    def watch() -> None:
        while os.getppid() == parent and not select.select([0], [], [], _LOOK_S)[0]:
            pass
        _clear(folder)
        os._exit(REFUSED)

    threading.Thread(target=watch, daemon=True).start()


def await_start(parent: int, folder: Path) -> None:
    """Wait until the parent has filled the folder; if it ends before, remove it and end, too."""
    while os.getppid() == parent:
        if select.select([0], [], [], _LOOK_S)[0]:
            if os.read(0, 1):
                return
            break
    _clear(folder)
    os._exit(REFUSED)


def _clear(folder: Path) -> None:
    """Remove a folder, also while the main thread puts something into it."""
    for _ in range(_MOST_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def limit_memory(more_bytes: int) -> None:
    """Bound the further memory of this process, and let it leave no core file.

    A program calls it once its libraries are imported, which take most of the address space.
    """
    try:
        resource = importlib.import_module("resource")
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = has + more_bytes
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (ImportError, OSError, ValueError):
        return  # a system without such limits


if __name__ == "__main__":
    frame = shared()
    given_program, given_folder = Path(sys.argv[1]), Path(sys.argv[2])
    frame.await_start(int(sys.argv[3]), given_folder)
    # At once: libraries may crash where they are torn down, and what was made is saved.
    os._exit(frame.main(given_program, given_folder))
