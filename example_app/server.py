"""The shop behind a real WSGI server, for as long as the demo takes."""

from __future__ import annotations

import collections.abc as c
import contextlib
import http.client
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile

import sqlalchemy as sa

from .player import Receiver

WORKERS = 2
THREADS = 10

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_START_TIMEOUT = 10
_STOP_TIMEOUT = 4


class DemoError(Exception):
    """The shop could not be served. The message says why."""


class Server:
    """A shop with a folder, a database and secrets of its own.

    :param folder: new and empty.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.log = folder / "gunicorn.log"
        self._config = folder / "gunicorn.conf.py"
        self._secrets = (f"whsec_{secrets.token_hex(16)}", f"whsec_{secrets.token_hex(16)}")
        self._database = f"sqlite:///{folder / 'shop.sqlite3'}"

        # The settings of the person who runs the demo are for another app.
        self._environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("FLASK_", "GUNICORN_", "EXAMPLE_"))
        }
        self._environment["FLASK_SQLALCHEMY_DATABASE_URI"] = self._database
        self._environment["FLASK_SANGHO_WEBHOOK_SECRET"] = json.dumps(self._secrets)

    def command(self, *arguments: str) -> str:
        """Run ``flask`` for the shop.

        :return: what it printed.
        :raises DemoError: if it failed.
        """
        done = subprocess.run(
            [sys.executable, "-m", "flask", "--app", "example_app", *arguments],
            cwd=_ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

        if done.returncode != 0:
            raise DemoError(f"'flask {' '.join(arguments)}' failed:\n{done.stderr}")

        return done.stdout

    @contextlib.contextmanager
    def serve(self) -> c.Iterator[Receiver]:
        """Start gunicorn on a free port, wait until it answers, and stop it in the end.

        :raises DemoError: if it does not answer.
        """
        with contextlib.ExitStack() as stack:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                port = listener.getsockname()[1]
                process = self._start(listener)
                stack.callback(_stop, process)

            # Only gunicorn holds the socket now: if it ends, the connection does.
            self._wait(port)
            database = sa.create_engine(self._database, poolclass=sa.NullPool)
            yield Receiver(port, database, self._secrets, self.command)

    def _start(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        settings = {
            "bind": f"fd://{listener.fileno()}",
            "workers": WORKERS,
            "worker_class": "gthread",
            "threads": THREADS,
            "graceful_timeout": 2,
            # Recent versions leave a socket in the home directory otherwise.
            "control_socket_disable": True,
        }
        self._config.write_text("".join(f"{key} = {settings[key]!r}\n" for key in settings))

        with self.log.open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "gunicorn", "--config", str(self._config)),
                    "example_app:create_app()",
                ],
                cwd=_ROOT,
                env=self._environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_TIMEOUT)

        try:
            connection.request("GET", "/")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"gunicorn does not answer:\n{self.log_tail()}") from error
        finally:
            connection.close()

        if status != 200:
            raise DemoError(f"The shop answers {status}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        """The end of what gunicorn has logged."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()

    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def new_server() -> c.Iterator[Server]:
    """A server in a temporary folder, which is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="sangho-demo-") as folder:
        yield Server(pathlib.Path(folder))
