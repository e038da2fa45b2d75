"""Read the public modules below a folder of Python source as documents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.sample.chunking import chunk_section
from rag_accel.sample.docstrings import read_sections
from rag_accel.sample.file_text import SkippedDocument

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
            code = _read_bounded(root / path)
            sections = read_sections(code, module, source)
        except (OSError, *BAD_SOURCE) as error:
            skipped.append(SkippedDocument(source, f"{type(error).__name__}: {error}"))
            continue
        for section in sections:
            yield from chunk_section(section)


def _is_public_folder(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in _SKIPPED_FOLDERS


def _read_bounded(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes are more than the {_MAX_BYTES} read from one module")
    return path.read_bytes()
