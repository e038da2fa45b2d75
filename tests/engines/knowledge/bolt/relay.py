"""A connection to a server that a test can cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """A port of the loopback interface whose connections lead to another until they are cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def uri(self) -> str:
        """Return where a driver reaches the server."""
        return f"bolt://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """End all connections and take no more."""
        # Unlike closing, shutting down wakes the thread that waits in the socket.
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._sockets):
            one.close()

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [caller, server]
                self._start(self._pump, caller, server)
                self._start(self._pump, server, caller)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
