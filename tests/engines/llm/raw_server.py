"""Answer HTTP requests with whatever bytes a test likes, whenever it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

HEAD = b"HTTP/1.1 200 OK\r\n"
CLOSED_BY_END = HEAD + b"connection: close\r\n\r\n"
"""Begin an answer that ends with its connection."""

Talk = Callable[["Line"], None]


class Line:
    """Be the server's end of one connection, after its request was read."""

    def __init__(self, raw: socket.socket, stopped: threading.Event) -> None:
        self._raw = raw
        self._stopped = stopped

    def send(self, data: bytes) -> None:
        """Send all of it; ConnectionError if the client has left."""
        self._raw.sendall(data)

    def drip(self, data: bytes) -> None:
        """Send it again and again until the client leaves."""
        while not self._stopped.wait(0.005):
            self.send(data)

    def reset(self) -> None:
        """Break the connection with a reset."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


class RawServer:
    """Let ``talk`` answer each request on a connection of its own.

    Attributes:
        num_calls: requests until now.
        head: request line and headers of the last one.
        left: set once a client has left before its answer was over.
    """

    def __init__(self, talk: Talk) -> None:
        self.num_calls = 0
        self.head = b""
        self.left = threading.Event()
        self._talk = talk
        self._stopped = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def base_url(self) -> str:
        """Return what an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def __enter__(self) -> RawServer:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for raw in (self._listening, *self._open):
            with suppress(OSError):
                raw.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _read_request(self, raw: socket.socket) -> bool:
        """Read one request; false if the client has left without one."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (chunk := raw.recv(65536)):
                return False
            data += chunk
        self.head, _, body = data.partition(b"\r\n\r\n")
        lines = self.head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        while len(body) < length:
            if not (chunk := raw.recv(65536)):
                return False
            body += chunk
        return True

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listening.accept()
                self._open.add(raw)
                thread = threading.Thread(target=self._serve, args=(raw,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, raw: socket.socket) -> None:
        with raw:
            try:
                if self._read_request(raw):
                    self.num_calls += 1
                    self._talk(Line(raw, self._stopped))
            except ConnectionError:
                self.left.set()
            self._open.discard(raw)
