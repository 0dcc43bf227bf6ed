"""Handlers in the background, on Celery."""

from __future__ import annotations

import base64
import collections.abc as c
import dataclasses
import datetime as dt
import logging
import random
import time
import typing as t

from flask import current_app

from ._log import outcome_extra
from ._worker import app_context, find_endpoint
from .config import positive
from .errors import ConfigError, EventInProgress, GuardUnavailable, RetryLater
from .event import Event
from .extension import Endpoint, EXTENSION_KEY, SanghoWebhooks
from .findings import Finding
from .guards import Outcome
from .signals import event_failed, send

try:
    import celery
    from celery.exceptions import Reject, Retry

    from ._broker import Message, Publishers
    from ._check_celery import check_celery
except ModuleNotFoundError as error:
    raise ConfigError(
        'CeleryQueue needs the celery extra: pip install "flask-sangho-webhooks[celery]"'
    ) from error

PROCESS_EVENT = "flask_sangho_webhooks.process_event"
CLEANUP = "flask_sangho_webhooks.cleanup"

BEAT_SCHEDULE: dict[str, dict[str, t.Any]] = {
    "sangho-cleanup": {"task": CLEANUP, "schedule": dt.timedelta(hours=1)}
}
"""Deletes old records every hour: ``celery_app.conf.beat_schedule.update(BEAT_SCHEDULE)``."""

MAX_DELAY = 15 * 60
"""Seconds that one message waits. A worker holds it meanwhile, and a broker takes it back from a
worker that holds it for too long: RabbitMQ after 30 minutes, on Redis after an hour."""

# Says nothing of the event itself, however old it is.
_NEVER_FINAL = (EventInProgress, GuardUnavailable)
_NOT_FAILED = (*_NEVER_FINAL, RetryLater)

logger = logging.getLogger("flask_sangho_webhooks")


class CeleryQueue:
    """Lets a Celery worker run the handlers. A delivery is answered 202 once the broker has the
    event.

    The worker runs :meth:`.SanghoWebhooks.process` in the app context that Celery's tasks have by
    the pattern of Flask's documentation, or that of ``celery_app.flask_app``. The guard lets each
    event through once, however often the broker hands it out. An event that fails is tried again,
    with growing pauses, for as long as Sangho itself would deliver it.

    :param app: the Celery app; by default ``app.extensions["celery"]`` of the Flask app, or else
        Celery's current one.
    :param queue: the name of a queue; by default as Celery routes the task
        ``flask_sangho_webhooks.process_event``.
    :param publish_timeout: seconds that a broker may take. One that takes longer is down: the
        delivery is answered 503 and comes again.
    """

    def __init__(
        self,
        app: celery.Celery | None = None,
        *,
        queue: str | None = None,
        publish_timeout: float = 2,
    ) -> None:
        self.app = app
        self.queue = queue
        self.publish_timeout = positive("publish_timeout", publish_timeout)
        self._publishers = Publishers(self.publish_timeout)

    def enqueue(self, webhooks: SanghoWebhooks, event: Event) -> None:
        """Hand an event to the broker.

        With Celery's ``task_always_eager`` it is processed at once, and what it raises is raised.

        :raises GuardUnavailable: if the broker does not confirm that it has it.
        :raises ValueError: if the event was not received, but made by hand.
        """
        if not event.body:
            raise ValueError("An event that has no body cannot be queued.")

        app = self._celery_app()
        task = app.tasks[PROCESS_EVENT]
        arguments = Message(
            endpoint=webhooks.name,
            event_id=event.id,
            body=base64.b64encode(event.body).decode(),
            queued_at=time.time(),
        )

        if app.conf.task_always_eager:
            task.apply(kwargs=dataclasses.asdict(arguments), throw=True)
            return

        options = {} if self.queue is None else {"queue": self.queue}
        self.publish(app, task.signature(kwargs=dataclasses.asdict(arguments), **options), event)

    def publish(self, app: celery.Celery, signature: t.Any, event: Event) -> None:
        """Publish a task, and wait for the broker's word that it has it.

        :raises GuardUnavailable: if that does not come.
        """
        self._publishers.publish(app, signature, event)

    def check(self, prefix: str) -> c.Iterator[Finding]:
        """What is wrong with the Celery app, the broker and the workers."""
        return check_celery(self._celery_app(), PROCESS_EVENT, self.queue, self._publishers)

    def close(self) -> None:
        """Close the connections of this process that are idle. The next event makes a new one."""
        self._publishers.close()

    def _celery_app(self) -> celery.Celery:
        if self.app is not None:
            return self.app

        return current_app.extensions.get("celery") or celery.current_app._get_current_object()


@celery.shared_task(  # type: ignore[untyped-decorator]
    bind=True,
    name=PROCESS_EVENT,
    ignore_result=True,
    max_retries=None,
    # The broker keeps the message until the guard has answered, and gives it to another worker if
    # this one dies. What has run into a hard time limit goes back as well.
    acks_late=True,
    reject_on_worker_lost=True,
    acks_on_failure_or_timeout=False,
)
def process_event(task: t.Any, **values: t.Any) -> str:
    """Process one event under the guard.

    :return: the outcome.
    :raises celery.exceptions.Retry: if the event did not get through, and will be tried again.
    :raises Exception: what the attempt raised, if it was the last.
    """
    arguments = Message(**values)
    event = arguments.event
    left = arguments.not_before - time.time()

    if left > 1:
        raise _publish_again(task, arguments, event, left, None)

    is_last = time.time() >= arguments.give_up_at
    endpoint = None
    started = time.monotonic()

    try:
        with app_context(task.app):
            endpoint = find_endpoint(arguments.endpoint)
            outcome = endpoint.webhooks.process(event)

            if outcome is Outcome.UNHANDLED:
                # Whoever queued it had a handler, and has answered that the event is not needed.
                raise ConfigError(
                    f"The worker has no handler for {event.type!r}. Import the app's handlers in"
                    " the worker as well."
                )

            return str(outcome.value)
    except Exception as error:
        if task.request.is_eager:
            raise

        if is_last and not isinstance(error, _NEVER_FINAL):
            _give_up(task.app, endpoint, event, error)
            raise

        took = time.monotonic() - started
        raise _try_again(task, arguments, event, took, error, endpoint) from error


@celery.shared_task(bind=True, name=CLEANUP)  # type: ignore[untyped-decorator]
def cleanup(task: t.Any) -> int:
    """Delete the records that are older than the retention, of all endpoints of the app.

    :return: how many.
    """
    with app_context(task.app):
        endpoints: dict[str, Endpoint] = current_app.extensions.get(EXTENSION_KEY, {})
        return sum(e.guard.cleanup(e.config.retention) for e in endpoints.values())


def _try_again(
    task: t.Any,
    arguments: Message,
    event: Event,
    took: float,
    error: Exception,
    endpoint: Endpoint | None,
) -> Exception:
    """Log that an attempt did not get through, and publish the message for another.

    :param took: seconds that it took.
    :return: what to raise.
    """
    failed = not isinstance(error, _NOT_FAILED)
    became = error.reason if isinstance(error, _NOT_FAILED) else "retry"
    seconds = _delay(error, arguments.failures, endpoint)
    logger.log(
        logging.WARNING if failed else logging.INFO,
        "Event %s (%s) was not processed, and is tried again in %.0f seconds: %s",
        event.id,
        event.type,
        seconds,
        type(error).__name__,
        exc_info=error if failed else None,
        extra=outcome_extra(became, event, took),
    )
    arguments = dataclasses.replace(arguments, failures=arguments.failures + failed)
    return _publish_again(task, arguments, event, seconds, error, endpoint)


def _delay(error: Exception, failures: int, endpoint: Endpoint | None) -> float:
    """Seconds until the next attempt."""
    if isinstance(error, RetryLater):
        return error.seconds

    if isinstance(error, _NOT_FAILED) and endpoint is not None:
        seconds: float = endpoint.config.retry_after
    else:
        seconds = min(2.0 ** min(failures, 30), MAX_DELAY)

    return seconds * random.uniform(0.5, 1)


def _publish_again(
    task: t.Any,
    arguments: Message,
    event: Event,
    seconds: float,
    error: Exception | None,
    endpoint: Endpoint | None = None,
) -> Exception:
    """Publish the message for another attempt.

    :return: what to raise, for the broker to forget this message, or not.
    """
    queue = endpoint.webhooks.queue if endpoint is not None else None
    countdown = min(seconds, MAX_DELAY)
    arguments = dataclasses.replace(arguments, not_before=time.time() + seconds)
    signature = task.signature_from_request(
        kwargs=dataclasses.asdict(arguments),
        countdown=countdown,
        retries=task.request.retries + 1,
    )

    try:
        publisher = queue if isinstance(queue, CeleryQueue) else _default_queue
        publisher.publish(task.app, signature, event)
    except GuardUnavailable as unavailable:
        # Celery's own retry() would drop the event here.
        rejection: Exception = Reject(unavailable, requeue=True)
        return rejection

    retry: Exception = Retry(exc=error, when=countdown)
    return retry


def _give_up(app: celery.Celery, endpoint: Endpoint | None, event: Event, error: Exception) -> None:
    logger.error(
        "Event %s (%s) was given up: it is older than 48 hours, and still fails.",
        event.id,
        event.type,
        exc_info=error,
        extra=outcome_extra("given_up", event),
    )

    if endpoint is not None:
        with app_context(app):
            send(event_failed, webhooks=endpoint.webhooks, event=event, error=error, final=True)


# For what has no queue of its own, such as an endpoint that is not set up.
_default_queue = CeleryQueue()
