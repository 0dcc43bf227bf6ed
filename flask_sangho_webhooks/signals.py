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
import contextlib
import logging
import typing as t

from blinker import NamedSignal, Namespace
from flask import current_app

_signals = Namespace()

event_processed = _signals.signal("event-processed")
event_duplicate = _signals.signal("event-duplicate")
event_failed = _signals.signal("event-failed")
delivery_rejected = _signals.signal("delivery-rejected")
lease_lost = _signals.signal("lease-lost")

logger = logging.getLogger("flask_sangho_webhooks")


def send(signal: NamedSignal, **values: t.Any) -> None:
    """Send a signal of the current app. A receiver that fails keeps none of the others from it."""
    app = current_app._get_current_object()  # type: ignore[attr-defined]

    if signal.is_muted:
        return

    for receiver in signal.receivers_for(app):
        with outcome_stands():
            app.ensure_sync(receiver)(app, **values)


@contextlib.contextmanager
def outcome_stands() -> c.Iterator[None]:
    """Log what cannot change the outcome any more, and must not look as if it did."""
    try:
        yield
    except Exception:
        logger.exception("A callback or signal receiver failed; the outcome stands.")
