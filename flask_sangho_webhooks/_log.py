"""What a log line about an outcome carries, for whoever counts them."""

from __future__ import annotations

import typing as t

from .event import Event


def outcome_extra(outcome: str, event: Event | None = None, seconds: float = 0) -> dict[str, t.Any]:
    """The ``extra`` of a line on an outcome: all four attributes, on these lines only.

    :param outcome: of :class:`.Outcome`, or the reason of an error, or ``failed``.
    :param event: None for a delivery that was rejected; what it says of itself is not verified.
    :param seconds: that the extension and the handlers took.
    """
    return {
        "event_id": None if event is None else event.id,
        "event_type": None if event is None else event.type,
        "outcome": outcome,
        "duration_ms": round(seconds * 1000, 3),
    }
