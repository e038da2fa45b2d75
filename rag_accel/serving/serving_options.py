"""The options of a server, with their ranges."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rag_accel.accelerator import PREPARE_S
from rag_accel.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]*)?")


def host_name(header: str) -> str | None:
    """Return the name in a ``Host`` header, without its port; None if it has none."""
    found = _HOST.fullmatch(header.strip().lower())
    return found and found[1]


def _bounded(default: float | None, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The address and the bounds of a server; times in seconds.

    Args:
        host: the address; another than loopback needs ``token_file``.
        port: 0 for any that is free.
        allow_hosts: names that clients may call the server by, besides those of loopback; with
            ``token_file`` and none of these, by any name.
        token_file: bearer tokens, see ``TokenFile``.
        namespace: the tenant of requests whose token names none.
        max_requests: requests that may be under way at once.
        max_requests_per_tenant: of these, those of one tenant; None leaves them to whoever comes.
        max_connections: open connections; beyond, one that has sent no whole request is closed.
        max_body_bytes: the largest body of a request.
        deadline_s: the longest that a request may take, whatever it asks for; None for no bound.
        head_timeout_s: within which a connection sends the head of a request.
        body_timeout_s: within which the body follows its head.
        write_timeout_s: within which a client reads what it was sent.
        prepare_timeout_s: how long models may be prepared before the first request, besides their
            loading; 0 to prepare none.
        drain_s: how long requests under way may take once the server stops.

    Raises:
        ConfigError: a value outside its range, or an open address without tokens.
    """

    host: str = "127.0.0.1"
    port: int = _bounded(8000, 0, 65_535)
    allow_hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    namespace: str = ""
    max_requests: int = _bounded(256, 1, 1_000_000)
    max_requests_per_tenant: int | None = _bounded(None, 1, 1_000_000)
    max_connections: int = _bounded(1024, 1, 1_000_000)
    max_body_bytes: int = _bounded(1 << 20, 1, 1 << 30)
    deadline_s: float | None = _bounded(None, 0.001, 86_400)
    head_timeout_s: float = _bounded(10.0, 0.01, 3600)
    body_timeout_s: float = _bounded(30.0, 0.01, 3600)
    write_timeout_s: float = _bounded(30.0, 0.01, 3600)
    prepare_timeout_s: float = _bounded(PREPARE_S, 0, 3600)
    drain_s: float = _bounded(30.0, 0, 3600)

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, bounds = getattr(self, spec.name), spec.metadata
            if not bounds or (value is None and spec.default is None):
                continue
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if not is_number or not bounds["low"] <= value <= bounds["high"]:
                raise ConfigError(
                    "option out of range",
                    where=f"--{spec.name.replace('_', '-')}",
                    found=repr(value),
                    valid=f"from {bounds['low']} to {bounds['high']}",
                )
        for name in self.allow_hosts:
            if host_name(name) != name.lower():
                raise ConfigError(
                    "this names no host",
                    where="--allow-host",
                    found=repr(name),
                    valid="a name or an address without a port, such as rag.example.org or [::1]",
                )
        if self.host not in LOOPBACK and self.token_file is None:
            raise ConfigError(
                "an address that other machines reach needs tokens",
                where="--host",
                found=self.host,
                valid=", ".join(LOOPBACK),
                hint="give --token-file",
            )
