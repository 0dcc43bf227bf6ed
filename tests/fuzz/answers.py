"""Answers, and which of them are right."""

from __future__ import annotations

import collections.abc as c
import json
import typing as t


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
    ran: c.Sequence[str] = ()
    touches: bool | None = False
    """Whether the store may be asked."""

    recorded: bool | None = None
    """Whether the event is remembered from now on, and whether its effect is."""

    def matches(self, answer: Answer, ran: list[str]) -> bool:
        if answer.status != self.status or ran != list(self.ran):
            return False

        if self.body is None and self.error is None:
            return True

        if answer.headers.get("Content-Type") != "application/json":
            return False

        content = json.loads(answer.body)

        if self.body is not None:
            return bool(content == self.body)

        waits = "Retry-After" in answer.headers
        return (
            content["error"] == self.error and len(content) == 2 and waits == (self.status == 503)
        )
