"""The lines of the log that tell an outcome carry the same four attributes, whatever it is."""

from __future__ import annotations

import collections.abc as c
import logging
import time
import typing as t

import pytest

from flask_sangho_webhooks import (
    Discard,
    Event,
    EventInProgress,
    GuardUnavailable,
    RetryLater,
    SanghoWebhooks,
)

from .support import event_body, Shop, TYPE

ATTRIBUTES = ("event_id", "event_type", "outcome", "duration_ms")
PAUSE = 0.02


def outcomes(caplog: pytest.LogCaptureFixture) -> list[dict[str, t.Any]]:
    """The attributes of each line that has an outcome."""
    lines = [
        r for r in caplog.records if r.name == "flask_sangho_webhooks" and "outcome" in vars(r)
    ]
    return [{name: getattr(line, name) for name in ATTRIBUTES} for line in lines]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flask_sangho_webhooks")


def pause(event: Event) -> None:
    time.sleep(PAUSE)


def raising(error: Exception) -> c.Callable[[Event], None]:
    def handler(event: Event) -> None:
        time.sleep(PAUSE)
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "outcome"),
    [
        (pause, "processed"),
        (raising(Discard()), "discarded"),
        (raising(RetryLater()), "retry_later"),
        (raising(ValueError("private")), "failed"),
        (raising(EventInProgress()), "in_progress"),
        (raising(GuardUnavailable()), "unavailable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_handled(
    sqlite_shop: Shop,
    caplog: pytest.LogCaptureFixture,
    handler: c.Callable[[Event], None],
    outcome: str,
) -> None:
    sqlite_shop.webhooks.on(TYPE)(handler)
    sqlite_shop.deliver()

    (line,) = outcomes(caplog)
    assert line.pop("duration_ms") >= PAUSE * 1000
    assert line == {"event_id": "evt_1", "event_type": TYPE, "outcome": outcome}
    ours = [r for r in caplog.records if r.name == "flask_sangho_webhooks"]
    assert not any("private" in r.getMessage() or r.exc_info for r in ours)


def test_duplicate(sqlite_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    sqlite_shop.webhooks.on(TYPE)(pause)
    sqlite_shop.deliver()
    sqlite_shop.deliver()

    line = outcomes(caplog)[1]
    assert 0 < line.pop("duration_ms") < 5000
    assert line == {"event_id": "evt_1", "event_type": TYPE, "outcome": "duplicate"}


def test_unhandled(sqlite_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    sqlite_shop.deliver()

    assert outcomes(caplog) == [
        {"event_id": "evt_1", "event_type": TYPE, "outcome": "unhandled", "duration_ms": 0}
    ]


class SlowQueue:
    def __init__(self) -> None:
        self.is_down = False

    def enqueue(self, webhooks: SanghoWebhooks, event: Event) -> None:
        time.sleep(PAUSE)

        if self.is_down:
            raise GuardUnavailable


def test_queued(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    queue = SlowQueue()

    with Shop(sqlite_url, queue=queue) as shop:
        shop.webhooks.on(TYPE)(pause)
        shop.deliver("evt_1")
        queue.is_down = True
        shop.deliver("evt_2")

        with shop.app.app_context():
            shop.webhooks.process(Event.from_body(event_body("evt_3")))

        shop.deliver("evt_3")

    lines = outcomes(caplog)
    assert all(line["event_type"] == TYPE and line["duration_ms"] > 0 for line in lines)
    assert [(line["event_id"], line["outcome"]) for line in lines] == [
        ("evt_1", "queued"),
        ("evt_2", "unavailable"),
        ("evt_3", "processed"),
        ("evt_3", "duplicate"),
    ]
    assert min(line["duration_ms"] for line in lines[:3]) >= PAUSE * 1000


@pytest.mark.parametrize(
    ("body", "headers", "outcome"),
    [
        (event_body(), {"Sangho-Signature": ""}, "malformed"),
        (event_body(), {"Sangho-Signature": "t={now},v1=x"}, "mismatch"),
        (event_body(), {"Sangho-Signature": "t=1,v1=x"}, "expired"),
        (b"[]", {}, "invalid_payload"),
        (b"x" * 1_100_000, {}, "too_large"),
        (b"", {"Transfer-Encoding": "chunked"}, "body_unavailable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rejected(
    sqlite_shop: Shop,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    headers: dict[str, str],
    outcome: str,
) -> None:
    """What a delivery says of itself is not shown before it is verified."""
    now = f"{time.time():.0f}"
    headers = {name: value.format(now=now) for name, value in headers.items()}
    sqlite_shop.post(body, headers=headers)

    (line,) = outcomes(caplog)
    assert 0 <= line.pop("duration_ms") < 5000
    assert line == {"event_id": None, "event_type": None, "outcome": outcome}


def test_format_that_names_the_attributes(sqlite_shop: Shop) -> None:
    """A line that tells no outcome has none of them; ``defaults`` is the standard library's way."""
    formatter = logging.Formatter(
        "%(event_id)s %(event_type)s %(outcome)s %(duration_ms)s",
        defaults=dict.fromkeys(ATTRIBUTES, "-"),
    )
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(formatter.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("flask_sangho_webhooks")
    logger.addHandler(handler)

    try:
        sqlite_shop.webhooks.on(TYPE)(raising(Discard()))
        sqlite_shop.deliver()
    finally:
        logger.removeHandler(handler)

    assert lines[0] == "- - - -"
    assert lines[1].startswith(f"evt_1 {TYPE} discarded ")
