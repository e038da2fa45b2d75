"""A protocol has several implementers; the number of those with one or none only falls.

A class implements a protocol if it names it among its bases, or if it and its bases of the product
define every method that the protocol declares. A protocol without methods is implemented by whoever
names it. Tests and other people's classes do not count: where these alone implement a protocol, it
stands in the bound.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("rag_accel", "integrations", "adapters", "demo")

#: protocols with one implementer or none; whoever removes one lowers this
MOST_LONELY = 8


def _classes() -> list[ast.ClassDef]:
    files = (file for top in PRODUCT for file in sorted((ROOT / top).rglob("*.py")))
    trees = (ast.parse(file.read_text()) for file in files)
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _bases(cls: ast.ClassDef) -> set[str]:
    """Return the last part of each base's name, without type arguments."""
    named = (base.value if isinstance(base, ast.Subscript) else base for base in cls.bases)
    return {ast.unparse(base).rpartition(".")[2] for base in named}


def _methods(cls: ast.ClassDef) -> set[str]:
    """Return the names of methods, and of functions that a class assigns or holds in fields."""
    found = set[str]()
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _declared(cls: ast.ClassDef) -> set[str]:
    """Return the names of the methods that a protocol declares, its properties not among them."""
    functions = (
        node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {node.name for node in functions if not node.decorator_list}


def lonely(classes: list[ast.ClassDef]) -> dict[str, list[str]]:
    """Return the protocols with one implementer or none, with the names of these."""
    # A class of the product may be called as the base of protocols is.
    by_name = {cls.name: cls for cls in classes if cls.name != "Protocol"}

    def inherited(cls: ast.ClassDef) -> set[str]:
        above = (by_name[base] for base in _bases(cls) - {cls.name} if base in by_name)
        return _methods(cls).union(*map(inherited, above))

    protocols = [cls for cls in classes if "Protocol" in _bases(cls)]
    others = [cls for cls in classes if "Protocol" not in _bases(cls)]
    found: dict[str, list[str]] = {}
    for protocol in protocols:
        declared = set[str]().union(
            _declared(protocol),
            *(_declared(by_name[base]) for base in _bases(protocol) if base in by_name),
        )
        found[protocol.name] = [
            cls.name
            for cls in others
            if protocol.name in _bases(cls) or (declared and declared <= inherited(cls))
        ]
    return {name: by for name, by in found.items() if len(by) < 2}


def test_protocols_with_one_implementer_only_fall() -> None:
    found = lonely(_classes())
    assert len(found) == MOST_LONELY, f"lower or keep the bound: {sorted(found.items())}"


def test_a_lonely_protocol_is_found() -> None:
    text = """
class Seam(Protocol):
    def go(self) -> None: ...
class Shared(Protocol):
    def stop(self) -> None: ...
class One:
    def go(self) -> None: ...
    def stop(self) -> None: ...
class Two(One):
    go = None
class Three(Shared): ...
class Other(Protocol):
    def other(self) -> None: ...
"""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert lonely(classes) == {"Other": []}
