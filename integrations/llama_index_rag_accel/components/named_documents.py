"""Documents that a call to a local model names, for finding them in its prompt."""

from __future__ import annotations

from typing import Any

from llama_index.core.schema import BaseNode, NodeWithScore

from rag_accel.errors import ConfigError
from rag_accel.kv.prompt_chunks import several_documents
from rag_accel_adapters.llama_index.documents import documents_in


def named_documents(given: Any) -> list[tuple[str, str]]:
    """Return the id and the texts of what a call names: with its lines of metadata, and without.

    Raises:
        ConfigError: something else than texts, nodes and nodes with scores.
    """
    found: list[tuple[str, str]] = []
    for at, one in enumerate(several_documents(given, "RagAccelLLM")):
        if isinstance(one, BaseNode | NodeWithScore):
            found += documents_in([one])
        elif isinstance(one, str):
            found.append((str(at), one))
        else:
            raise ConfigError(
                "documents are texts or LlamaIndex's nodes",
                where=f"RagAccelLLM, documents[{at}]",
                found=type(one).__name__,
                valid="str | BaseNode | NodeWithScore",
            )
    return found
