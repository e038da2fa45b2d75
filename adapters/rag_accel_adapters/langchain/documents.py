"""LangChain's documents in what a search or a compressor returned, as they stand in prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from langchain_core.documents import Document


def documents_in(result: Any) -> Iterator[tuple[str, str]]:
    """Yield the id and the content of each document in a list of documents, or of scored ones."""
    if not isinstance(result, list | tuple):
        return
    for one in cast("list[Any]", result):
        document = one[0] if isinstance(one, tuple) and one else one
        if isinstance(document, Document):
            yield str(document.id or ""), document.page_content


def question_in(value: Any) -> str | None:
    """Return the question of a search or a compressor, where this argument is one."""
    return value if isinstance(value, str) else None
