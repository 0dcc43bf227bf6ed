"""One run of an event's handlers, and what waits for its commit."""

from __future__ import annotations

import collections.abc as c
import contextlib
import contextvars
import dataclasses
import inspect
import logging
import typing as t

from flask import current_app
from flask_sqlalchemy import SQLAlchemy

from .errors import Discard
from .event import Event
from .guards import commit, is_joined, keep_readable, unavailable
from .registry import HandlerFunction, is_async
from .signals import outcome_stands

Callback = c.Callable[[], object]

logger = logging.getLogger("flask_sangho_webhooks")


@dataclasses.dataclass
class _Held:
    """Callbacks of a run whose guard has not committed yet."""

    db: SQLAlchemy | None
    callbacks: list[Callback] = dataclasses.field(default_factory=list)
    # A thread that a handler has started with its context may outlive the run.
    is_over: bool = False


# Shared by all extension objects: the handlers of one may process an event of another.
_held: contextvars.ContextVar[_Held | None] = contextvars.ContextVar("sangho_held", default=None)


def run_handlers(
    handlers: c.Sequence[HandlerFunction], event: Event, db: SQLAlchemy | None
) -> None:
    """Run the handlers of one event as one unit: commit ``db.session`` after the last, roll it back
    if one fails.

    :raises GuardUnavailable: if the session's commit meets a passing trouble of the database.
    :raises TypeError: if a handler returns something that is still to be run.
    :raises Exception: whatever a handler raises.
    """
    try:
        for position, handler in enumerate(handlers, 1):
            _run(handler, event)

            if db is not None and db.session.registry.has():
                session = db.session()

                # Each handler finds a session without a transaction, as in a request of its own:
                # its rollback undoes its own work, not that of the handlers before it.
                if position == len(handlers) or is_joined(session):
                    with unavailable():
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


def _run(handler: HandlerFunction, event: Event) -> None:
    if is_async(handler):

        async def call() -> object:
            return await t.cast(c.Awaitable[object], handler(event))

        result = current_app.ensure_sync(call)()
    else:
        result = handler(event)

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


@contextlib.contextmanager
def holding_back(db: SQLAlchemy | None) -> c.Iterator[list[Callback]]:
    """Hold callbacks back until the block, which commits, has ended. If it raises, none is called.

    :param db: what the block commits to. A block within another one on the same database commits
        to a savepoint: its callbacks wait for the outer block, and go with it.
    """
    outer = _held.get()
    held = _Held(db)
    token = _held.set(held)

    try:
        yield held.callbacks
    finally:
        held.is_over = True
        _held.reset(token)

    if outer is not None and db is not None and db is outer.db:
        outer.callbacks.extend(held.callbacks)
        return

    for callback in held.callbacks:
        with outcome_stands():
            callback()


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
