"""Errors of servers, which never show the API key."""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import urlsplit

from rag_accel.errors import ConfigError, RemoteEngineError

_EXCERPT = 200
_HARMLESS = 3  # so many characters, such as "sk-", give nothing away
_HINTS = {
    400: "check the model name, the options and the length of the prompt",
    401: "check api_key",
    403: "check what api_key may use",
    404: "check base_url, which usually ends in /v1, and the model name",
    413: "shorten the prompt",
    422: "check the options",
    429: "lower RemoteOptions.concurrency or raise max_retries",
}


class Secret:
    """An API key that only ``reveal`` shows, and that cannot be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(
                "bad api_key",
                where="api_key",
                found="characters that no HTTP header can carry (not shown)",
                valid="printable ASCII without blanks",
            )
        self._text = text

    def reveal(self) -> str:
        return self._text

    def redact(self, text: str) -> str:
        """Return ``text`` with the key blotted out, and a beginning of it where the text ends."""
        shown = text.replace(self._text, "***") if self._text else text
        for length in range(len(self._text) - 1, _HARMLESS, -1):
            if shown.endswith(self._text[:length]):
                return shown[:-length] + "***"
        return shown

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")


def check_base_url(base_url: str) -> str:
    """Return ``base_url`` without a final slash; raises ConfigError unless it is a plain HTTP URL.

    Credentials and queries are refused: HTTP clients write whole URLs into logs.
    """
    parts = urlsplit(base_url)
    problems = [
        ("a scheme other than http and https", parts.scheme not in ("http", "https")),
        ("no host", not parts.hostname),
        ("credentials (not shown)", "@" in parts.netloc),
        ("a query or fragment (not shown)", bool(parts.query or parts.fragment)),
    ]
    found = [name for name, is_there in problems if is_there]
    if found:
        raise ConfigError(
            "bad base_url",
            where="base_url",
            found=", ".join(found),
            valid="http[s]://host[:port]/path",
            hint="pass the key as api_key",
        )
    return base_url.rstrip("/")


class ErrorWriter:
    """A maker of the errors of one endpoint.

    They carry no cause: the traceback of an HTTP client's exception holds the request's headers.
    """

    def __init__(self, endpoint: str, secret: Secret | None) -> None:
        self._endpoint = endpoint
        self._secret = secret

    def status(self, status: int, body: bytes) -> RemoteEngineError:
        """Describe an answer with an error status."""
        hint = _HINTS.get(status)
        if hint is None:
            hint = "look at the server's log" if status >= 500 else "check base_url"
        return RemoteEngineError(
            "the server refused the request",
            status=status,
            where=self._endpoint,
            found=f"HTTP {status}: {self.excerpt(body.decode('utf-8', 'replace'))}",
            hint=hint,
        )

    def fault(self, what: str, text: str, hint: str) -> RemoteEngineError:
        """Describe an answer that makes no sense or a connection that failed."""
        return RemoteEngineError(what, where=self._endpoint, found=self.excerpt(text), hint=hint)

    def excerpt(self, text: str) -> str:
        """Return the beginning of ``text`` on one line, without the key."""
        shown = text if self._secret is None else self._secret.redact(text)
        line = "".join(mark if mark.isprintable() else " " for mark in shown[: 2 * _EXCERPT])
        line = " ".join(line.split())
        return line if len(line) <= _EXCERPT else line[:_EXCERPT] + "..."
