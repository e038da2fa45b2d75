"""The servers that this process has asked what they are, each once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from rag_accel.system.locks import ForkedAnew

#: Most seconds of the question, and of a call that waits for its answer.
PROBE_S, PROBE_WAIT_S = 5.0, 1.0
#: Answers without a word of texts after which a server is sent none.
MOST_SILENT = 4
_SPEAKS = -1
#: A text of so many characters has tokens enough for any connector.
_KEPT_CHARACTERS = 64
#: The most servers that are known; calls of further ones are sent as they are.
MOST_SERVERS = 256
#: Their models are of nobody whose server it is; they are never asked.
_OTHERS = (".openai.com", ".azure.com", ".anthropic.com", ".googleapis.com", ".mistral.ai")

#: Returns the JSON value of ``<base_url>/models``.
GetModels = Callable[[], Any]


class ModelServer(ForkedAnew):
    """A server, and whether it is one of vLLM's, which reads ``kv_transfer_params``.

    Args:
        base_url: such as ``http://localhost:8000/v1``.
    """

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._is_vllm: bool | None = None
        self._silent = 0
        #: whether a request may carry a priority; a server started without them refuses it
        self.takes_priority = True
        #: when it last refused a request (HTTP 429 or 503), on a monotonic clock, in seconds
        self.refused_at = -math.inf
        if is_provider(base_url):
            self._is_vllm = False
        super().__init__()

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._is_asked = False
        self._asked_at = 0.0
        if self._is_vllm is not None:
            self._known.set()

    @property
    def is_known(self) -> bool:
        """Tell whether it has answered, or refused to."""
        return self._known.is_set()

    @property
    def is_vllm(self) -> bool:
        """Tell whether its models are owned by vLLM; False until that is known."""
        return self._is_vllm is True

    @property
    def takes_texts(self) -> bool:
        """Tell whether a request may name its texts."""
        return self.is_vllm and self._silent < MOST_SILENT

    def ask(self, get_models: GetModels) -> bool:
        """Ask it in a thread of its own, unless it was asked; return whether that is known."""
        if self.begins():
            threading.Thread(
                target=self._probe, args=(get_models,), name="rag-accel-probe", daemon=True
            ).start()
        return self.is_known

    def begins(self) -> bool:
        """Tell whether the caller is the one to ask it; ``note_models`` must follow then."""
        with self._lock:
            is_first = not self._is_asked and not self.is_known
            if is_first:
                self._is_asked, self._asked_at = True, time.monotonic()
        return is_first

    def wait(self, most_s: float = PROBE_WAIT_S) -> None:
        """Wait until it is known, or so many seconds have gone since it was asked."""
        self._known.wait(max(0.0, self._asked_at + most_s - time.monotonic()))

    def note_models(self, models: Any) -> None:
        """Note the JSON value of its ``/models``; None for a refusal."""
        with self._lock:
            if self._is_vllm is None:
                self._is_vllm = _owned_by_vllm(models)
            self._known.set()

    def note_no_priority(self) -> None:
        """Note that it has refused a request for its priority."""
        self.takes_priority = False

    def note_answer(self, says_texts: bool, texts: Sequence[str]) -> None:
        """Note whether an answer to a request with texts said how they were computed.

        A server without our connector never does, but keeps prompts with other texts apart. One
        with it may say nothing of texts of a few tokens.
        """
        if says_texts:
            self._silent = _SPEAKS
        elif self._silent != _SPEAKS and max(map(len, texts)) >= _KEPT_CHARACTERS:
            self._silent += 1

    def _probe(self, get_models: GetModels) -> None:
        models: Any = None
        with suppress(Exception):  # whatever it is, the server is sent what it always was
            models = get_models()
        self.note_models(models)


class ModelServers:
    """The servers of a process by their base URLs."""

    def __init__(self) -> None:
        self._servers: dict[str, ModelServer] = {}

    def get(self, base_url: str) -> ModelServer | None:
        base_url = base_url.rstrip("/")
        found = self._servers.get(base_url)
        if found is None and len(self._servers) < MOST_SERVERS:
            found = self._servers.setdefault(base_url, ModelServer(base_url))
        return found

    def clear(self) -> None:
        """Forget them all."""
        self._servers.clear()


SERVERS = ModelServers()


def _owned_by_vllm(models: Any) -> bool:
    entries = models.get("data") if isinstance(models, Mapping) else None
    return isinstance(entries, list) and any(
        isinstance(entry, Mapping) and entry.get("owned_by") == "vllm" for entry in entries
    )


def is_provider(base_url: str) -> bool:
    """Tell whether a server is a provider's, which nobody can run."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return True
    return f".{host}".endswith(_OTHERS)
