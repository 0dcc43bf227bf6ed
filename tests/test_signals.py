"""What the signals say, and when."""

from __future__ import annotations

import collections.abc as c
import time
import typing as t

import pytest
from blinker import NamedSignal
from flask import Flask

from flask_sangho_webhooks import (
    delivery_rejected,
    Discard,
    Event,
    event_duplicate,
    event_failed,
    event_processed,
    Outcome,
    RetryLater,
)
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, Shop, TYPE

SIGNALS = [event_processed, event_duplicate, event_failed, delivery_rejected]


class Sent(t.NamedTuple):
    """A signal as it was received, and what the database held then."""

    name: str
    sender: Flask
    values: dict[str, t.Any]
    grants: list[str]
    recorded: list[str]


@pytest.fixture
def sent(sqlite_shop: Shop) -> c.Iterator[list[Sent]]:
    """All signals that are sent in the test."""
    sent: list[Sent] = []
    receivers: dict[NamedSignal, c.Callable[..., None]] = {}

    def receiver(name: str) -> c.Callable[..., None]:
        def receive(sender: Flask, **values: t.Any) -> None:
            sent.append(Sent(name, sender, values, sqlite_shop.grants(), sqlite_shop.recorded()))

        return receive

    for signal in SIGNALS:
        receivers[signal] = receiver(signal.name)
        signal.connect(receivers[signal])

    yield sent

    for signal, function in receivers.items():
        signal.disconnect(function)


@pytest.fixture
def shop(sqlite_shop: Shop) -> Shop:
    @sqlite_shop.webhooks.on(TYPE)
    def grant(event: Event) -> None:
        sqlite_shop.grant(event.id)

    return sqlite_shop


EVENT = Event.from_body(event_body())


def test_processed_then_duplicate(shop: Shop, sent: list[Sent]) -> None:
    shop.deliver()
    shop.deliver()

    values = {"webhooks": shop.webhooks, "event": EVENT}
    assert sent == [
        Sent(
            "event-processed",
            shop.app,
            {**values, "outcome": Outcome.PROCESSED},
            ["evt_1"],
            ["evt_1"],
        ),
        Sent("event-duplicate", shop.app, values, ["evt_1"], ["evt_1"]),
    ]


def test_discarded(sqlite_shop: Shop, sent: list[Sent]) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    def discard(event: Event) -> None:
        sqlite_shop.grant(event.id)
        raise Discard

    sqlite_shop.deliver()

    (signal,) = sent
    assert (signal.name, signal.values["outcome"]) == ("event-processed", Outcome.DISCARDED)
    assert (signal.grants, signal.recorded) == ([], ["evt_1"])


def test_failed(shop: Shop, sent: list[Sent]) -> None:
    error = ValueError()

    @shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        raise error

    shop.deliver()

    values = {"webhooks": shop.webhooks, "event": EVENT, "error": error}
    assert sent == [Sent("event-failed", shop.app, values, [], [])]


def test_receiver_of_a_failure_can_write_to_the_database(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def fail(event: Event) -> None:
        raise ValueError

    def write(app: Flask, **_: object) -> None:
        shop.grant("failed")
        shop.db.session.commit()

    with event_failed.connected_to(write, shop.app):
        shop.deliver()

    assert (shop.grants(), shop.recorded()) == (["failed"], [])


def test_asking_for_a_redelivery_is_no_failure(shop: Shop, sent: list[Sent]) -> None:
    @shop.webhooks.on(TYPE)
    def not_yet(event: Event) -> None:
        raise RetryLater

    assert shop.deliver().status_code == 503
    assert sent == []


def test_no_handler_sends_nothing(shop: Shop, sent: list[Sent]) -> None:
    assert shop.deliver(event_type="payout.paid").status_code == 200
    assert sent == []


@pytest.mark.parametrize(
    ("body", "signed", "age", "reason", "status"),
    [
        (event_body(), None, 0, "malformed", 400),
        (event_body(), event_body(), 301, "expired", 400),
        (event_body(), b"", 0, "mismatch", 401),
        (b"[]", b"[]", 0, "invalid_payload", 400),
        (b"x" * 1_100_000, None, 0, "too_large", 413),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rejected(
    shop: Shop,
    sent: list[Sent],
    body: bytes,
    signed: bytes | None,
    age: int,
    reason: str,
    status: int,
) -> None:
    # Signed here: when the tests are collected, minutes may pass before they run.
    signature = "" if signed is None else sign(signed, SECRET, int(time.time()) - age)
    shop.post(body, headers={"Sangho-Signature": signature})

    values = {"webhooks": shop.webhooks, "reason": reason, "status": status}
    assert sent == [Sent("delivery-rejected", shop.app, values, [], [])]


def test_rejected_because_the_body_is_gone(shop: Shop, sent: list[Sent]) -> None:
    shop.post(b"", headers={"Transfer-Encoding": "chunked"})

    assert [(s.name, s.values["reason"], s.values["status"]) for s in sent] == [
        ("delivery-rejected", "body_unavailable", 500)
    ]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_receiver_that_raises_changes_nothing(
    shop: Shop, signal: NamedSignal, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[str] = []

    def fail(app: Flask, **_: object) -> None:
        received.append(signal.name)
        raise ZeroDivisionError

    def fail_too(app: Flask, **_: object) -> None:
        fail(app)

    def statuses() -> list[int]:
        return [
            shop.deliver().status_code,
            shop.deliver().status_code,
            shop.deliver("evt_2", "payout.failed").status_code,
            shop.post(b"").status_code,
        ]

    @shop.webhooks.on("payout.failed")
    def broken(event: Event) -> None:
        raise ValueError

    with signal.connected_to(fail, shop.app), signal.connected_to(fail_too, shop.app):
        assert statuses() == [200, 200, 500, 400]

    assert received == [signal.name, signal.name]
    assert shop.recorded() == ["evt_1"]
    assert "ZeroDivisionError" in caplog.text


def test_async_receiver(shop: Shop) -> None:
    received: list[str] = []

    async def receive(app: Flask, event: Event, **_: object) -> None:
        received.append(event.id)

    with event_processed.connected_to(receive, shop.app):
        shop.deliver()

    assert received == ["evt_1"]


def test_muted_signal(shop: Shop, sent: list[Sent]) -> None:
    with event_processed.muted():
        shop.deliver()

    assert sent == []


def test_receiver_of_another_app(shop: Shop) -> None:
    received: list[object] = []

    with event_processed.connected_to(received.append, Flask("other")):
        shop.deliver()

    assert received == []


def test_nested_event_is_reported_after_the_outer_commit(shop: Shop, sent: list[Sent]) -> None:
    @shop.webhooks.on("webhook.test")
    def outer(event: Event) -> None:
        shop.webhooks.process(EVENT)
        assert sent == []

    shop.deliver("evt_outer", "webhook.test")

    both = ["evt_1", "evt_outer"]
    assert [(s.name, s.values["event"].id, s.recorded) for s in sent] == [
        ("event-processed", "evt_1", both),
        ("event-processed", "evt_outer", both),
    ]


def test_nested_event_is_not_reported_when_the_outer_event_fails(
    shop: Shop, sent: list[Sent]
) -> None:
    @shop.webhooks.on("webhook.test")
    def outer(event: Event) -> None:
        shop.webhooks.process(EVENT)
        raise ValueError

    shop.deliver("evt_outer", "webhook.test")

    assert [(s.name, s.values["event"].id, s.recorded) for s in sent] == [
        ("event-failed", "evt_outer", [])
    ]
