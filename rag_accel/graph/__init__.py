"""RAG workflows as graphs of stages and of primitives; nothing is executed here.

``ragraph`` builds, ``frozen`` holds, ``spec`` checks and ``growth`` unfolds workflows;
``primitives`` holds what they are lowered to; ``text`` and ``primitive_text`` show them.
"""

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import END, START
from rag_accel.graph.ragraph import RAGraph

__all__ = ["END", "START", "FrozenRAGraph", "RAGraph"]
