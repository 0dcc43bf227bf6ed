"""Signals sent by the extension. The sender is the Flask app; ``webhooks`` names the extension
object in every one.

``event_processed``
    After the commit, if handlers ran: ``event``, ``outcome`` (processed or discarded).
``event_duplicate``
    A delivery of an event that is already processed: ``event``.
``event_failed``
    After the rollback, if a handler raised or the event could not be recorded: ``event``,
    ``error``. Not for a handler that asks for a redelivery, nor for an unavailable guard.
``delivery_rejected``
    A delivery was refused before it became an event: ``reason``, ``status``.

A receiver that raises is logged, and changes neither the outcome nor what other receivers see.
"""

from __future__ import annotations

from blinker import Namespace

_signals = Namespace()

event_processed = _signals.signal("event-processed")
event_duplicate = _signals.signal("event-duplicate")
event_failed = _signals.signal("event-failed")
delivery_rejected = _signals.signal("delivery-rejected")
