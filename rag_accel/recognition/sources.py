"""The code of functions: its syntax, and fingerprints by which known versions are recognised."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from functools import cache
from typing import Any


@cache
def digest_of(function: Any) -> str:
    """Return what tells a function's code apart from any other's; empty if it cannot be read.

    Layout, comments and docstrings do not count.
    """
    tree = syntax_of(function)
    if tree is None:
        return ""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def syntax_of(function: Any) -> ast.Module | None:
    """Return the syntax tree of a function's source, which is the caller's; None without one."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
