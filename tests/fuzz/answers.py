"""Answers, and which of them are right."""

from __future__ import annotations

import json
import typing as t

from flask_sangho_webhooks import Event

from .oracle import Accepted


class Answer(t.NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"answered {self.status} {self.body[:200]!r}"


class Expected(t.NamedTuple):
    """One right answer, and what is right to happen with it."""

    name: str
    status: int
    body: dict[str, bool] | None = None
    error: str | None = None
    event: Accepted | None = None
    runs: bool = False
    """Whether a handler gets the event."""

    asks: bool = False
    """Whether the store is asked."""

    recorded: bool = False
    has_effect: bool = False

    def matches(self, answer: Answer, ran: list[Event]) -> bool:
        """Whether this is the answer that was given, and nothing else was run."""
        right = [self.event] if self.runs else []

        if answer.status != self.status or [_read(event) for event in ran] != right:
            return False

        if self.body is None and self.error is None:
            return True

        if answer.headers.get("Content-Type") != "application/json":
            return False

        content = json.loads(answer.body)

        if self.body is not None:
            return bool(content == self.body)

        waits = "Retry-After" in answer.headers
        return content.keys() == {"error", "message"} and (content["error"], waits) == (
            self.error,
            self.status == 503,
        )


def _read(event: Event) -> Accepted:
    return Accepted(event.id, event.type, event.payload, event.body)
