"""The facts that a Python source file states about its definitions, read with ``ast``.

A fact is a triple (head, relation, tail) of names. Names are resolved by the imports and the
top-level definitions of the same file, and stay as they are written where those say nothing about
them. Definitions with private names are left out, besides ``__init__``; so are tests of types,
assignments and everything else that only a running program knows.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Triple = tuple[str, str, str]
"""Head, relation and tail."""

DEFINES_CLASS = "defines class"
DEFINES_FUNCTION = "defines function"
HAS_METHOD = "has method"
TAKES_PARAMETER = "takes parameter"
ACCEPTS_TYPE = "accepts type"
RETURNS = "returns"
RAISES = "raises"
CALLS = "calls"
IMPORTS = "imports"
INHERITS_FROM = "inherits from"
RELATIONS = (
    DEFINES_CLASS,
    DEFINES_FUNCTION,
    HAS_METHOD,
    TAKES_PARAMETER,
    ACCEPTS_TYPE,
    RETURNS,
    RAISES,
    CALLS,
    IMPORTS,
    INHERITS_FROM,
)

#: A longer annotation says more than a name does.
MAX_TYPE_LETTERS = 60

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.ClassDef | _Function
_Scope = _Function | ast.ClassDef | ast.Lambda
_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


def module_triples(tree: ast.Module, module: str, is_package: bool) -> Iterator[Triple]:
    """Yield the triples of a parsed file in source order, repeated ones included.

    Args:
        tree: the parsed file.
        module: dotted name that the file is imported under.
        is_package: whether the file is the ``__init__.py`` of its package.
    """
    imports = list(_imports(tree, module, is_package))
    yield from ((module, IMPORTS, import_.module) for import_ in imports)
    aliases = {import_.alias: import_.target for import_ in imports}
    for node in _definitions(tree.body):
        aliases.setdefault(node.name, f"{module}.{node.name}")
    yield from _body_triples(tree.body, module, _Names(aliases))


def first_lines(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield (name, first line of its docstring) of the module and the definitions that have one."""
    waiting: list[tuple[str, ast.Module | _Definition]] = [(module, tree)]
    while waiting:
        name, node = waiting.pop()
        line = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        if line:
            yield name, line
        if not isinstance(node, _Function):
            inner = [
                (f"{name}.{definition.name}", definition) for definition in _definitions(node.body)
            ]
            waiting += reversed(inner)


@dataclass(frozen=True, slots=True)
class _Import:
    module: str
    alias: str
    target: str


@dataclass(frozen=True, slots=True)
class _Names:
    """The full names behind the names of a file."""

    aliases: dict[str, str]
    #: names that mean something else here: parameters and variables of a function
    local: frozenset[str] = frozenset()
    #: full names of the methods of the class around, by their names inside a method
    methods: Mapping[str, str] = field(default_factory=dict[str, str])

    def resolved(self, node: ast.expr) -> str | None:
        """Return the full name of a dotted expression; None where the file does not say it."""
        written = _dotted(node)
        if written in self.methods:
            return self.methods[written]
        first, dot, rest = written.partition(".")
        if first in self.local or first not in self.aliases:
            return None
        return f"{self.aliases[first]}{dot}{rest}"


def _dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` of names and attributes, and an empty text of anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))


def _imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[_Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield _plain_import(name)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, is_package)
            for name in node.names:
                # ``from . import name`` imports the module ``name`` of the package
                target = f"{origin}.{name.name}"
                yield _Import(origin if node.module else target, name.asname or name.name, target)


def _plain_import(name: ast.alias) -> _Import:
    first = name.name.partition(".")[0]
    return _Import(name.name, name.asname or first, name.name if name.asname else first)


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    above = parts[: len(parts) - node.level + is_package]
    return ".".join((*above, *([node.module] if node.module else [])))


def _definitions(body: Sequence[ast.stmt]) -> Iterator[_Definition]:
    """Yield definitions with public names, also from below ``if`` and ``try``; each name once."""
    seen: set[str] = set()
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If | ast.Try):
            waiting += reversed((*node.body, *node.orelse))
        elif isinstance(node, _Definition) and _is_public(node.name) and node.name not in seen:
            seen.add(node.name)
            yield node


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _body_triples(
    body: Sequence[ast.stmt], owner: str, names: _Names, in_class: bool = False
) -> Iterator[Triple]:
    found = list(_definitions(body))
    functions = [node.name for node in found if isinstance(node, _Function)]
    own = (
        {f"self.{function}": f"{owner}.{function}" for function in functions} if in_class else None
    )
    for node in found:
        name = f"{owner}.{node.name}"
        if isinstance(node, ast.ClassDef):
            yield owner, DEFINES_CLASS, name
            yield from _class_triples(node, name, names)
        else:
            yield owner, DEFINES_FUNCTION if own is None else HAS_METHOD, name
            yield from _function_triples(node, name, names, own)


def _class_triples(node: ast.ClassDef, name: str, names: _Names) -> Iterator[Triple]:
    for base in node.bases:
        parent = base.value if isinstance(base, ast.Subscript) else base
        found = names.resolved(parent) or _dotted(parent)
        if found:
            yield name, INHERITS_FROM, found
    yield from _body_triples(node.body, name, names, in_class=True)


def _function_triples(
    node: _Function, name: str, names: _Names, methods: dict[str, str] | None
) -> Iterator[Triple]:
    """Yield the triples of a function; ``methods`` are those of its class, as ``self`` has them."""
    arguments = _arguments(node.args, methods is not None)
    for argument in arguments:
        yield name, TAKES_PARAMETER, argument.arg
        if argument.annotation is not None:
            yield name, ACCEPTS_TYPE, _type_name(argument.annotation, names)
    if node.returns is not None:
        yield name, RETURNS, _type_name(node.returns, names)
    inside = list(_own_nodes(node.body))
    local = {argument.arg for argument in arguments} | _assigned(inside)
    known = _Names(names.aliases, frozenset(local), methods or {})
    yield from _statement_triples(inside, name, known)


def _arguments(arguments: ast.arguments, is_method: bool) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    bound = is_method and found and found[0].arg in ("self", "cls")
    return found[1:] if bound else found


def _type_name(node: ast.expr, names: _Names) -> str:
    """Return an annotation as a name; a text is read as the annotation that it stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return (names.resolved(node) or ast.unparse(node))[:MAX_TYPE_LETTERS]


def _own_nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a function in source order, without those of definitions inside it."""
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _Scope):
            yield node
            waiting += reversed(list(ast.iter_child_nodes(node)))


def _assigned(nodes: Sequence[ast.AST]) -> set[str]:
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _statement_triples(nodes: Sequence[ast.AST], name: str, names: _Names) -> Iterator[Triple]:
    for node in nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = _raised(node.exc, names)
            if raised:
                yield name, RAISES, raised
        elif isinstance(node, ast.Call):
            called = names.resolved(node.func)
            if called:
                yield name, CALLS, called


def _raised(node: ast.expr, names: _Names) -> str | None:
    made = node.func if isinstance(node, ast.Call) else node
    found, written = names.resolved(made), _dotted(made)
    return found or (written if written in _EXCEPTIONS and written not in names.local else None)
