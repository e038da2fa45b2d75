"""Read what installed packages say about themselves: their description, then their docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from itertools import islice
from pathlib import Path, PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.sample.chunking import Section, chunk_section
from rag_accel.sample.markup import prose_paragraphs
from rag_accel.sample.report import SkippedDocument
from rag_accel.sample.source_files import is_public_source, read_sources

_DESCRIPTION_CHUNKS = 4
_RECORDED_SOURCE = re.compile(r"^([\w./]+\.py),", re.MULTILINE)
_NAME_SEPARATORS = re.compile(r"[-_.]+")


def by_name(distributions: Iterable[Distribution]) -> list[tuple[str, Distribution]]:
    """Order packages by their normalized name; the first of a name on the path wins."""
    found: dict[str, Distribution] = {}
    for one in distributions:
        name = _NAME_SEPARATORS.sub("-", _field(one, "name")).lower()
        if name:
            found.setdefault(name, one)
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
