"""A shop whose handlers run in Celery workers, and workers to run them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import typing as t
import uuid

import celery
from flask import Flask

from flask_sangho_webhooks import Discard, Event, event_failed, RedisGuard, RetryLater
from flask_sangho_webhooks.celery import CeleryQueue

from .support import Shop

ROOT = pathlib.Path(__file__).parent.parent
VARIABLE = "SANGHO_TEST_SETTINGS"
UNACKED = ("unacked_key", "unacked_index_key", "unacked_mutex_key")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that a worker needs to know, in the environment of its process."""

    database_url: str
    broker_url: str
    folder: str
    """Where runs are noted, outside of any transaction."""
    name: str = dataclasses.field(default_factory=lambda: f"sangho-test-{uuid.uuid4().hex}")
    """Of the Celery queue, and of all keys in Redis."""
    visibility_timeout: float = 3600
    """Seconds after which Redis, as a broker, gives a message to another worker."""
    guard_url: str | None = None
    """Of a Redis for the guard, in place of the database."""

    def dump(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls) -> Settings:
        return cls(**json.loads(os.environ[VARIABLE]))


class CeleryShop(Shop):
    """Its one handler does what the event's object says, and notes every run in a file."""

    worker: Worker

    def __init__(self, settings: Settings, **options: t.Any) -> None:
        guard = None

        if settings.guard_url is not None:
            guard = RedisGuard(url=settings.guard_url, prefix=settings.name, lease=2)

        super().__init__(
            settings.database_url,
            guard=guard,
            queue=CeleryQueue(),
            config={"SANGHO_WEBHOOK_RETRY_AFTER": 1},
            **options,
        )
        self.settings = settings
        self.folder = pathlib.Path(settings.folder)
        self.celery = make_celery(self.app, settings)
        self.webhooks.on("*")(self._handle)
        event_failed.connect(self._note_failure, self.app)

    def _handle(self, event: Event) -> None:
        order = event.object
        attempt = len(self.runs(event.id))
        self._note("runs", event.id, time.time())
        self.grant(f"{event.id} {uuid.uuid4().hex}")
        time.sleep(order.get("seconds", 0))

        if attempt == 0 and order.get("hangs"):
            time.sleep(60)

        if order.get("discards"):
            raise Discard

        if attempt < order.get("fails", 0):
            raise RuntimeError

        if attempt == 0 and "retry_later" in order:
            raise RetryLater(order["retry_later"])

        if attempt == 0 and order.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _note_failure(self, app: Flask, *, event: Event, final: bool = False, **_: object) -> None:
        self._note("failures", event.id, final)

    def _note(self, name: str, *values: object) -> None:
        with (self.folder / name).open("a") as file:
            file.write(" ".join(map(str, values)) + "\n")

    def notes(self, name: str, event_id: str) -> list[str]:
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == event_id]

    def runs(self, event_id: str) -> list[float]:
        """When the handler was called for an event, whatever became of it."""
        return [float(note) for note in self.notes("runs", event_id)]

    def failures(self, event_id: str) -> list[bool]:
        """The signals that the event failed; true for a final one."""
        return [note == "True" for note in self.notes("failures", event_id)]

    def effects(self, event_id: str) -> int:
        """How many runs of an event were committed."""
        return sum(note.split()[0] == event_id for note in self.grants())

    def wait_for(self, *event_ids: str, seconds: float = 30) -> None:
        """Wait until events are recorded as processed."""
        wait(lambda: set(event_ids) <= set(self.recorded()), seconds)

    def __enter__(self) -> t.Self:
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        t.cast(CeleryQueue, self.webhooks.queue).close()
        super().__exit__(*exception)


def wait(condition: t.Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds

    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def make_celery(app: Flask, settings: Settings) -> celery.Celery:
    """As Flask's documentation has it, except that it does not become the default app."""

    class FlaskTask(celery.Task):  # type: ignore[misc]
        def __call__(self, *args: t.Any, **kwargs: t.Any) -> t.Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = celery.Celery(app.name, task_cls=FlaskTask, set_as_current=False)
    celery_app.conf.update(
        broker_url=settings.broker_url,
        broker_connection_retry_on_startup=True,
        task_default_queue=settings.name,
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=1,
    )

    if settings.broker_url.startswith("redis"):
        celery_app.conf.broker_transport_options = {
            **{key: f"{settings.name}-{key}" for key in UNACKED},
            "visibility_timeout": settings.visibility_timeout,
            "unacked_restore_interval": 0.2,
        }

    app.extensions["celery"] = celery_app
    return celery_app


class Worker:
    """A Celery worker with processes of its own. Enter it to start, leave it to stop them all."""

    def __init__(self, settings: Settings, *options: str, concurrency: int = 2) -> None:
        self.settings = settings
        self.log = pathlib.Path(settings.folder) / f"worker-{uuid.uuid4().hex[:8]}.log"
        self.command = [
            *(sys.executable, "-m", "celery", "--app=tests.celery_worker", "worker"),
            *(f"--concurrency={concurrency}", f"--hostname={self.log.stem}@localhost"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"),
            *options,
        ]

    def __enter__(self) -> Worker:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, VARIABLE: self.settings.dump()},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        try:
            wait(lambda: self.process.poll() is not None or " ready." in self.log.read_text())
            assert self.process.poll() is None, self.log.read_text()
        except BaseException:
            self.kill()
            raise

        return self

    def kill(self) -> None:
        """End the worker and its children without notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

        self.process.wait()
        t.cast(t.IO[bytes], self.process.stdin).close()

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.kill()
