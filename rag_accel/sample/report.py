"""Hold what every reader of documents returns: what was read, and what was not and why."""

from __future__ import annotations

from dataclasses import dataclass

from rag_accel.engine_api import Document


@dataclass(frozen=True, slots=True)
class SkippedDocument:
    """Name a file that was not read. ``path`` is relative to the folder that was asked for."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Hold the chunks of all files that could be read, and the files that could not."""

    documents: tuple[Document, ...]
    skipped: tuple[SkippedDocument, ...] = ()
