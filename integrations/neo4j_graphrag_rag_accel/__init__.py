"""Programs of neo4j-graphrag, accelerated without a change to them."""

from typing import TYPE_CHECKING

try:
    import neo4j_graphrag as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "neo4j_graphrag_rag_accel needs neo4j-graphrag: pip install 'rag-accel[neo4j-graphrag]'"
    ) from error

from neo4j_graphrag_rag_accel import upstream as _upstream
from rag_accel import shutdown

if TYPE_CHECKING or (_missing := _upstream.missing_module()) is None:
    from neo4j_graphrag_rag_accel.accelerate import accelerate, explain
    from neo4j_graphrag_rag_accel.coverage import coverage
    from rag_accel.interception import activate

    if _gone := _upstream.missing_methods():
        _upstream.warn_of(_gone, "not all is accelerated")
else:
    from rag_accel.interception.plain import accelerate, activate, coverage, explain

    _upstream.warn_of([_missing], "nothing is accelerated")

__all__ = ["accelerate", "activate", "coverage", "explain", "shutdown"]
