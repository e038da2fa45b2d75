"""Programs of neo4j-graphrag, accelerated without a change to them."""

from typing import TYPE_CHECKING

from neo4j_graphrag_rag_accel.integration import INTEGRATION as _INTEGRATION
from rag_accel import shutdown

if TYPE_CHECKING:
    from neo4j_graphrag_rag_accel.accelerate import accelerate, coverage, explain, prepare
    from rag_accel.interception import activate

__all__ = ["accelerate", "activate", "coverage", "explain", "prepare", "shutdown"]

globals().update(_INTEGRATION.verbs())
