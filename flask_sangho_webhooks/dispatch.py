"""One run of an event's handlers, and what waits for its commit."""

from __future__ import annotations

import collections.abc as c
import contextvars
import inspect
import logging
import typing as t

from flask import current_app
from flask_sqlalchemy import SQLAlchemy

from .errors import Discard
from .event import Event
from .guards import commit, is_joined, keep_readable, unavailable
from .registry import Handler
from .signals import call_safely

Callback = c.Callable[[], object]

logger = logging.getLogger("flask_sangho_webhooks")


class HoldingBack:
    """Holds callbacks back until the block, which commits, has ended. If it raises, none is called.

    :param db: what the block commits to. A block within another one on the same database commits
        to a savepoint: its callbacks wait for the outer block, and go with it.
    """

    def __init__(self, db: SQLAlchemy | None) -> None:
        self.db = db
        self.callbacks: list[Callback] = []
        # A thread that a handler has started with its context may outlive the block.
        self.is_over = False

    def __enter__(self) -> HoldingBack:
        self._outer = _held.get()
        self._token = _held.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_over = True
        _held.reset(self._token)
        outer = self._outer

        if kind is not None:
            return

        if outer is not None and self.db is not None and self.db is outer.db:
            outer.callbacks.extend(self.callbacks)
            return

        for callback in self.callbacks:
            call_safely(callback)


# Shared by all extension objects: the handlers of one may process an event of another.
_held: contextvars.ContextVar[HoldingBack | None] = contextvars.ContextVar(
    "sangho_held", default=None
)


def run_handlers(handlers: c.Sequence[Handler], event: Event, db: SQLAlchemy | None) -> None:
    """Run the handlers of one event as one unit: commit ``db.session`` after the last, roll it back
    if one fails.

    :raises GuardUnavailable: if the session's commit meets a passing trouble of the database.
    :raises TypeError: if a handler returns something that is still to be run.
    :raises Exception: whatever a handler raises.
    """
    try:
        for position, handler in enumerate(handlers, 1):
            _run(handler, event)

            if db is not None and (registry := db.session.registry).has():
                session = registry()

                # Each handler finds a session without a transaction, as in a request of its own:
                # its rollback undoes its own work, not that of the handlers before it.
                if position == len(handlers) or is_joined(session):
                    commit(session)

        held = _held.get()

        if held is not None and held.callbacks:
            with unavailable():
                keep_readable()
    except BaseException as error:
        if db is not None and db.session.registry.has():
            _roll_back(db)

        if isinstance(error, Discard):
            logger.warning(
                "A handler discards event %s (%s): %s", event.id, event.type, error.reason
            )

        raise


def _run(handler: Handler, event: Event) -> None:
    function = handler.function

    if handler.is_async:

        async def call() -> object:
            return await t.cast(c.Awaitable[object], function(event))

        result = current_app.ensure_sync(call)()
    else:
        result = function(event)

    if result is None:
        return

    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()

        raise TypeError(
            f"A handler returned a {type(result).__name__} that nobody would run. Decorate the"
            " 'async def' function itself, or run it to its end before returning."
        )


def _roll_back(db: SQLAlchemy) -> None:
    """Roll back without hiding the exception that led here."""
    try:
        db.session.rollback()
    except Exception as error:
        kind = type(error).__name__
        logger.warning("The rollback after a failed handler failed as well (%s).", kind)


def hold_back(function: Callback) -> None:
    """Call a function when the run around it has committed, or at once outside of any.

    :raises TypeError: if it is no function, such as the result of a call.
    """
    if not callable(function):
        raise TypeError(
            f"on_commit() takes a function, not {type(function).__name__}. Pass one that is still"
            " to be called: webhooks.on_commit(lambda: send_receipt(order.id))."
        )

    held = _held.get()

    if held is None or held.is_over:
        function()
    else:
        held.callbacks.append(function)
