"""The names of LlamaIndex that this package stands on, and whether they are there.

A new version may lack one. Without a module, nothing is intercepted; without a method, what is done
in it is not. Programs run plainly then, and one warning at the start says what is gone.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from importlib import metadata

#: what imports everything that is needed
_MODULE = "llama_index_rag_accel.accelerate"

_logger = logging.getLogger(__name__)


def missing_module() -> str | None:
    """Return the error of an import that LlamaIndex lacks; None if there is none.

    Raises:
        ImportError: something is missing that is not LlamaIndex's.
    """
    try:
        importlib.import_module(_MODULE)
    except ImportError as error:
        if not (error.name or "").startswith(("llama_index", "workflows")):
            raise
        if (error.name or "").startswith("llama_index_rag_accel"):
            raise
        return str(error)
    return None


def missing_methods() -> list[str]:
    """Return the leaf methods and entries that LlamaIndex lacks."""
    return sorted(set(_missing_methods()))


def _missing_methods() -> Iterator[str]:
    from llama_index_rag_accel.entries import ENTRIES, OPTIONAL
    from llama_index_rag_accel.leaf_table import LLAMA_INDEX

    # A composite's method is one of few classes; where it is gone, nothing is missed.
    wanted = [
        (base, leaf.name)
        for base, leaves in LLAMA_INDEX.leaves.items()
        for leaf in leaves
        if leaf.flavour != "composite"
    ]
    wanted += [(base, name) for base, names in ENTRIES.items() for name in {*names} - OPTIONAL]
    for base, name in wanted:
        if not hasattr(base, name):
            yield f"{base.__module__}.{base.__qualname__}.{name}"


def warn_of(missing: list[str], consequence: str) -> None:
    """Say in the log what is gone."""
    _logger.warning(
        "%s: llama-index-core %s lacks what interception stands on: %s; programs run plainly there;"
        " use a version of llama-index-core that COMPATIBILITY names",
        consequence,
        metadata.version("llama-index-core"),
        ", ".join(missing),
    )
