"""What may be wrong with the broker and the workers behind a queue."""

from __future__ import annotations

import collections.abc as c
import typing as t

import celery
import kombu.exceptions

from ._broker import Publishers
from .errors import GuardUnavailable
from .findings import Finding

TIMEOUT = 1.0
"""Seconds that workers have to answer."""

Replies = dict[str, list[t.Any]]


def check_celery(
    app: celery.Celery, task: str, queue: str | None, publishers: Publishers
) -> c.Iterator[Finding]:
    """:param queue: the name of a queue, or None for what Celery routes the task to."""
    # What Celery makes of its own accord where nobody has made an app.
    if app.main == "default" and not app.conf.broker_url:
        yield Finding(
            "celery-no-app",
            "error",
            "No Celery app is known here: events go to a broker that nobody has configured.",
            'app.extensions["celery"] = celery.Celery("shop", broker=…)',
        )
        return

    if task not in app.tasks:
        yield Finding(
            "celery-task",
            "error",
            f"The Celery app has no task {task!r}: no event can be queued.",
            "import flask_sangho_webhooks.celery  # where the Celery app is made",
        )

    if app.conf.task_always_eager:
        yield Finding(
            "celery-eager",
            "warning",
            "Handlers run in the request, not in a worker: 'task_always_eager' is for tests.",
            "celery_app.conf.task_always_eager = False",
        )
        return

    if getattr(app, "flask_app", None) is None and app.Task.__call__ is celery.Task.__call__:
        yield Finding(
            "celery-no-context",
            "error",
            "Tasks of this Celery app run outside of any Flask app; those of events fail.",
            "celery_app.flask_app = app",
        )

    try:
        with publishers.connected(app) as connection:
            yield from _check_workers(app, task, queue, connection)
    except (GuardUnavailable, kombu.exceptions.OperationalError, OSError) as error:
        kind = type(error.__cause__ or error).__name__
        yield Finding(
            "broker-unreachable",
            "error",
            f"The broker cannot be reached ({kind}). Deliveries are answered 503 meanwhile.",
            "Start it, or correct Celery's broker_url.",
        )


def _check_workers(
    app: celery.Celery, task: str, queue: str | None, connection: t.Any
) -> c.Iterator[Finding]:
    name = queue or app.amqp.router.route({}, task)["queue"].name
    inspect = app.control.inspect(timeout=TIMEOUT, connection=connection)
    queues: Replies = inspect.active_queues() or {}
    consumers = [w for w, own in queues.items() if any(q["name"] == name for q in own)]

    if not queues:
        yield Finding(
            "celery-no-worker",
            "warning",
            f"No worker has answered within {TIMEOUT:g} second. Events wait in the queue until one"
            " runs. (One with worker_enable_remote_control=False never answers.)",
            "celery --app … worker",
        )
    elif not consumers:
        yield Finding(
            "celery-queue",
            "error",
            f"No worker takes anything from the queue {name!r}: events stay there.",
            f"celery --app … worker --queues {name}",
        )
    else:
        tasks: Replies = inspect.registered() or {}

        for worker in consumers:
            # A task may be followed by its options.
            if worker in tasks and task not in {line.split()[0] for line in tasks[worker]}:
                yield _unknown_task(worker, task)


def _unknown_task(worker: str, task: str) -> Finding:
    return Finding(
        "celery-task",
        "error",
        f"The worker {worker!r} does not know the task {task!r}: Celery drops the events that it"
        " gets, which were answered 202.",
        "import flask_sangho_webhooks.celery  # where the worker's Celery app is made",
    )
