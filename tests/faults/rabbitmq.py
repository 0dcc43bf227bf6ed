"""RabbitMQ, to break: a node of the run's own where it is installed, or else a foreign one."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import typing as t
import urllib.parse
import uuid

from ..proxy import Proxy
from .brokers import Broker, PAUSE
from .databases import Unavailable
from .ports import lasting_port

_SCRIPTS = pathlib.Path("/usr/lib/rabbitmq/bin")
"""Those that want to be no certain user."""
_START_TIMEOUT = 90


def rabbitmq(folder: pathlib.Path) -> Broker:
    """:param folder: for its data."""
    if (_SCRIPTS / "rabbitmq-server").exists():
        return OwnRabbitMQ(folder)

    return ForeignRabbitMQ(folder)


class OwnRabbitMQ(Broker):
    """A node with a data folder, ports and a cookie of its own."""

    how = "an own RabbitMQ, stopped or killed, and started; connections closed by rabbitmqctl"

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder / "rabbitmq"
        self._port = lasting_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}//"
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RABBITMQ_")},
            "HOME": str(self._folder),
            "RABBITMQ_NODENAME": f"faults-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(lasting_port()),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
        }

    def __enter__(self) -> t.Self:
        self._folder.mkdir()
        (self._folder / "plugins").write_text("[].\n")
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(crash=True)

    def _start(self) -> None:
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [_SCRIPTS / "rabbitmq-server"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        end = time.monotonic() + _START_TIMEOUT

        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self._stop(crash=True)
                    raise RuntimeError(f"RabbitMQ does not start. See {self._folder}") from None

            time.sleep(0.1)

    def _stop(self, *, crash: bool) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL if crash else signal.SIGTERM)

        self._process.wait(_START_TIMEOUT)

    def restart(self, crash: bool) -> None:
        self._stop(crash=crash)
        time.sleep(PAUSE)
        self._start()

    def kill_connections(self) -> int:
        connections = self._control("list_connections", "--no-table-headers", "pid").split()
        self._control("close_all_connections", "faults")
        return len(connections)

    def _control(self, *arguments: str) -> str:
        node = self._environment["RABBITMQ_NODENAME"]
        done = subprocess.run(
            [_SCRIPTS / "rabbitmqctl", "--quiet", "--node", node, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout


class ForeignRabbitMQ(Broker):
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
        places = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
        self._control = shutil.which("rabbitmqctl", path=places)

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
        time.sleep(PAUSE)
        self._proxy.accept()

    def kill_connections(self) -> int:
        count = self._proxy.connections

        if self._control is None:
            self._proxy.refuse()
            self._proxy.accept()
        elif not self._run("close_all_connections", "--vhost", self._name, "faults"):
            return 0

        return count
