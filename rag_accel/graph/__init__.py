"""Describe RAG workflows as graphs of stages and of primitives; execute nothing.

``ragraph`` builds, ``frozen`` holds, ``spec`` checks and ``growth`` unfolds workflows;
``primitives`` holds what they are lowered to; ``text``, ``primitive_text`` and ``mermaid`` show
them.
"""

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.nodes import END, START
from rag_accel.graph.ragraph import RAGraph

__all__ = ["END", "START", "FrozenRAGraph", "RAGraph"]
