"""The standard library of the running interpreter as a knowledge graph, without a network.

Modules, classes, functions, methods, parameters, types and exceptions are the entities; ten
relations hold between them (``source_triples.RELATIONS``), and the first line of its docstring is
the text of an entity. Some 39,000 triples and 15,000 entities, read in a few seconds. Files are
parsed, never imported; how many triples there are moves with Python's version.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample.source_files import BAD_SOURCE, SkippedDocument, read_bounded
from rag_accel.sample.source_triples import Triple, first_lines, module_triples

# No module of the library, or a copy of code that stands elsewhere.
_SKIPPED_FOLDERS = frozenset(
    {
        "dist-packages",
        "idle_test",
        "idlelib",
        "lib2to3",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
        "_vendor",
        "__pycache__",
    }
)


@dataclass(frozen=True, slots=True)
class LibraryGraph:
    """A knowledge graph as a plain value, from which any store can be filled.

    Args:
        triples: (head, relation, tail), each once, in the order of the files and of their lines.
        texts: the first line of documentation, by entity; only entities of ``triples``.
        skipped: files that could not be read, and why.
    """

    triples: tuple[Triple, ...]
    texts: dict[str, str]
    skipped: tuple[SkippedDocument, ...] = ()

    @property
    def entities(self) -> tuple[str, ...]:
        """Return heads and tails, each once, in the order in which they appear."""
        return tuple(dict.fromkeys(name for head, _, tail in self.triples for name in (head, tail)))


def read_library_graph(
    limit: int | None = None,
    *,
    packages: Collection[str] | None = None,
    stdlib: Path | None = None,
) -> LibraryGraph:
    """Read the standard library as a graph; equal files give equal graphs in an equal order.

    Args:
        limit: most triples, the first ones in order; reading ends with the file that reaches it.
            None: all.
        packages: top-level modules to read, such as ``json``; None: all but tests and idlelib.
        stdlib: folder of the standard library; default: the running interpreter's.

    Raises:
        ConfigError: if ``limit`` is below 1.
        DocumentError: if nothing was found.
    """
    if limit is not None and limit < 1:
        raise ConfigError("bad graph size", where="limit", found=limit, valid="1 or more")
    root = Path(sysconfig.get_path("stdlib")) if stdlib is None else stdlib
    found = _Reading(limit)
    for path in _sources(root):
        if found.is_full:
            break
        if packages is None or _module_of(path).partition(".")[0] in packages:
            found.read(root, path)
    if not found.triples:
        raise DocumentError(
            "no modules found",
            where=str(root),
            found=f"{len(found.skipped)} files that could not be read",
            valid="a standard library with its .py files",
        )
    return found.graph()


@dataclass(slots=True)
class _Reading:
    """The triples and texts of the files read so far."""

    limit: int | None
    triples: dict[Triple, None] = field(default_factory=dict[Triple, None])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    skipped: list[SkippedDocument] = field(default_factory=list[SkippedDocument])

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.triples) >= self.limit

    def read(self, root: Path, path: PurePosixPath) -> None:
        module = _module_of(path)
        try:
            tree = _parsed(root / path)
            triples = dict.fromkeys(module_triples(tree, module, path.name == "__init__.py"))
            texts = dict(first_lines(tree, module))
        except (OSError, *BAD_SOURCE) as error:
            reason = f"{type(error).__name__}: {error}"
            self.skipped.append(SkippedDocument(f"python/{path}", reason))
            return
        self.triples.update(triples)
        self.texts.update(texts)

    def graph(self) -> LibraryGraph:
        triples = tuple(self.triples)[: self.limit]
        graph = LibraryGraph(triples, {}, tuple(self.skipped))
        texts = {name: self.texts[name] for name in graph.entities if name in self.texts}
        return LibraryGraph(triples, texts, graph.skipped)


def _module_of(path: PurePosixPath) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():  # old files hold escapes that today's parser complains about
        warnings.simplefilter("ignore")
        return ast.parse(read_bounded(path))


def _sources(root: Path) -> Iterator[PurePosixPath]:
    """Yield the files of modules below ``root``, relative to it, in an order that repeats."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(folder for folder in folders if _is_package(folder))
        relative = PurePosixPath(Path(folder).relative_to(root).as_posix())
        for name in sorted(files):
            path = relative / name
            if path.suffix == ".py" and path.stem.isidentifier():
                yield path


def _is_package(name: str) -> bool:
    return name.isidentifier() and name not in _SKIPPED_FOLDERS
