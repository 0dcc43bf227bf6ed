"""Signals sent by the extension. The sender is the Flask app; ``webhooks`` names the extension
object in every one.

``event_processed``
    After the commit: ``event``, ``outcome``.
``event_duplicate``
    A delivery of an event that is already processed: ``event``.
``event_failed``
    A handler raised: ``event``, ``error``. Nothing was recorded.
``delivery_rejected``
    A delivery was refused before it became an event: ``reason``, ``status``.
"""

from __future__ import annotations

from blinker import Namespace

_signals = Namespace()

event_processed = _signals.signal("event-processed")
event_duplicate = _signals.signal("event-duplicate")
event_failed = _signals.signal("event-failed")
delivery_rejected = _signals.signal("delivery-rejected")
