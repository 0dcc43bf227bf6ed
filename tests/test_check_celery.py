"""``flask sangho check``: brokers and workers, each set up right and wrong."""

from __future__ import annotations

import collections.abc as c
import json
import os
import pathlib
import subprocess
import sys
import typing as t
import uuid

import celery
import pytest

from flask_sangho_webhooks.celery import CeleryQueue, PROCESS_EVENT

from .celery_support import wait
from .check_support import check, codes, finding, GOOD_SECRET, run_check
from .commands import flask, SHOP, write_app
from .support import Shop, TYPE

WORKER = """\
import celery

app = celery.Celery("worker", broker={broker!r})
app.conf.update(task_default_queue={queue!r}, control_exchange={queue!r} + "-control")
{more}
"""
IMPORT = "import flask_sangho_webhooks.celery"


class Setup:
    """A shop that hands events to Celery, on a queue of its own, and workers beside it."""

    def __init__(self, url: str, broker: str, folder: pathlib.Path) -> None:
        self.broker = broker
        self.folder = folder
        self.name = f"sangho-check-{uuid.uuid4().hex[:12]}"
        self.shop = Shop(
            url, queue=CeleryQueue(), config={"SANGHO_WEBHOOK_SECRET": GOOD_SECRET}
        ).__enter__()
        self.shop.webhooks.on(TYPE)(lambda event: None)
        self.celery = celery.Celery("shop", broker=broker, set_as_current=False)
        # Workers of others on the same broker are not asked.
        self.celery.conf.update(
            task_default_queue=self.name, control_exchange=f"{self.name}-control"
        )
        self.celery.flask_app = self.shop.app
        self.shop.app.extensions["celery"] = self.celery
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def app(self) -> t.Any:
        return self.shop.app

    def start_worker(self, more: str = IMPORT, *options: str) -> None:
        """:param more: lines of the worker's module."""
        source = WORKER.format(broker=self.broker, queue=self.name, more=more)
        (self.folder / "worker.py").write_text(source)
        log = self.folder / "worker.log"

        with log.open("wb") as output:
            self._workers.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "celery", "--app=worker", "worker"),
                        *("--pool=solo", "--without-gossip", "--without-mingle"),
                        *(f"--hostname={self.name}@localhost", "--loglevel=INFO", *options),
                    ],
                    cwd=self.folder,
                    env={**os.environ, "PYTHONWARNINGS": "ignore"},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

        wait(lambda: " ready." in log.read_text())

    def delete_queues(self) -> None:
        """What RabbitMQ, or Redis, would keep of them."""
        self.stop_workers()

        with self.celery.connection_for_write() as connection:
            for name in (self.name, f"{self.name}-own"):
                connection.default_channel.queue_delete(name)
                connection.default_channel.exchange_delete(name)

            for name in (f"{self.name}-control.pidbox", f"reply.{self.name}-control.pidbox"):
                connection.default_channel.exchange_delete(name)

    def stop_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def close(self) -> None:
        self.stop_workers()
        self.celery.close()
        self.shop.__exit__()


@pytest.fixture
def setup(sqlite_url: str, broker_kind_url: str, tmp_path: pathlib.Path) -> c.Iterator[Setup]:
    """On Valkey and RabbitMQ in turn."""
    setup = Setup(sqlite_url, broker_kind_url, tmp_path)
    yield setup
    setup.delete_queues()
    setup.close()


@pytest.fixture
def offline(sqlite_url: str, tmp_path: pathlib.Path) -> c.Iterator[Setup]:
    """Where there is no broker."""
    setup = Setup(sqlite_url, "amqp://guest:geheim@127.0.0.1:9//", tmp_path)
    yield setup
    setup.close()


def test_nothing_is_wrong(setup: Setup) -> None:
    setup.start_worker()

    assert check(setup.app) == []


def test_no_worker(setup: Setup) -> None:
    found = finding(setup.app, "celery-no-worker")

    assert found["level"] == "warning"
    assert run_check(setup.app).exit_code == 0


def test_worker_that_does_not_know_the_task(setup: Setup) -> None:
    setup.start_worker(more="")
    found = finding(setup.app, "celery-task")

    assert setup.name in found["message"]
    assert found["fix"].startswith("import flask_sangho_webhooks.celery")
    assert run_check(setup.app).exit_code == 1


def test_queue_that_no_worker_serves(setup: Setup) -> None:
    setup.start_worker(IMPORT, f"--queues={setup.name}-own")

    assert finding(setup.app, "celery-queue")["fix"] == (
        f"celery --app … worker --queues {setup.name}"
    )


def test_queue_that_the_app_has_named(setup: Setup) -> None:
    """Neither that of the worker nor where Celery would route the task."""
    setup.shop.webhooks.queue = CeleryQueue(queue=f"{setup.name}-own")
    setup.start_worker()

    assert codes(setup.app) == ["celery-queue"]


@pytest.mark.parametrize(
    "broker", ["amqp://guest:geheim@127.0.0.1:9//", "redis://:geheim@127.0.0.1:9/0"]
)
def test_unreachable_broker(sqlite_url: str, tmp_path: pathlib.Path, broker: str) -> None:
    setup = Setup(sqlite_url, broker, tmp_path)
    result = run_check(setup.app)

    assert codes(setup.app) == ["broker-unreachable"]
    assert result.exit_code == 1
    assert "geheim" not in result.output
    setup.close()


def test_celery_app_without_the_task(offline: Setup) -> None:
    offline.celery.tasks.unregister(PROCESS_EVENT)

    assert codes(offline.app) == ["celery-task", "broker-unreachable"]


def test_celery_app_without_a_flask_app(offline: Setup) -> None:
    offline.celery.flask_app = None

    assert codes(offline.app) == ["celery-no-context", "broker-unreachable"]
    assert finding(offline.app, "celery-no-context")["level"] == "error"


def test_no_celery_app(tmp_path: pathlib.Path) -> None:
    source = SHOP.replace("SanghoWebhooks(db)", "SanghoWebhooks(db, queue=CeleryQueue())").replace(
        "db = SQL",
        """from flask_sangho_webhooks.celery import CeleryQueue
db = SQL""",
    )
    done = flask(write_app(tmp_path, source), "sqlite:///shop.sqlite3", "sangho", "check", "--json")
    found = [f for f in json.loads(done.stdout)["findings"] if "celery" in f["code"]]

    assert [(f["code"], f["level"]) for f in found] == [("celery-no-app", "error")]
    assert "celery.Celery(" in found[0]["fix"]
    assert done.returncode == 1


def test_celery_app_whose_tasks_have_a_context_of_their_own(offline: Setup) -> None:
    class FlaskTask(celery.Task):  # type: ignore[misc]
        def __call__(self, *args: t.Any, **kwargs: t.Any) -> t.Any:
            with offline.app.app_context():
                return self.run(*args, **kwargs)

    offline.app.extensions["celery"] = celery.Celery(
        "shop", broker=offline.broker, set_as_current=False, task_cls=FlaskTask
    )

    assert codes(offline.app) == ["broker-unreachable"]


def test_celery_that_runs_handlers_in_the_request(offline: Setup) -> None:
    offline.celery.conf.task_always_eager = True

    assert codes(offline.app) == ["celery-eager"]
