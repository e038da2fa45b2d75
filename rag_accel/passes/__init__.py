"""RAGraphs lowered to primitives, and rewrites of those before they run; one pass, one file."""

from rag_accel.passes.context import PassContext
from rag_accel.passes.manager import Pass, register_pass

__all__ = ["Pass", "PassContext", "register_pass"]
