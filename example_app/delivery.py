"""The event that an order is paid, and its way to the shop over HTTP."""

from __future__ import annotations

import dataclasses
import http.client
import json
import secrets
import threading
import time
import typing as t

RECEIVED = "200 received"
DUPLICATE = "200 duplicate"
QUEUED = "202 queued"

TIMEOUT = 10
"""Seconds."""


@dataclasses.dataclass(frozen=True)
class Payment:
    """The event that an order is paid."""

    order: str
    amount: int = 5000
    """In whole XAF."""

    event_id: str = dataclasses.field(default_factory=lambda: f"evt_{secrets.token_hex(4)}")
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    @property
    def body(self) -> bytes:
        intent = {
            "id": self.event_id.replace("evt_", "pi_"),
            "object": "payment_intent",
            "amount": self.amount,
            "currency": "XAF",
            "metadata": {"order": self.order},
        }
        event = {
            "id": self.event_id,
            "object": "event",
            "api_version": "2026-01-01",
            "type": "payment_intent.succeeded",
            "created": self.created,
            "livemode": False,
            "data": {"object": intent},
        }
        return json.dumps(event).encode()

    def __str__(self) -> str:
        return f"{self.event_id}: {self.order} is paid"


class Endpoint(t.NamedTuple):
    """Where the shop takes deliveries."""

    host: str
    port: int
    path: str = "/webhook"


def post(
    endpoint: Endpoint, event_id: str, body: bytes, signature: str, start: threading.Barrier
) -> str:
    """Deliver an event.

    :param start: where all that deliver at the same moment wait, with a connection, for each other.
    :return: the answer in a few words.
    """
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT)
    headers = {
        "Content-Type": "application/json",
        "Sangho-Signature": signature,
        "Sangho-Event-ID": event_id,
    }

    try:
        connection.connect()
        start.wait(TIMEOUT)
        connection.request("POST", endpoint.path, body, headers)
        response = connection.getresponse()
        return describe(response.status, response.reason, response.read())
    except (OSError, http.client.HTTPException, threading.BrokenBarrierError) as error:
        return f"no answer ({type(error).__name__})"
    finally:
        connection.close()


def describe(status: int, reason: str, body: bytes) -> str:
    """An answer in a few words."""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"{status} {reason.lower()}"

    if "error" in answer:
        return f"{status} {answer['error']}"

    flag = next((flag for flag in ("duplicate", "queued") if answer.get(flag)), "received")
    return f"{status} {flag}"
