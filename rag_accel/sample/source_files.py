"""The documentation inside Python source files, read with ``ast``; nothing is ever imported.

A docstring of some length becomes a section of its own. Short ones are told together, as list
items of the class or module they belong to, so that a chunk says enough to be found.
"""

from __future__ import annotations

import ast
import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.sample.chunking import Section, chunk_section, count_words
from rag_accel.sample.markup import prose_paragraphs

OWN_SECTION_WORDS = 80
_LEAST_WORDS = 12
_LEAST_INIT_WORDS = 6
_SIGNATURE_LETTERS = 56
# Whatever stands in a definition repeats its name.
_MAX_NAME_LETTERS = 300

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class SkippedDocument:
    """A file that was not read. ``path`` is relative to the folder that was asked for."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Entry:
    qualname: str
    signature: str
    paragraphs: tuple[str, ...]
    members: tuple[_Entry, ...] = ()
    short_name: str = ""

    @property
    def words(self) -> int:
        return sum(map(count_words, self.paragraphs)) + sum(member.words for member in self.members)


def read_sections(code: bytes, module: str, source: str) -> list[Section]:
    """Return the documented public parts of one source file, in source order.

    Args:
        code: the file's bytes in any declared encoding.
        module: dotted name the file would be imported under.
        source: name of the file to cite.

    Raises:
        SyntaxError, ValueError: if the file is not Python.
    """
    if b'"""' not in code and b"'''" not in code:
        return []
    with warnings.catch_warnings():  # old files hold escapes that today's parser complains about
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
    members = _members(tree.body, module, "")
    root = _Entry(module, "", _paragraphs(tree), members)
    sections = _sections(root, source)
    return [
        section for section in sections if sum(map(count_words, section.paragraphs)) >= _LEAST_WORDS
    ]


def _public(body: Sequence[ast.stmt]) -> Iterator[_Definition]:
    """Yield definitions with public names, also from below ``if`` and ``try``; each name once."""
    seen: set[str] = set()
    for node in _flat(body):
        if isinstance(node, _Definition) and not node.name.startswith("_"):
            if node.name not in seen:
                yield node
            seen.add(node.name)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If | ast.Try):  # each elif stands inside the one before it
            waiting += reversed((*node.body, *node.orelse))
        else:
            yield node


def _members(body: Sequence[ast.stmt], module: str, scope: str) -> tuple[_Entry, ...]:
    room = _MAX_NAME_LETTERS - len(scope)
    return tuple(_entry(node, module, scope) for node in _public(body) if len(node.name) <= room)


def _entry(node: _Definition, module: str, scope: str) -> _Entry:
    """Describe one definition; ``scope`` is the class path it stands in, with its dot."""
    local = f"{scope}{node.name}"
    qualname = f"{module}.{local}"
    paragraphs = _paragraphs(node)
    short_name = local if scope else qualname
    if not isinstance(node, ast.ClassDef):
        signature = f"({_signature(node.args, bool(scope))})"
        return _Entry(qualname, signature, paragraphs, (), short_name)
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            paragraphs += tuple(
                paragraph
                for paragraph in _paragraphs(inner)
                if count_words(paragraph) >= _LEAST_INIT_WORDS
            )
    members = _members(node.body, module, f"{local}.")
    return _Entry(qualname, "", paragraphs, members, short_name)


def _paragraphs(node: ast.Module | _Definition) -> tuple[str, ...]:
    raw = ast.get_docstring(node, clean=False) or ""
    # ``cleandoc`` removes blank lines in front one by one, moving all the others each time.
    num_blank = len(raw) - len(raw.lstrip())
    first = raw.rfind("\n", 0, num_blank)
    return tuple(prose_paragraphs(inspect.cleandoc(raw[max(first, 0) :])))


def _signature(arguments: ast.arguments, is_method: bool) -> str:
    names = [posonlyarg.arg for posonlyarg in (*arguments.posonlyargs, *arguments.args)]
    if is_method and names and names[0] in ("self", "cls"):
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        names.append("*")
    names.extend(kwonlyarg.arg for kwonlyarg in arguments.kwonlyargs)
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    text = ", ".join(names)
    return text if len(text) <= _SIGNATURE_LETTERS else f"{names[0][:_SIGNATURE_LETTERS]}, ..."


def _sections(entry: _Entry, source: str) -> Iterator[Section]:
    """Yield an entry's own section, then those of its members that are long enough."""
    told: list[str] = list(entry.paragraphs)
    apart: list[_Entry] = []
    for member in entry.members:
        if member.words >= OWN_SECTION_WORDS:
            apart.append(member)
        else:
            told.extend(_items(member))
    if told:
        yield Section(
            id=entry.qualname,
            heading=f"{entry.qualname}{entry.signature}",
            title=entry.qualname,
            qualname=entry.qualname,
            source=source,
            paragraphs=tuple(told),
        )
    for member in apart:
        yield from _sections(member, source)


def _items(entry: _Entry) -> Iterator[str]:
    if entry.paragraphs:
        text = " ".join(_ended(paragraph.removeprefix("- ")) for paragraph in entry.paragraphs)
        yield f"- {entry.short_name}{entry.signature}: {text}"
    for member in entry.members:
        yield from _items(member)


def _ended(text: str) -> str:
    inner = text.rstrip("\"')]`")
    return text if inner.endswith((".", "!", "?", ":", ";", ",")) else f"{text}."


_MAX_BYTES = 2_000_000
_SKIPPED_FOLDERS = frozenset(
    {
        "dist-packages",
        "encodings",
        "ensurepip",
        "idle_test",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "testing",
        "tests",
        "turtledemo",
    }
)
_SKIPPED_FILES = frozenset({"antigravity.py", "conftest.py", "setup.py", "this.py"})
#: what ``ast`` raises for bytes that are not Python; the last two for what nests too deep
BAD_SOURCE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_PUBLIC_DUNDERS = frozenset({"__init__.py", "__future__.py"})


def is_public_source(path: PurePosixPath) -> bool:
    """Tell whether a relative path is a public module and no test."""
    name = path.name
    if path.suffix != ".py" or name in _SKIPPED_FILES or not path.stem.isidentifier():
        return False
    if name.startswith("_") and name not in _PUBLIC_DUNDERS:
        return False
    return not name.startswith("test_") and all(map(_is_public_folder, path.parent.parts))


def walk_sources(root: Path) -> Iterator[PurePosixPath]:
    """Yield the public modules below ``root``, relative to it, in an order that repeats."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(filter(_is_public_folder, folders))
        relative = PurePosixPath(Path(folder).relative_to(root).as_posix())
        for name in sorted(files):
            if is_public_source(relative / name):
                yield relative / name


def read_sources(
    root: Path,
    paths: Iterable[PurePosixPath],
    prefix: str,
    skipped: list[SkippedDocument],
) -> Iterator[Document]:
    """Yield the chunks of each module; appends to ``skipped`` the files that cannot be read.

    Args:
        root: folder the paths are relative to.
        paths: modules, such as ``json/decoder.py``.
        prefix: what is put before a path to make its ``source``.
        skipped: grows while the iterator is read.
    """
    for path in paths:
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        source = f"{prefix}{path}"
        try:
            code = read_bounded(root / path)
            sections = read_sections(code, module, source)
        except (OSError, *BAD_SOURCE) as error:
            skipped.append(SkippedDocument(source, f"{type(error).__name__}: {error}"))
            continue
        for section in sections:
            yield from chunk_section(section)


def _is_public_folder(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in _SKIPPED_FOLDERS


def read_bounded(path: Path) -> bytes:
    """Return what stands in a file of source.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is too large for a module.
    """
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes are more than the {_MAX_BYTES} read from one module")
    return path.read_bytes()
