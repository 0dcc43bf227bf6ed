"""A TCP proxy that breaks connections at the worst moment."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import threading
import typing as t
import urllib.parse

Loss = t.Literal["request", "reply"]


@dataclasses.dataclass(eq=False)
class _Side:
    """One end of a connection. Without a peer nobody answers."""

    sock: socket.socket
    peer: _Side | None = None
    is_client: bool = False
    loses_reply: bool = False


class Proxy:
    """Forwards to the server of a URL. Enter it to start it, and set ``silent`` to let it accept
    everything and answer nothing.
    """

    def __init__(self, url: str) -> None:
        self._target = urllib.parse.urlsplit(url)
        self._loss: tuple[Loss, bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._sides: set[_Side] = set()
        self._listener: socket.socket | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.port = 0
        self.silent = False

    @property
    def url(self) -> str:
        """The URL of the server, by way of the proxy."""
        user, at, _ = self._target.netloc.rpartition("@")
        return self._target._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    def accept(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ)

    def refuse_new(self) -> None:
        """Refuse new connections."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None

    def refuse(self) -> None:
        """Break all connections and refuse new ones."""
        with self._lock:
            self.refuse_new()

            for side in list(self._sides):
                self._close(side)

    def lose(self, loss: Loss, command: bytes) -> None:
        """Break the connection that carries the next request with these bytes: before the server
        has seen it, or with the reply on its way back.
        """
        self._loss = loss, command

    @property
    def connections(self) -> int:
        """How many there are."""
        return sum(side.is_client for side in list(self._sides))

    @property
    def has_lost(self) -> bool:
        return self._loss is None

    def __enter__(self) -> t.Self:
        self.accept()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.refuse()
        self._selector.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                for key, _ in self._selector.select(0):
                    if key.fileobj is self._listener:
                        self._connect()
                    elif key.data in self._sides:
                        self._forward(key.data)

            self._selector.select(0.02)

    def _connect(self) -> None:
        assert self._listener is not None
        client = _Side(self._listener.accept()[0], is_client=True)
        self._open(client)

        if not self.silent:
            address = (self._target.hostname or "127.0.0.1", self._target.port or 0)

            try:
                server = _Side(socket.create_connection(address), client)
            except OSError:  # it is down
                self._close(client)
                return

            client.peer = server
            self._open(server)

    def _open(self, side: _Side) -> None:
        self._sides.add(side)
        self._selector.register(side.sock, selectors.EVENT_READ, side)

    def _forward(self, side: _Side) -> None:
        try:
            data = side.sock.recv(1 << 20)
        except OSError:
            data = b""

        if not data or side.loses_reply or (side.is_client and self._loses(side, data)):
            self._close(side)
        elif side.peer is not None and not self.silent:
            with contextlib.suppress(OSError):
                side.peer.sock.sendall(data if side.is_client else self.reply(data))

    def reply(self, data: bytes) -> bytes:
        """What a client gets in place of these bytes."""
        return data

    def _loses(self, client: _Side, data: bytes) -> bool:
        """Whether this is the request to lose; if it is its reply, remember that."""
        if self._loss is None or self._loss[1] not in data:
            return False

        loss, _ = self._loss
        self._loss = None

        if loss == "reply" and client.peer is not None:
            client.peer.loses_reply = True

        return loss == "request"

    def _close(self, side: _Side) -> None:
        for one in (side, side.peer):
            if one in self._sides:
                self._sides.remove(one)
                self._selector.unregister(one.sock)
                one.sock.close()
