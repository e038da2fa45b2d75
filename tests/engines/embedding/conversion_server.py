"""Converts models in forks of itself, with the libraries that a conversion takes seconds to import.

Run as ``python conversion_server.py FRAME PROGRAM PATH...``: the file that frames a child, the
converting program, and what to add to the search path. Each line of its input is a folder, and each
line of its output an exit status.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch",
    "openvino.frontend.pytorch.ts_decoder",
    "safetensors.torch",
    "transformers.models.bert.modeling_bert",
    "sentence_transformers.sentence_transformer.modules",
)


def loaded(frame: str) -> Any:
    """Return the frame of a child as the module that its program imports, too."""
    spec = importlib.util.spec_from_file_location("frame", frame)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.shared()


def convert_in_fork(frame: Any, program: Path, folder: Path) -> int:
    """Convert in a child, which is told that this process is its parent; return its status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            said = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(said, 2)
            told = json.loads((folder / frame.SPEC).read_text())
            (folder / frame.SPEC).write_text(json.dumps({**told, "parent": os.getppid()}))
            status = frame.main(program, folder)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Import all, then convert until the input ends."""
    given_frame, program, *path = sys.argv[1:]
    sys.path.extend(path)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    for name in LIBRARIES:
        with suppress(ImportError):  # the conversion that needs it says so
            importlib.import_module(name)
    frame = loaded(given_frame)
    while line := sys.stdin.buffer.raw.readline():  # type: ignore[attr-defined]
        folder = Path(os.fsdecode(line[:-1]))
        print(convert_in_fork(frame, Path(program), folder), flush=True)


if __name__ == "__main__":
    main()
