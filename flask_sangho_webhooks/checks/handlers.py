"""Handlers that are not there, or wait for what never comes."""

from __future__ import annotations

import collections.abc as c

from ..extension import Endpoint
from ..findings import Finding
from ..registry import is_known, suggestion


def check_handlers(endpoint: Endpoint) -> c.Iterator[Finding]:
    """What the endpoint's handlers are registered for."""
    handlers = endpoint.webhooks.handlers

    if not handlers:
        yield Finding(
            "no-handlers",
            "error",
            "There are no handlers: every event is answered 200 and forgotten.",
            "Import the module with the handlers, @webhooks.on('payment_intent.succeeded'), where"
            " the app is made.",
        )

    for pattern in dict.fromkeys(p for handler in handlers for p in handler.patterns):
        if not is_known(pattern):
            yield Finding(
                "type-unknown",
                "warning",
                f"A handler is registered for {pattern!r}, which Sangho is not known to send.",
                suggestion(pattern).lstrip() or "Look the type up in Sangho's dashboard.",
            )
