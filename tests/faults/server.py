"""gunicorn with several workers, to kill, reload and restart."""

from __future__ import annotations

import collections.abc as c
import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

from .journal import Journal
from .settings import ROOT, Settings

_STOP_TIMEOUT = 20


def children(pid: int) -> list[int]:
    """The processes that a process has started, without those that have ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []

    return [child for child in map(int, text.split()) if _is_alive(child)]


def _is_alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False

    return state not in "ZX"


def kill_one(parent: int, journal: Journal, rng: random.Random, point: str) -> bool:
    """SIGKILL a random child of a process.

    :return: whether there was one.
    """
    with contextlib.suppress(IndexError, ProcessLookupError):
        pid = rng.choice(children(parent))
        # First: a process that has seen its end cannot note it any more.
        journal.note("kills", point=point, killed=pid)
        os.kill(pid, signal.SIGKILL)
        return True

    return False


class Server:
    """gunicorn on a loopback port that it keeps when it is stopped and started.

    :param folder: for its log and its configuration.
    """

    def __init__(
        self, settings: Settings, folder: pathlib.Path, *, workers: int = 4, threads: int = 4
    ) -> None:
        self.settings = settings
        self._config = folder / "gunicorn.conf.py"
        self._log = folder / "gunicorn.log"
        # Held here: who comes while the server is down waits in the queue of the socket.
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._old: list[subprocess.Popen[bytes]] = []
        options = {
            "bind": f"fd://{self._listener.fileno()}",
            "workers": workers,
            "worker_class": "gthread",
            "threads": threads,
            "preload_app": True,
            "graceful_timeout": 3,
            "keepalive": 2,
            "control_socket_disable": True,
            # Not on a disk: a busy one would make workers look dead.
            "worker_tmp_dir": "/dev/shm" if os.path.isdir("/dev/shm") else None,
        }
        self._config.write_text("".join(f"{key} = {options[key]!r}\n" for key in options))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gunicorn", "--config", str(self._config)),
                    "tests.faults.app:create_app()",
                ],
                cwd=ROOT,
                env=self.settings.environment(),
                pass_fds=[self._listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait(self, seconds: float = 30) -> None:
        """Wait until it has workers."""
        end = time.monotonic() + seconds

        while not children(self.pid):
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"gunicorn has ended:\n{self.log_tail()}")

            if time.monotonic() > end:
                raise RuntimeError(f"gunicorn has no workers:\n{self.log_tail()}")

            time.sleep(0.02)

    def stop(self) -> None:
        """SIGTERM: it finishes its requests."""
        if self._process is not None:
            self._process.terminate()
            self._old.append(self._process)
            self._process = None

        while self._old:
            process = self._old.pop()

            try:
                process.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise RuntimeError(f"gunicorn does not end:\n{self.log_tail()}") from None

    def restart(self, settings: Settings) -> None:
        """Another one with other settings takes over, as in a deployment: both have the socket."""
        old = self._process
        self.settings = settings
        self.start()
        self.wait()

        if old is not None:
            old.terminate()
            self._old.append(old)

    def reload(self) -> None:
        """Let new workers take over."""
        os.kill(self.pid, signal.SIGHUP)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @contextlib.contextmanager
    def serve(self) -> c.Iterator[Server]:
        try:
            self.start()
            self.wait()
            yield self
        finally:
            self.stop()
            self._listener.close()
