"""Signed deliveries, made before the clock runs."""

from __future__ import annotations

import collections.abc as c
import io
import itertools
import json
import sys
import typing as t
import uuid

from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]

from .endpoint import PATH, SECRET, TYPE

if t.TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

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
    """A request as a WSGI server hands it on, and nothing beside."""
    return {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": PATH,
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_HOST": "127.0.0.1:8000",
        "HTTP_SANGHO_SIGNATURE": sign(body),
        "HTTP_SANGHO_EVENT_ID": event_id,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def new_environ(event_type: str = TYPE) -> WSGIEnvironment:
    event_id = new_id()
    return environ(event_id, event_body(event_id, event_type))


def deliver(
    app: WSGIApplication, environs: c.Iterable[WSGIEnvironment], expected: str = "200 OK"
) -> None:
    """Call the app as a WSGI server does.

    :raises RuntimeError: if an answer has another status.
    """

    def start_response(status: str, *_: object) -> t.Any:
        if status != expected:
            raise RuntimeError(f"A delivery was answered with {status}, not {expected}.")

    for request in environs:
        answer = app(request, start_response)

        for _ in answer:
            pass

        answer.close()  # type: ignore[attr-defined]  # Werkzeug's has it


def http_request(event_id: str, body: bytes) -> bytes:
    """The bytes of a request that asks for the connection to be closed."""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Sangho-Signature: {sign(body)}\r\nSangho-Event-ID: {event_id}\r\n\r\n"
    ).encode() + body
