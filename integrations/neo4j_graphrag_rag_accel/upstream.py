"""The names of neo4j-graphrag that this package stands on, and whether they are there.

A new version may lack one. Without a module, nothing is intercepted; without a method, what is done
in it is not. Programs run plainly then, and one warning at the start says what is gone.
"""

from __future__ import annotations

import importlib
import logging
from importlib import metadata

#: what imports everything that is needed
_MODULE = "neo4j_graphrag_rag_accel.accelerate"
#: what only some models have
_OPTIONAL = frozenset({"invoke_with_tools", "ainvoke_with_tools"})

_logger = logging.getLogger(__name__)


def missing_module() -> str | None:
    """Return the error of an import that neo4j-graphrag lacks; None if there is none.

    Raises:
        ImportError: something is missing that is not neo4j-graphrag's.
    """
    try:
        importlib.import_module(_MODULE)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "neo4j_graphrag":
            raise
        return str(error)
    return None


def missing_methods() -> list[str]:
    """Return the leaf methods and entries that neo4j-graphrag lacks."""
    from neo4j_graphrag_rag_accel.entries import PROGRAMS
    from neo4j_graphrag_rag_accel.leaf_table import NEO4J_GRAPHRAG

    wanted = [(base, "search") for base in PROGRAMS]
    for base, leaves in NEO4J_GRAPHRAG.leaves.items():
        wanted += [(base, leaf.name) for leaf in leaves if leaf.name not in _OPTIONAL]
    return sorted(
        f"{base.__module__}.{base.__qualname__}.{name}"
        for base, name in wanted
        if not hasattr(base, name)
    )


def warn_of(missing: list[str], consequence: str) -> None:
    """Say in the log what is gone."""
    _logger.warning(
        "%s: neo4j-graphrag %s lacks what interception stands on: %s; programs run plainly there;"
        " use a version of neo4j-graphrag that COMPATIBILITY names",
        consequence,
        metadata.version("neo4j-graphrag"),
        ", ".join(missing),
    )
