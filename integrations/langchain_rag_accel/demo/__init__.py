"""Real questions over real documents, answered plain and accelerated, and compared."""

from langchain_rag_accel.demo.command import HELP, add_arguments, command

__all__ = ["HELP", "add_arguments", "command"]
