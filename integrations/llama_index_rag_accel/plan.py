"""Graphs of LlamaIndex programs whose leaves are accelerated."""

from rag_accel.interception.program import intercepting
from rag_accel_adapters.llama_index.plan import graph_of

plan_of = intercepting(graph_of)
