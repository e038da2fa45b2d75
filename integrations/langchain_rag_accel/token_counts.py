"""The tokens that LangChain's models report while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from langchain_core.callbacks import get_usage_metadata_callback


@contextmanager
def counted_tokens() -> Iterator[Callable[[], tuple[int, int]]]:
    """Give a function that returns the tokens in and out of the chat models of this context."""
    # LangChain's own handler: composites whose calls it hears of may still make them in parallel.
    with get_usage_metadata_callback() as counted:

        def counts() -> tuple[int, int]:
            models = list(counted.usage_metadata.values())
            return (
                sum(model["input_tokens"] for model in models),
                sum(model["output_tokens"] for model in models),
            )

        yield counts
