"""Bodies and chunks as a real server hands them over: gunicorn, on a free loopback port."""

from __future__ import annotations

import collections.abc as c
import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import typing as t

import pytest
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import Event, SanghoWebhooks
from flask_sangho_webhooks.blueprint import MAX_DRAIN
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, TYPE

LIMIT = 100_000
PIECE = 8192
RECEIVED = {"received": True}
DUPLICATE = {"received": True, "duplicate": True}

Answer = tuple[int, dict[str, t.Any]]


def create_app() -> Flask:
    """What gunicorn serves."""
    db = SQLAlchemy()
    webhooks = SanghoWebhooks(db)

    @webhooks.on(TYPE)
    def handler(event: Event) -> None:
        pass

    app = Flask(__name__)
    app.config.from_prefixed_env()
    db.init_app(app)
    app.register_blueprint(webhooks.blueprint)

    @app.before_request
    def log_request() -> None:
        _ = request.form, request.files

    with app.app_context():
        db.create_all()

    return app


class Server(t.NamedTuple):
    port: int
    log: pathlib.Path

    def connect(self) -> contextlib.closing[http.client.HTTPConnection]:
        return contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> c.Iterator[Server]:
    folder = tmp_path_factory.mktemp("gunicorn")
    log = folder / "log"
    environ = {
        **os.environ,
        "HOME": str(folder),
        "FLASK_SQLALCHEMY_DATABASE_URI": f"sqlite:///{folder / 'shop.sqlite3'}",
        "FLASK_SANGHO_WEBHOOK_SECRET": SECRET,
        "FLASK_SANGHO_WEBHOOK_MAX_BODY": str(LIMIT),
    }

    # The server inherits the socket: the port cannot be taken in between, and a client that comes
    # before the server is up waits.
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("wb") as stderr:
        port = listener.getsockname()[1]
        options = f"--bind fd://{listener.fileno()} --worker-class gthread --threads 4"
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options.split(), "tests.test_server:create_app()"],
            cwd=pathlib.Path(__file__).parent.parent,
            env=environ,
            stderr=stderr,
            pass_fds=[listener.fileno()],
        )

    try:
        yield Server(port, log)
    finally:
        process.terminate()
        process.wait(15)


def sized_body(size: int, event_id: str) -> bytes:
    padding = size - len(event_body(event_id, padding=""))
    body = event_body(event_id, padding="x" * padding)
    assert len(body) == size
    return body


def post(server: Server, body: bytes, *, chunked: bool, content_type: str = "") -> Answer:
    """Post a signed body whole or in real chunks. Like most clients, this one looks for an answer
    only after it has sent everything.
    """
    headers = {"Sangho-Signature": sign(body, SECRET), "Content-Type": content_type}

    with server.connect() as connection:
        if chunked:
            pieces = (body[i : i + PIECE] for i in range(0, len(body), PIECE))
            headers["Transfer-Encoding"] = "chunked"
            connection.request("POST", "/webhook", pieces, headers, encode_chunked=True)
        else:
            connection.request("POST", "/webhook", body, headers)

        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.parametrize("chunked", [False, True])
def test_processed_then_duplicate(server: Server, chunked: bool) -> None:
    body = event_body(f"evt_twice_{chunked}")

    assert post(server, body, chunked=chunked) == (200, RECEIVED)
    assert post(server, body, chunked=not chunked) == (200, DUPLICATE)


@pytest.mark.parametrize("chunked", [False, True])
def test_exactly_the_limit(server: Server, chunked: bool) -> None:
    body = sized_body(LIMIT, f"evt_limit_{chunked}")

    assert post(server, body, chunked=chunked) == (200, RECEIVED)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [LIMIT + 1, 20 * LIMIT, MAX_DRAIN])
def test_too_large_is_answered_and_not_reset(server: Server, size: int, chunked: bool) -> None:
    status, answer = post(server, sized_body(size, "evt_large"), chunked=chunked)

    assert (status, answer["error"]) == (413, "too_large")


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_form_type(server: Server, content_type: str, chunked: bool) -> None:
    body = event_body(f"evt_{content_type[:9]}_{chunked}")

    assert post(server, body, chunked=chunked, content_type=content_type) == (200, RECEIVED)


def test_empty_body(server: Server) -> None:
    status, answer = post(server, b"", chunked=False)

    assert (status, answer["error"]) == (400, "invalid_payload")


def test_empty_chunked_body(server: Server) -> None:
    status, answer = post(server, b"", chunked=True)

    assert (status, answer["error"]) == (500, "body_unavailable")


@pytest.mark.parametrize(
    ("framing", "cause"),
    [
        (b"Content-Length: 1000\r\n\r\nabc", "3 of 1000 bytes are there"),
        (b"Transfer-Encoding: chunked\r\n\r\n10\r\nabc", "reading it failed with"),
        (b"Transfer-Encoding: chunked\r\n\r\nz\r\nabc", "reading it failed with"),
    ],
    ids=["length", "chunk", "chunk-size"],
)
def test_body_breaks_off(server: Server, framing: bytes, cause: str) -> None:
    before = len(server.log.read_text())

    status, answer = post_raw(server, framing)

    assert (status, answer["error"]) == (500, "body_unavailable")
    assert cause in server.log.read_text()[before:]


@pytest.mark.parametrize(
    "header", [b"Sangho-Signature: t=1,v1=\xe9\r\n", b"Sangho-Event-ID: evt_\xe9\r\n"]
)
def test_bytes_outside_ascii_in_a_header(server: Server, header: bytes) -> None:
    status, _ = post_raw(server, header + b"Content-Length: 2\r\n\r\n{}")

    assert status in (400, 401)


def post_raw(server: Server, rest: bytes) -> Answer:
    """Send a request as it stands, and no more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"POST /webhook HTTP/1.1\r\nHost: localhost\r\n" + rest)
        connection.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection)
        response.begin()

        with response:
            return response.status, json.loads(response.read())
