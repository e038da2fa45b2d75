"""A real corpus that every Python machine has: the documentation of its own libraries.

First the language reference and the whole standard library, then the installed packages, a chunk
of each in turn, until the corpus is full. Everything is read from files with ``ast`` and from
package metadata; nothing is imported, so reading has no side effects.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from itertools import islice
from pathlib import Path, PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample.chunking import Section, chunk_section
from rag_accel.sample.markup import plain_text, prose_paragraphs
from rag_accel.sample.source_files import (
    BAD_SOURCE,
    SkippedDocument,
    is_public_source,
    read_sources,
    walk_sources,
)

_DESCRIPTION_CHUNKS = 4
_RECORDED_SOURCE = re.compile(r"^([\w./]+\.py),", re.MULTILINE)
_NAME_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The chunks of all files that could be read, and the files that could not."""

    documents: tuple[Document, ...]
    skipped: tuple[SkippedDocument, ...] = ()


def by_name(distributions: Iterable[Distribution]) -> list[tuple[str, Distribution]]:
    """Order packages by their normalized name; the first of a name on the path wins."""
    found: dict[str, Distribution] = {}
    for distribution in distributions:
        name = _NAME_SEPARATORS.sub("-", _field(distribution, "name")).lower()
        if name:
            found.setdefault(name, distribution)
    return sorted(found.items(), key=lambda item: item[0])


def read_package(
    name: str, distribution: Distribution, skipped: list[SkippedDocument]
) -> Iterator[Document]:
    """Yield a package's description (a few chunks), then its public modules, shallow ones first.

    Modules are those named in the package's own record of files, so none of a neighbour's is read.
    """
    yield from islice(chunk_section(_description(name, distribution)), _DESCRIPTION_CHUNKS)
    recorded = _RECORDED_SOURCE.findall(distribution.read_text("RECORD") or "")
    paths = filter(is_public_source, map(PurePosixPath, recorded))
    ordered = sorted(paths, key=lambda path: (len(path.parts), path.parts))
    root = Path(str(distribution.locate_file("")))
    yield from read_sources(root, ordered, "", skipped)


def _description(name: str, distribution: Distribution) -> Section:
    summary = " ".join(_field(distribution, "summary").split())
    paragraphs = prose_paragraphs(_field(distribution, "description"))
    return Section(
        id=f"{name}:description",
        heading=name,
        title=name,
        qualname=name,
        source=f"{name}-{distribution.version}/METADATA",
        paragraphs=(summary, *paragraphs) if summary else tuple(paragraphs),
    )


def _field(distribution: Distribution, name: str) -> str:
    """Return a metadata field by its lower-case name, empty if the package lacks it."""
    value = distribution.metadata.json.get(name, "")
    return value if isinstance(value, str) else ""


DEFAULT_MAX_CHUNKS = 6000
_TOPICS = "pydoc_data/topics.py"


def read_corpus(
    max_chunks: int = DEFAULT_MAX_CHUNKS,
    *,
    stdlib: Path | None = None,
    distributions: Iterable[importlib.metadata.Distribution] | None = None,
) -> LoadReport:
    """Read the documentation of the standard library, then that of the installed packages.

    The order is fixed: modules by path, packages by name, one chunk of each package in turn. The
    content is that of the machine: other versions of Python or of a package read differently.

    Args:
        max_chunks: most documents to return.
        stdlib: folder of the standard library; default: the running interpreter's.
        distributions: packages to read; default: all that are installed.

    Returns:
        The documents, ids unique, and the source files that could not be parsed.

    Raises:
        ConfigError: if ``max_chunks`` is below 1.
        DocumentError: if there is no documentation at all.
    """
    if max_chunks < 1:
        raise ConfigError(
            "bad corpus size", where="max_chunks", found=max_chunks, valid="1 or more"
        )
    root = Path(sysconfig.get_path("stdlib")) if stdlib is None else stdlib
    found = importlib.metadata.distributions() if distributions is None else distributions
    skipped: list[SkippedDocument] = []
    documents = tuple(islice(_distinct(_chain(root, found, skipped)), max_chunks))
    if not documents:
        raise DocumentError(
            "no documentation found",
            where=str(root),
            valid="a standard library with its .py files",
            hint="give a folder of your own documents instead",
        )
    return LoadReport(documents, tuple(skipped))


def _chain(
    root: Path,
    distributions: Iterable[importlib.metadata.Distribution],
    skipped: list[SkippedDocument],
) -> Iterator[Document]:
    yield from _language_reference(root / _TOPICS, skipped)
    yield from read_sources(root, walk_sources(root), "python/", skipped)
    packages = by_name(distributions)
    yield from _in_turn([read_package(name, one, skipped) for name, one in packages])


def _language_reference(path: Path, skipped: list[SkippedDocument]) -> Iterator[Document]:
    """Read the topics of ``help()``: a dictionary of texts, without running its module."""
    if not path.is_file():
        return
    try:
        topics = _topics(ast.parse(path.read_bytes()))
    except (OSError, *BAD_SOURCE) as error:
        skipped.append(SkippedDocument(f"python/{_TOPICS}", f"{type(error).__name__}: {error}"))
        return
    for name, text in sorted(topics.items()):
        title, _, body = text.strip().partition("\n")
        section = Section(
            id=f"language.{name}",
            heading=f"language.{name}",
            title=plain_text(title),
            qualname=f"language.{name}",
            source=f"python/{_TOPICS}",
            paragraphs=tuple(prose_paragraphs(body)),
        )
        yield from chunk_section(section)


def _topics(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return {str(key): str(text) for key, text in ast.literal_eval(node.value).items()}
    return {}


def _distinct(chunks: Iterable[Document]) -> Iterator[Document]:
    """Drop chunks whose id, or whose text below the heading, was there before."""
    seen: set[tuple[str, str]] = set()
    for chunk in chunks:
        keys = {("id", chunk.id), ("body", chunk.text.partition(":")[2])}
        if not keys & seen:
            yield chunk
        seen |= keys


def _in_turn(streams: Sequence[Iterator[Document]]) -> Iterator[Document]:
    """Take one document of each stream in turn; a stream reads no further than it is asked."""
    live = list(streams)
    while live:
        still_live: list[Iterator[Document]] = []
        for stream in live:
            chunk = next(stream, None)
            if chunk is not None:
                yield chunk
                still_live.append(stream)
        live = still_live
