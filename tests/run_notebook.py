"""Run the code of a notebook, cell by cell, in one loop and one namespace, as its kernel would.

Run as ``python tests/run_notebook.py NOTEBOOK``; what the cells print is printed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any


async def run(cells: list[dict[str, Any]]) -> None:
    """Run every code cell; those may await without a function around them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile("".join(cell["source"]), cell["id"], "exec", flags, dont_inherit=True)
            given = eval(code, namespace)
            if inspect.isawaitable(given):
                await given


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text())["cells"]))
