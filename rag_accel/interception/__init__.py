"""Leaf calls of a framework's programs, scheduled while the framework keeps the control flow.

What a framework's leaves are is told by its integration, as a ``Framework``. ``intercept`` makes
them known, ``activate`` schedules all that are called while a block runs, ``twin`` returns an
object whose own calls are always scheduled, ``Interception`` needs the patches while it lives.
"""

from rag_accel.interception.leaf_table import Framework, LeafMethod, leaf_base, leaf_pair
from rag_accel.interception.patches import Interception, activate, intercept
from rag_accel.interception.twins import twin

__all__ = [
    "Framework",
    "Interception",
    "LeafMethod",
    "activate",
    "intercept",
    "leaf_base",
    "leaf_pair",
    "twin",
]
