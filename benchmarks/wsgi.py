"""Calling an app as a WSGI server does, without a socket."""

from __future__ import annotations

import collections.abc as c
import io
import sys
import typing as t

from .endpoint import PATH

if t.TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment


def environ(event_id: str, body: bytes, signature: str) -> WSGIEnvironment:
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
        "HTTP_SANGHO_SIGNATURE": signature,
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
