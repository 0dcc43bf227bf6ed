"""Signals sent by the extension. The sender is the Flask app; ``webhooks`` names the extension
object in all but the last.

``event_processed``
    After the commit, if handlers ran: ``event``, ``outcome`` (processed or discarded).
``event_duplicate``
    A delivery of an event that is already processed: ``event``.
``event_failed``
    After the rollback, if a handler raised or the event could not be recorded: ``event``,
    ``error``. Not for a handler that asks for a redelivery, nor for an unavailable guard. Sent once
    more with ``final=True`` when a queue gives up an event that has failed for 48 hours.
``delivery_rejected``
    A delivery was rejected before it became an event: ``reason``, ``status``.
``lease_lost``
    The handlers of an event took longer than the lease of their claim in Redis, and another run
    may have begun meanwhile: ``event``, ``guard``.

A receiver that raises is logged, and changes neither the outcome nor what other receivers see.
"""

from __future__ import annotations

import collections.abc as c
import logging
import typing as t

from blinker import NamedSignal, Namespace
from flask import Flask

from ._context import this_app

_signals = Namespace()

event_processed = _signals.signal("event-processed")
event_duplicate = _signals.signal("event-duplicate")
event_failed = _signals.signal("event-failed")
delivery_rejected = _signals.signal("delivery-rejected")
lease_lost = _signals.signal("lease-lost")

logger = logging.getLogger("flask_sangho_webhooks")


def send(signal: NamedSignal, **values: t.Any) -> None:
    """Send a signal of the current app. A receiver that fails keeps none of the others from it."""
    if signal.is_muted or not signal.receivers:
        return

    app = this_app()

    for receiver in signal.receivers_for(app):
        call_safely(_call, app, receiver, values)


def _call(app: Flask, receiver: c.Callable[..., object], values: dict[str, t.Any]) -> None:
    app.ensure_sync(receiver)(app, **values)


def call_safely(function: c.Callable[..., object], *arguments: object) -> None:
    """Call what cannot change the outcome any more. If it fails, log that; it must not look as if
    the outcome had changed.
    """
    try:
        function(*arguments)
    except Exception:
        logger.exception("A callback or signal receiver failed; the outcome stands.")
