"""The tokens that LlamaIndex's models report while a block runs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.callbacks.token_counting import get_tokens_from_response
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

#: A model whose chat is its completion reports an answer twice, right after each other.
_MOST_LATE = 256


class _Counter(BaseEventHandler):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _latest: deque[Any] = PrivateAttr(default_factory=lambda: deque(maxlen=_MOST_LATE))
    _counts: list[int] = PrivateAttr(default_factory=lambda: [0, 0])

    def handle(self, event: Any, **kwargs: Any) -> None:
        if not isinstance(event, LLMChatEndEvent | LLMCompletionEndEvent):
            return
        response = event.response
        raw = getattr(response, "raw", None)
        if response is None or raw is None:
            return
        with self._lock:
            if any(raw is known for known in self._latest):
                return
            self._latest.append(raw)
            for at, tokens in enumerate(get_tokens_from_response(response)):
                self._counts[at] += tokens or 0

    def counts(self) -> tuple[int, int]:
        return self._counts[0], self._counts[1]


@contextmanager
def counted_tokens() -> Iterator[Callable[[], tuple[int, int]]]:
    """Give a function that returns the tokens in and out of all models of the process."""
    counter, root = _Counter(), get_dispatcher()
    root.add_event_handler(counter)
    try:
        yield counter.counts
    finally:
        root.event_handlers.remove(counter)
