"""The extension object: handlers, configuration, and the path of an event through the guard."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import functools
import logging
import time
import typing as t

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from ._context import this_app
from ._log import outcome_extra
from .config import Config
from .dispatch import Callback, hold_back, HoldingBack, run_handlers
from .errors import ConfigError, EventInProgress, GuardUnavailable, RetryLater
from .event import Event
from .event_types import EventType
from .guards import Guard, Outcome, SQLGuard
from .queue import Queue
from .registry import check_patterns, Handler, HandlerFunction, Registry
from .signals import event_duplicate, event_failed, event_processed, send

if t.TYPE_CHECKING:
    from flask.sansio.app import App

    from .blueprint import WebhookBlueprint

EXTENSION_KEY = "sangho_webhooks"

logger = logging.getLogger("flask_sangho_webhooks")

_F = t.TypeVar("_F", bound=HandlerFunction)


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """What belongs to one extension object in one app."""

    webhooks: SanghoWebhooks
    config: Config
    guard: Guard


class SanghoWebhooks:
    """Receives Sangho's webhooks and runs the handlers of each event exactly once.

    One object serves any number of apps, each with its own configuration. Registering
    :attr:`blueprint` on an app is all that is needed; a process without routes calls
    :meth:`init_app`.

    :param db: the app's Flask-SQLAlchemy object. Its session is committed after the handlers of an
        event have succeeded, and rolled back if one fails.
    :param guard: remembers processed events; by default :class:`.SQLGuard` on ``db``.
    :param queue: hands events to a worker in place of running the handlers in the request.
    :param model: for the default guard, a model of your own in place of
        ``processed_webhook_events``. If the app has a model of that table, define it before.
    :param name: of the blueprint; another one for each endpoint of an app.
    :param path: of the route, below the blueprint's ``url_prefix``.
    :param config_prefix: of the keys in ``app.config``; another one for each endpoint of an app.
    """

    def __init__(
        self,
        db: SQLAlchemy | None = None,
        *,
        guard: Guard | None = None,
        queue: Queue | None = None,
        model: type[t.Any] | None = None,
        name: str = EXTENSION_KEY,
        path: str = "/webhook",
        config_prefix: str = "SANGHO_WEBHOOK_",
    ) -> None:
        if db is not None and not isinstance(db, SQLAlchemy):
            raise ConfigError(
                "Pass the app's Flask-SQLAlchemy object, SanghoWebhooks(db), and later register"
                " the blueprint: app.register_blueprint(webhooks.blueprint)."
            )

        if guard is not None and model is not None:
            raise ConfigError("Give the model to the guard: SQLGuard(db, model).")

        if guard is None and db is not None:
            guard = SQLGuard(db, model)

        self.db = db
        self.guard = guard
        self.queue = queue
        self.name = name
        self.path = path
        self.config_prefix = config_prefix
        self._registry = Registry()

    @property
    def model(self) -> type[t.Any] | None:
        """The model of the table of processed events, if the guard has one."""
        return getattr(self.guard, "model", None)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The registered handlers, in the order in which they run."""
        return tuple(self._registry.handlers)

    @functools.cached_property
    def blueprint(self) -> WebhookBlueprint:
        """The blueprint with the route of the endpoint, ``<name>.receive``."""
        from .blueprint import WebhookBlueprint

        return WebhookBlueprint(self)

    def on(self, *patterns: EventType | str) -> c.Callable[[_F], _F]:
        """Decorate a function that takes an :class:`.Event`, to run it for events of these types.

        All handlers of an event run in the order of their registration, as one unit: if one fails,
        the effects of all are rolled back.

        :param patterns: exact types; ``payment_intent.*`` for one or more further segments; ``*``
            for everything. A type that Sangho is not known to send is accepted with a warning.
        :raises ConfigError: if a pattern can match nothing, or the function cannot be a handler.
        """

        # Here, and not when the decorator is applied: without parentheses it never would be.
        check_patterns(patterns, stacklevel=2)

        def decorate(function: _F) -> _F:
            self._registry.add(function, patterns)
            return function

        return decorate

    def init_app(self, app: Flask) -> None:
        """Configure the extension for an app, without adding a route.

        May be called again after the configuration has changed. These keys of ``app.config`` are
        read, here and only here, under the ``config_prefix``:

        - ``SANGHO_WEBHOOK_SECRET``: signing secret, or a list of them, newest first. Required.
        - ``SANGHO_WEBHOOK_TOLERANCE``: seconds, 300.
        - ``SANGHO_WEBHOOK_RETENTION``: ``timedelta`` or seconds, 72 hours, at least 48.
        - ``SANGHO_WEBHOOK_MAX_BODY``: bytes, 1 MiB.
        - ``SANGHO_WEBHOOK_RETRY_AFTER``: seconds, 30.
        - ``SANGHO_WEBHOOK_LOCK_TIMEOUT``: seconds, 2.
        - ``SANGHO_WEBHOOK_REDIS_URL``, ``SANGHO_WEBHOOK_LEASE``: for ``RedisGuard``.

        :raises ConfigError: naming what is wrong and how to fix it. Nothing is registered then.
        """
        if self.guard is None:
            raise ConfigError(
                "Nothing would remember processed events. Pass the app's database,"
                " SanghoWebhooks(db), or a guard, SanghoWebhooks(guard=…)."
            )

        config = Config.load(app.config, self.config_prefix, self.name)
        endpoints: dict[str, Endpoint] = app.extensions.get(EXTENSION_KEY, {})
        other = endpoints.get(self.name)

        if other is not None and other.webhooks is not self:
            raise ConfigError(
                f"Another SanghoWebhooks object named {self.name!r} is set up on this app. Give the"
                " second endpoint a name, config_prefix and path of its own: SanghoWebhooks(db,"
                ' name="connect", config_prefix="SANGHO_CONNECT_", path="/connect-webhook",'
                " model=ConnectEvent)."
            )

        bind = getattr(self.guard, "bind", None)
        endpoint = Endpoint(self, config, self.guard if bind is None else bind(config))

        for neighbour in endpoints.values():
            if neighbour.webhooks is not self and _store(neighbour.guard) is _store(endpoint.guard):
                raise ConfigError(
                    f"The endpoints {neighbour.webhooks.name!r} and {self.name!r} share a table or"
                    " guard. Sangho sends the same event id to both, and the second would take it"
                    " for a duplicate. Give one a model of its own: SanghoWebhooks(db, model=…)."
                )

        if not endpoints:
            from .cli import sangho

            app.extensions[EXTENSION_KEY] = endpoints
            app.cli.add_command(sangho)

        endpoints[self.name] = endpoint

    def endpoint(self) -> Endpoint:
        """This extension's state in the current app.

        :raises RuntimeError: outside an app context, or in an app it was not set up on.
        """
        endpoint: Endpoint | None = this_app().extensions.get(EXTENSION_KEY, {}).get(self.name)

        if endpoint is None or endpoint.webhooks is not self:
            raise RuntimeError(
                "The current Flask app is not set up with this 'SanghoWebhooks' object. Did you"
                " forget to call 'app.register_blueprint(webhooks.blueprint)' or 'init_app'?"
            )

        return endpoint

    def is_initialized(self, app: App) -> bool:
        """Whether :meth:`init_app` has succeeded for an app."""
        endpoint: Endpoint | None = app.extensions.get(EXTENSION_KEY, {}).get(self.name)
        return endpoint is not None and endpoint.webhooks is self

    def receive(self, event: Event) -> Outcome:
        """What the route does with a verified event: hand it to the queue, if there is one, or
        process it.

        :raises GuardUnavailable: also if the queue cannot be reached.
        """
        if self.queue is None or not self._registry.match(event.type):
            return self.process(event)

        started = time.monotonic()

        if self.endpoint().guard.seen(event.id):
            self._finish(event, Outcome.DUPLICATE, time.monotonic() - started)
            return Outcome.DUPLICATE

        self.queue.enqueue(self, event)
        _log(event, Outcome.QUEUED, time.monotonic() - started)
        return Outcome.QUEUED

    def process(self, event: Event) -> Outcome:
        """Run the handlers of an event, exactly once. The one entry for requests, workers and
        scripts; needs an app context.

        :return: what became of the event; every outcome is final.
        :raises EventInProgress: if another run of the event is not finished.
        :raises GuardUnavailable: if the guard's store cannot be reached, or is locked.
        :raises RetryLater: if a handler asks for a redelivery.
        :raises Exception: whatever else a handler raises; then nothing is recorded.
        """
        guard = self.endpoint().guard
        handlers = self._registry.match(event.type)

        if not handlers:
            _log(event, Outcome.UNHANDLED)
            return Outcome.UNHANDLED

        started = time.monotonic()
        dispatch = functools.partial(run_handlers, handlers, event, self.db)

        try:
            with HoldingBack(getattr(guard, "db", None)) as held:
                outcome = guard.once(event, dispatch)

                if outcome is not Outcome.PROCESSED:
                    held.callbacks.clear()

                seconds = time.monotonic() - started
                held.callbacks.append(functools.partial(self._finish, event, outcome, seconds))
        except (EventInProgress, GuardUnavailable, RetryLater):
            raise
        except Exception as error:
            extra = outcome_extra("failed", event, time.monotonic() - started)
            kind = type(error).__name__
            logger.warning("Event %s (%s): failed (%s)", event.id, event.type, kind, extra=extra)
            send(event_failed, webhooks=self, event=event, error=error)
            raise

        return outcome

    def on_commit(self, function: Callback) -> None:
        """Call a function once the guard has committed, and never if it rolls back.

        For effects outside the database, such as enqueueing a job. An exception in it is logged;
        the event stays processed. Outside a dispatch the function is called at once.

        :param function: called without arguments, in the order of these calls.
        :raises TypeError: if it is no function, such as the result of a call.
        """
        hold_back(function)

    def _finish(self, event: Event, outcome: Outcome, seconds: float) -> None:
        _log(event, outcome, seconds)

        if outcome is Outcome.DUPLICATE:
            send(event_duplicate, webhooks=self, event=event)
        else:
            send(event_processed, webhooks=self, event=event, outcome=outcome)


def _store(guard: Guard) -> object:
    """Where an endpoint remembers events: a table, or what only the guard knows."""
    return getattr(guard, "table", guard)


def _log(event: Event, outcome: Outcome, seconds: float = 0) -> None:
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "Event %s (%s): %s",
            event.id,
            event.type,
            outcome.value,
            extra=outcome_extra(outcome.value, event, seconds),
        )
