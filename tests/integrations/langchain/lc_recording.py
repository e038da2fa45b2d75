"""Record what a program tells its callbacks, in a form in which two runs can be compared."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Recorder(BaseCallbackHandler):
    """Write down every callback with its run's name, its place among runs, tags and metadata."""

    run_inline = True

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.run_ids: list[UUID] = []
        self._paths: dict[UUID, str] = {}

    def _start(self, event: str, payload: Any, kwargs: dict[str, Any]) -> None:
        run_id, parent = kwargs["run_id"], kwargs.get("parent_run_id")
        name = kwargs.get("name") or (kwargs.get("serialized") or {}).get("name")
        self._paths[run_id] = f"{self._paths.get(parent, '')}/{name}"
        self.run_ids.append(run_id)
        details = (kwargs.get("tags"), plain(kwargs.get("metadata")))
        self.entries.append((event, self._paths[run_id], details, plain(payload)))

    def _more(self, event: str, payload: Any, kwargs: dict[str, Any]) -> None:
        path = self._paths.get(kwargs["run_id"], "?")
        self.entries.append((event, path, kwargs.get("tags"), plain(payload)))

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self._start("chain_start", inputs, {"serialized": serialized, **kwargs})

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        payload = (messages, kwargs.get("invocation_params"), kwargs.get("options"))
        self._start("chat_start", payload, {"serialized": serialized, **kwargs})

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        self._start("llm_start", prompts, {"serialized": serialized, **kwargs})

    def on_retriever_start(self, serialized: Any, query: Any, **kwargs: Any) -> None:
        self._start("retriever_start", query, {"serialized": serialized, **kwargs})

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self._more("chain_end", outputs, kwargs)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self._more("llm_end", response, kwargs)

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self._more("token", (token, kwargs.get("chunk")), kwargs)

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        self._more("retriever_end", documents, kwargs)

    def on_text(self, text: str, **kwargs: Any) -> None:
        self._more("text", (text, kwargs.get("color"), kwargs.get("end")), kwargs)

    def on_retry(self, retry_state: Any, **kwargs: Any) -> None:
        self._more("retry", retry_state.attempt_number, kwargs)

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        self._more("chain_error", repr(error), kwargs)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self._more("llm_error", repr(error), kwargs)

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self._more("retriever_error", repr(error), kwargs)


def plain(value: Any) -> str:
    """Return a value as text in which what differs from run to run is equal.

    That is ids, and the order of keys that steps running side by side filled in.
    """
    if isinstance(value, dict):
        parts = sorted(f"{key!r}: {plain(item)}" for key, item in value.items())
        return "{" + ", ".join(parts) + "}"
    return re.sub(r"0x[0-9a-f]+", "0x", _UUID.sub("<id>", repr(value)))
