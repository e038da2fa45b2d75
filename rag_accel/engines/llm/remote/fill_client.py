"""JSON over HTTP to a server that is filled, from any thread."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import IO, Any

from rag_accel.engines.http.errors import ErrorWriter, Secret, check_base_url
from rag_accel.errors import RemoteEngineError

_ERROR_BYTES = 64 * 1024


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows nothing: prompts and keys are for the server that was named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class FillClient:
    """A client of one server of vLLM's.

    Args:
        base_url: such as ``http://localhost:8000/v1``.
        api_key: sent as a bearer token; never shown.
        timeout_s: of each silence of the server.
        max_response_bytes: longest answer accepted.

    Raises:
        ConfigError: the URL or the key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        timeout_s: float,
        max_response_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self.base_url = check_base_url(base_url)
        self._secret = Secret(api_key) if api_key else None
        self._timeout_s, self._most = timeout_s, max_response_bytes
        self._opener = urllib.request.build_opener(_NoRedirects)

    @property
    def root(self) -> str:
        """Return the URL below which paths stand that OpenAI's servers lack."""
        return self.base_url.removesuffix("/v1")

    def errors(self, url: str) -> ErrorWriter:
        """Return the maker of a URL's errors."""
        return ErrorWriter(url, self._secret)

    def get(self, url: str) -> Any:
        """Return the JSON value of a URL; raises RemoteEngineError as ``post`` does."""
        return self._value(url, urllib.request.Request(url))

    def post(self, url: str, body: dict[str, Any]) -> Any:
        """Return the JSON value that answers a body.

        Raises:
            RemoteEngineError: the server refuses it, does not answer, or not with JSON.
        """
        sent = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._value(url, urllib.request.Request(url, sent, headers, method="POST"))

    def _value(self, url: str, request: urllib.request.Request) -> Any:
        outcome = self._outcome(url, request)
        if isinstance(outcome, RemoteEngineError):
            raise outcome  # only here, where it gets no context
        return outcome

    def _outcome(self, url: str, request: urllib.request.Request) -> Any:
        errors = self.errors(url)
        if self._secret is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._secret.reveal()}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                body = self._read(answer, self._most + 1)
        except urllib.error.HTTPError as error:
            with error:
                return errors.status(error.code, self._read(error, _ERROR_BYTES))
        except (OSError, ValueError) as error:
            hint = "check that the server runs and is reached from here"
            return errors.fault("no answer of the server", f"{type(error).__name__}: {error}", hint)
        if len(body) > self._most:
            return errors.fault("the answer is too long", f"> {self._most} bytes", "check the URL")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            text = body[:_ERROR_BYTES].decode("utf-8", "replace")
            return errors.fault("the answer is no JSON", text, "check base_url")

    def _read(self, answer: IO[bytes], most: int) -> bytes:
        return answer.read(most)
