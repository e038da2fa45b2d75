"""Run the code of a notebook, cell by cell, in one loop and one namespace, as its kernel would.

``python tests/run_notebook.py NOTEBOOK`` prints the output of the cells; ``--save PATH`` writes the
notebook with that output to a file too, which may be the notebook itself.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import inspect
import io
import json
import platform
import tokenize
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Any

from IPython.core.formatters import DisplayFormatter

AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
BLANKS = (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER)

#: What Jupyter asks a value for, in its own words: ``_repr_html_``, ``_repr_png_`` and others.
FORMATTER = DisplayFormatter()


async def run(cells: list[dict[str, Any]]) -> None:
    """Run every code cell, which may await at its top level, and keep what it shows in it.

    That is what it writes to its standard output, and its last expression as a kernel shows it.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), 1):
        body, last = parts("".join(cell["source"]), cell["id"])
        with redirect_stdout(io.StringIO()) as printed:
            await value(body, namespace)
            result = None if last is None else await value(last, namespace)
        print(printed.getvalue(), end="")
        cell["execution_count"] = number
        cell["outputs"] = [*streamed(printed.getvalue()), *shown(result, number)]


def parts(source: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Return a cell's statements, and apart its last expression if the cell is to show it."""
    module = ast.parse(source, name)
    end = module.body[-1] if module.body else None
    last = None
    if isinstance(end, ast.Expr) and not is_silent(source):
        del module.body[-1]
        last = compile(ast.Expression(end.value), name, "eval", AWAITING, dont_inherit=True)
    return compile(module, name, "exec", AWAITING, dont_inherit=True), last


def is_silent(source: str) -> bool:
    """Tell whether a semicolon ends a cell, so that its last expression is not shown."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    meant = [token.string for token in tokens if token.type not in BLANKS]
    return bool(meant) and meant[-1] == ";"


async def value(code: CodeType, namespace: dict[str, Any]) -> Any:
    """Return what a piece of code evaluates to."""
    found = eval(code, namespace)
    return await found if code.co_flags & inspect.CO_COROUTINE else found


def streamed(text: str) -> list[dict[str, Any]]:
    """Return the outputs of a cell that printed a text."""
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def shown(result: Any, number: int) -> list[dict[str, Any]]:
    """Return the outputs of a cell whose last expression has a value, in all forms it comes in."""
    if result is None:
        return []
    data, metadata = FORMATTER.format(result)
    written = {
        mime: base64.b64encode(form).decode()
        if isinstance(form, bytes)
        else form.splitlines(keepends=True)
        for mime, form in sorted(data.items())
    }
    return [
        {
            "data": written,
            "execution_count": number,
            "metadata": metadata,
            "output_type": "execute_result",
        }
    ]


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
