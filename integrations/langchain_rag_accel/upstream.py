"""The private names of LangChain that this package stands on, and whether they are there.

A new version may lack one. Then nothing is intercepted: programs run plainly, and a warning says
what is gone.
"""

from __future__ import annotations

import importlib
import logging
from importlib import metadata

#: where a class is, and a method of it that its objects' work is done in
_METHODS = (
    ("langchain_core.language_models", "BaseChatModel", "_generate"),
    ("langchain_core.language_models", "BaseChatModel", "_agenerate"),
    ("langchain_core.language_models", "BaseChatModel", "_stream"),
    ("langchain_core.language_models", "BaseChatModel", "_astream"),
    ("langchain_core.language_models", "BaseLLM", "_generate"),
    ("langchain_core.language_models", "BaseLLM", "_agenerate"),
    ("langchain_core.language_models", "BaseLLM", "_stream"),
    ("langchain_core.language_models", "BaseLLM", "_astream"),
    ("langchain_core.retrievers", "BaseRetriever", "_get_relevant_documents"),
    ("langchain_core.retrievers", "BaseRetriever", "_aget_relevant_documents"),
)
#: what imports everything else that is needed
_MODULES = ("langchain_rag_accel.accelerate",)

_logger = logging.getLogger(__name__)


def missing_name() -> str | None:
    """Return what LangChain lacks of what is needed; None if all is there.

    Raises:
        ImportError: something is missing that is not LangChain's.
    """
    for module, cls, method in _METHODS:
        if not hasattr(getattr(importlib.import_module(module), cls, None), method):
            return f"{module}.{cls}.{method}"
    for module in _MODULES:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if not (error.name or "").startswith(("langchain_core", "langgraph")):
                raise
            return str(error)
    return None


def warn_of(missing: str) -> None:
    """Say in the log that nothing is accelerated, and why."""
    _logger.warning(
        "nothing is accelerated: langchain-core %s lacks what interception stands on: %s; programs"
        " run plainly; use a version of langchain-core that COMPATIBILITY names",
        metadata.version("langchain-core"),
        missing,
    )
