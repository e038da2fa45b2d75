"""Run the code of a notebook, cell by cell, in one loop and one namespace, as its kernel would.

``python tests/run_notebook.py NOTEBOOK`` prints the output of the cells; ``--save PATH`` writes the
notebook with that output to a file too, which may be the notebook itself.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import io
import json
import platform
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


async def run(cells: list[dict[str, Any]]) -> None:
    """Run every code cell, which may await at its top level, and keep its standard output in it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), 1):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile("".join(cell["source"]), cell["id"], "exec", flags, dont_inherit=True)
        with redirect_stdout(io.StringIO()) as printed:
            given = eval(code, namespace)
            if inspect.isawaitable(given):
                await given
        print(printed.getvalue(), end="")
        cell["execution_count"] = number
        cell["outputs"] = outputs(printed.getvalue())


def outputs(text: str) -> list[dict[str, Any]]:
    """Return the outputs of a cell that printed a text."""
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def main() -> None:
    """Run the notebook that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    notebook = json.loads(arguments.notebook.read_text(encoding="utf-8"))
    asyncio.run(run(notebook["cells"]))
    if arguments.save is not None:
        notebook["metadata"]["language_info"]["version"] = platform.python_version()
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        arguments.save.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
