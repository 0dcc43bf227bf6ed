"""Just enough of an HTTP client to send many deliveries, and to break them off."""

from __future__ import annotations

import re
import socket
import time
import typing as t

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

Cut = t.Literal["", "request", "reply", "slow"]
"""Send half and go; send everything and go; send in two halves."""


class Answer(t.NamedTuple):
    status: int
    body: bytes
    head: bytes

    def has(self, header: bytes) -> bool:
        return b"\r\n" + header.lower() + b":" in self.head.lower()


class NoAnswer(Exception):
    """The connection broke, or nothing came in time."""


class Connection:
    """Kept open from one request to the next."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(self, head: str, body: bytes = b"", *, timeout: float, cut: Cut = "") -> Answer:
        """Send a request and wait for its answer.

        :param head: method, path and headers, without ``Host`` and ``Content-Length``.
        :raises NoAnswer: whatever the reason.
        """
        head = f"{head}Host: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body

        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            self._socket.settimeout(timeout)
            self._send(self._socket, data, cut)
            answer = self._receive(self._socket)
        except OSError as error:
            self.close()
            raise NoAnswer(type(error).__name__) from error
        except NoAnswer:
            self.close()
            raise

        if b"connection: close" in answer.head.lower():
            self.close()

        return answer

    def _send(self, connection: socket.socket, data: bytes, cut: Cut) -> None:
        half = len(data) - 40

        if cut == "request":
            connection.sendall(data[:half])
            raise NoAnswer("cut")
        elif cut == "reply":
            connection.sendall(data)
            raise NoAnswer("cut")
        elif cut == "slow":
            connection.sendall(data[:half])
            time.sleep(0.05)
            connection.sendall(data[half:])
        else:
            connection.sendall(data)

    def _receive(self, connection: socket.socket) -> Answer:
        data = b""

        while b"\r\n\r\n" not in data:
            data += self._more(connection)

        head, _, body = data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        length = int(found[1]) if found else 0

        while len(body) < length:
            body += self._more(connection)

        return Answer(int(head[9:12]), body, head)

    def _more(self, connection: socket.socket) -> bytes:
        data = connection.recv(65536)

        if not data:
            raise NoAnswer("closed")

        return data
