"""Signed deliveries, made before the clock runs."""

from __future__ import annotations

import itertools
import json
import typing as t
import uuid

from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]

from . import wsgi
from .endpoint import PATH, SECRET, TYPE

if t.TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_run = uuid.uuid4().hex[:12]
_numbers = itertools.count(1)


def new_id() -> str:
    """As long as Sangho's, and never seen before."""
    return f"evt_{_run}{next(_numbers):020x}"


def event_body(event_id: str, event_type: str = TYPE, size: int = 300) -> bytes:
    """The bytes of an event: small objects with short members, as payments have them.

    :param size: of the body in bytes, to the byte.
    """
    lines: list[dict[str, t.Any]] = []
    payment = {"id": "pi_1", "amount": 5000, "currency": "xaf", "description": "", "lines": lines}
    event = {
        "id": event_id,
        "object": "event",
        "api_version": "2026-01-01",
        "type": event_type,
        "created": 1780000100,
        "livemode": True,
        "data": {"object": payment},
    }
    # Each line but the first takes two more for its comma.
    for number in range(1, (size - len(_json(event)) + 2) // (len(_json(_line(1))) + 2) + 1):
        lines.append(_line(number))

    payment["description"] = "x" * (size - len(_json(event)))
    return _json(event)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _line(number: int) -> dict[str, t.Any]:
    return {
        "id": f"li_{number:06}",
        "product": f"prod_{number:06}",
        "description": "Riz parfumé, sac de 25 kg",
        "amount": 18500,
        "quantity": 2,
        "taxed": True,
        "discount": None,
        "metadata": {"warehouse": "Douala"},
    }


def sign(body: bytes) -> str:
    header: str = Webhooks.generate_test_header(body, SECRET)
    return header


def environ(event_id: str, body: bytes) -> WSGIEnvironment:
    """A signed request as a WSGI server hands it on."""
    return wsgi.environ(event_id, body, sign(body))


def new_environ(event_type: str = TYPE) -> WSGIEnvironment:
    event_id = new_id()
    return environ(event_id, event_body(event_id, event_type))


def http_request(event_id: str, body: bytes) -> bytes:
    """The bytes of a request that asks for the connection to be closed."""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Sangho-Signature: {sign(body)}\r\nSangho-Event-ID: {event_id}\r\n\r\n"
    ).encode() + body
