"""Sinks of trace events: memory, and a file of JSON lines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from rag_accel.errors import ConfigError
from rag_accel.telemetry.events import TraceEvent, to_record

OWNER_ONLY = 0o600


class Sink(Protocol):
    """A receiver of events, called from any thread that emits them: it has to be quick.

    What a sink raises never reaches the program; the tracer counts it.
    """

    def write(self, event: TraceEvent) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """Flush and free the sink; called once."""
        ...


class MemorySink:
    """A list of every event. Memory grows until ``clear``: meant for tests and profiles."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: list[TraceEvent] = []

    def write(self, event: TraceEvent) -> None:
        """Append the event."""
        self._events.append(event)

    def close(self) -> None:
        """Keep the events: they are still read after the tracer is closed."""

    def clear(self) -> None:
        """Forget all events."""
        self._events.clear()

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        """Return the events in the order of arrival."""
        return tuple(self._events)


class JsonLinesSink:
    """A file to which each event is appended as one line of JSON (``events.to_record``).

    The file is created readable by its owner only and written through a buffer: call ``flush`` to
    see the newest lines.

    Raises:
        ConfigError: if the file cannot be opened.
    """

    __slots__ = ("_file", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # A buffered binary file is safe to share between threads; a text file is not.
            self._file = open(self.path, "ab", opener=_open_owner_only)  # noqa: SIM115
        except OSError as exc:
            raise ConfigError(
                "the trace file cannot be opened",
                where=str(self.path),
                found=type(exc).__name__,
                valid="a writable path in an existing directory",
            ) from exc

    def write(self, event: TraceEvent) -> None:
        """Append one line."""
        line = json.dumps(to_record(event), separators=(",", ":"))
        self._file.write(line.encode() + b"\n")

    def flush(self) -> None:
        """Hand the buffered lines to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def _open_owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, OWNER_ONLY)
