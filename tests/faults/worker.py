"""What a Celery worker loads, and how one is started, killed and started again."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import typing as t

from .settings import ROOT, Settings, VARIABLE

_START_TIMEOUT = 60


class Worker:
    """A Celery worker with two processes of its own.

    :param folder: for its log.
    """

    def __init__(self, settings: Settings, folder: pathlib.Path, number: int) -> None:
        self.settings = settings
        self.name = f"faults-{number}"
        self.log = folder / f"celery-{number}.log"

    def __enter__(self) -> Worker:
        self.start()
        return self

    def start(self) -> None:
        with self.log.open("ab") as log:
            seen = log.tell()
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "--app=tests.faults.worker:app", "worker"),
                    *("--concurrency=2", f"--hostname={self.name}@localhost"),
                    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                    "--loglevel=INFO",
                ],
                cwd=ROOT,
                env=self.settings.environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        end = time.monotonic() + _START_TIMEOUT

        while b" ready." not in self.log.read_bytes()[seen:]:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"The Celery worker does not start. See {self.log}")

            time.sleep(0.05)

    def kill(self) -> None:
        """End the worker and its children without notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

        self.process.wait()
        t.cast(t.IO[bytes], self.process.stdin).close()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _end_with_the_run() -> None:
    """The run holds the other end of this pipe, and never writes."""
    # Not sys.stdin, whose lock the processes of the pool would inherit.
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if VARIABLE in os.environ:
    from .app import create_app

    app = create_app().extensions["celery"]
    threading.Thread(target=_end_with_the_run, daemon=True).start()
