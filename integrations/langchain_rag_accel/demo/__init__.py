"""Answer real questions over real documents, plain and accelerated, and compare."""

from langchain_rag_accel.demo.command import add_arguments, command

__all__ = ["add_arguments", "command"]
