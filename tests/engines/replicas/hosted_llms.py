"""A factory of a local language model that a child process makes."""

from __future__ import annotations

import tiny_chat
from fake_runner import tokenizer

from rag_accel.engine_api import Engine
from rag_accel.engines.llm.local.choice import local_engine


def tiny() -> Engine:
    """Return an engine of the tiny model, whose weights are the same in each process."""
    return local_engine(tiny_chat.model(), tokenizer())
