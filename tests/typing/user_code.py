"""Handlers as users write them, for mypy and pyright to judge. Never run.

Each line that must be an error has a ``type: ignore``, and both report one that is not needed.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import datetime as dt
import functools
import typing as t

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_sangho_webhooks import Event, EventType, Outcome, SanghoWebhooks
from flask_sangho_webhooks.testing import build_event, SanghoTestClient

webhooks = SanghoWebhooks(SQLAlchemy())


# ------------------------------------------------------------------------ right


@webhooks.on("payment_intent.succeeded")
def fulfil(event: Event) -> str:
    order_id = event.object["metadata"]["order_id"]
    return f"{event.id} {event.type} {order_id}"


@webhooks.on("payment_intent.succeeded", "invoice.*")
@webhooks.on("*")
async def ship(event: Event) -> int:
    return len(event.body)


@webhooks.on("refund.created")
def without_types(event):
    return event.id


@webhooks.on("refund.created")
def with_defaults(event: object, *, dry_run: bool = False, **options: int) -> None: ...


class Mailer:
    def __call__(self, event: Event) -> None: ...

    def send(self, event: Event, subject: str) -> None: ...

    def send_receipt(self, event: Event) -> None: ...

    @webhooks.on("customer.created")
    @staticmethod
    def welcome(event: Event) -> None: ...

    @webhooks.on("customer.created")  # type: ignore[type-var]
    def of_an_instance(self, event: Event) -> None: ...


webhooks.on("customer.created")(Mailer())
webhooks.on("customer.created")(Mailer().send_receipt)
webhooks.on("customer.created")(functools.partial(Mailer().send, subject="Hello"))
webhooks.on("customer.created")(lambda event: event.livemode)


# ------------------------------------------------------------------------ wrong


@webhooks.on("payment_intent.succeeded")  # type: ignore[type-var]
def without_event() -> None: ...


@webhooks.on("payment_intent.succeeded")  # type: ignore[type-var]
def with_another_type(event: str) -> None: ...


@webhooks.on("payment_intent.succeeded")  # type: ignore[type-var]
def with_a_dict(event: dict[str, t.Any]) -> None: ...


@webhooks.on("payment_intent.succeeded")  # type: ignore[type-var]
def with_two(event: Event, order: int) -> None: ...


@webhooks.on("payment_intent.succeeded")  # type: ignore[type-var]
async def async_without_event() -> None: ...


@webhooks.on  # type: ignore[arg-type]
def without_parentheses(event: Event) -> None: ...


webhooks.on("payment_intent.succeeded")("fulfil")  # type: ignore[type-var]
webhooks.on(1)  # type: ignore[arg-type]
webhooks.on(["payment_intent.succeeded"])  # type: ignore[arg-type]


# -------------------------------------------------- what a decorated function is


async def use(event: Event) -> None:
    t.assert_type(fulfil(event), str)
    t.assert_type(fulfil(event=event), str)
    t.assert_type(await ship(event), int)
    t.assert_type(with_defaults(event, dry_run=True), None)
    fulfil()  # type: ignore[call-arg]
    fulfil("evt_1")  # type: ignore[arg-type]


def use_event(event: Event) -> None:
    t.assert_type(event.created, dt.datetime | None)
    t.assert_type(event.livemode, bool | None)
    t.assert_type(event.body, bytes)
    event.id = "evt_2"  # type: ignore[misc]
    event.created.isoformat()  # type: ignore[union-attr]
    _ = event.subject  # type: ignore[attr-defined]


def use_types(known: EventType, any_other: str) -> EventType:
    webhooks.on(known, any_other)
    return "payment_intent.succeded"  # type: ignore[return-value]


def use_tests(app: Flask) -> None:
    client = SanghoTestClient(app, name="connect")
    t.assert_type(client.deliver("payment_intent.succeeded", {"amount": 5000}), TestResponse)
    t.assert_type(client.deliver("some.other", [], livemode=True), TestResponse)
    t.assert_type(client.redeliver(timestamp=1), TestResponse)
    t.assert_type(client.deliver_concurrently(5, "invoice.paid"), list[TestResponse])
    t.assert_type(webhooks.process(build_event("invoice.paid")), Outcome)
    client.deliver()  # type: ignore[call-arg]
    client.deliver("invoice.paid", timestamp="now")  # type: ignore[arg-type]
