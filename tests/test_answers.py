"""Every row of the table of answers, over the test client."""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import json
import logging
import socket
import sqlite3
import threading
import time
import traceback
import typing as t

import pytest
import sqlalchemy as sa
from flask import abort, Flask, got_request_exception, Response
from flask.json.provider import JSONProvider
from werkzeug.exceptions import Conflict
from werkzeug.test import TestResponse

from flask_sangho_webhooks import (
    Discard,
    Event,
    GuardUnavailable,
    Outcome,
    RetryLater,
    SanghoWebhooks,
)
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, Shop, TYPE

UNHANDLED_TYPE = "customer.created"


def answer(response: TestResponse) -> tuple[int, t.Any]:
    return response.status_code, response.json


def refusal(response: TestResponse) -> tuple[int, str]:
    """Status and reason of an answer that has the keys of an error, and no others."""
    assert response.json is not None
    assert list(response.json) == ["error", "message"]
    assert response.json["message"]
    return response.status_code, response.json["error"]


@pytest.fixture
def granting_shop(sqlite_shop: Shop) -> Shop:
    """A shop whose handler has an effect."""

    @sqlite_shop.webhooks.on(TYPE)
    def grant(event: Event) -> None:
        sqlite_shop.grant(event.id)

    return sqlite_shop


# ---------------------------------------------------------------------- 2xx


def test_processed_then_duplicate(granting_shop: Shop) -> None:
    first, second = granting_shop.deliver(), granting_shop.deliver()

    assert answer(first) == (200, {"received": True})
    assert answer(second) == (200, {"received": True, "duplicate": True})
    assert first.content_type == "application/json"
    assert "Retry-After" not in first.headers


def test_no_handler_for_the_type(granting_shop: Shop) -> None:
    response = granting_shop.deliver(event_type=UNHANDLED_TYPE)

    assert answer(response) == (200, {"received": True, "handled": False})
    assert granting_shop.recorded() == []


def test_no_handler_for_the_type_needs_no_database() -> None:
    shop = Shop(unreachable_url())

    assert answer(shop.deliver())[0] == 200


def test_discard(sqlite_shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    @sqlite_shop.webhooks.on(TYPE)
    def discard(event: Event) -> None:
        sqlite_shop.grant("early")
        raise Discard("no such order")

    response = sqlite_shop.deliver()

    assert answer(response) == (200, {"received": True, "discarded": True})
    assert sqlite_shop.grants() == []
    assert sqlite_shop.recorded() == ["evt_1"]
    assert f"A handler discards event evt_1 ({TYPE}): no such order" in caplog.messages
    assert answer(sqlite_shop.deliver()) == (200, {"received": True, "duplicate": True})


@dataclasses.dataclass
class ListQueue:
    """A queue of this process, to be worked off by hand."""

    events: list[Event] = dataclasses.field(default_factory=list)

    def enqueue(self, webhooks: SanghoWebhooks, event: Event) -> None:
        self.events.append(event)


class BrokenQueue:
    def enqueue(self, webhooks: SanghoWebhooks, event: Event) -> None:
        raise GuardUnavailable("The broker is unreachable.")


def test_queued_for_a_worker(sqlite_url: str) -> None:
    queue = ListQueue()

    with Shop(sqlite_url, queue=queue) as shop:

        @shop.webhooks.on(TYPE)
        def grant(event: Event) -> None:
            shop.grant(event.id)

        response = shop.deliver()
        assert answer(response) == (202, {"received": True, "queued": True})
        assert (shop.grants(), shop.recorded()) == ([], [])

        with shop.app.app_context():
            assert shop.webhooks.process(queue.events.pop()) is Outcome.PROCESSED

        assert shop.grants() == ["evt_1"]
        assert answer(shop.deliver()) == (200, {"received": True, "duplicate": True})
        assert queue.events == []


def test_no_handler_for_the_type_is_not_queued(sqlite_url: str) -> None:
    queue = ListQueue()

    with Shop(sqlite_url, queue=queue) as shop:
        assert answer(shop.deliver()) == (200, {"received": True, "handled": False})
        assert queue.events == []


# ------------------------------------------------------------ 4xx, before the guard


def post_signed(shop: Shop, signature: str | None) -> TestResponse:
    headers = {} if signature is None else {"Sangho-Signature": signature}
    return shop.app.test_client().post("/webhook", data=event_body(), headers=headers)


@pytest.mark.parametrize("mode", [None, "DEBUG", "TESTING"])
@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        # Functions: when the tests are collected, minutes may pass before they run.
        (lambda: None, (400, "malformed")),
        (lambda: "", (400, "malformed")),
        (lambda: "v1=00", (400, "malformed")),
        (lambda: sign(event_body(), SECRET, int(time.time()) - 310), (400, "expired")),
        (lambda: sign(event_body(), SECRET, int(time.time()) + 310), (400, "expired")),
        (lambda: sign(event_body(), "whsec_other"), (401, "mismatch")),
        (lambda: sign(event_body() + b"\n", SECRET), (401, "mismatch")),
    ],
    ids=["missing", "empty", "no-time", "old", "future", "other-secret", "altered-body"],
)
def test_signature_is_refused_in_every_mode(
    granting_shop: Shop,
    mode: str | None,
    signature: c.Callable[[], str | None],
    expected: tuple[int, str],
) -> None:
    if mode is not None:
        granting_shop.app.config[mode] = True

    response = post_signed(granting_shop, signature())

    assert refusal(response) == expected
    assert "Retry-After" not in response.headers
    assert (granting_shop.grants(), granting_shop.recorded()) == ([], [])


def changed(**fields: t.Any) -> bytes:
    """An event with other members; ``...`` leaves one out."""
    event = {**json.loads(event_body()), **fields}
    return json.dumps({k: v for k, v in event.items() if v is not ...}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"5",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"id": "evt_1", "type": "webhook.test", "data": NaN}',
        b'{"id": "evt_1", "id": "evt_2", "type": "webhook.test"}',
        b'{"id": "evt_1", "type": "webhook.test", "n": ' + b"9" * 5000 + b"}",
        b'{"id": "\\ud800", "type": "webhook.test"}',
        changed(id=...),
        changed(id=5),
        changed(id=""),
        changed(id="evt 1"),
        changed(id="e" * 51),
        changed(type=...),
        changed(type=None),
        changed(type="t" * 101),
    ],
    ids=lambda body: body[:40].decode(errors="replace") or "empty",
)
def test_invalid_payload(sqlite_shop: Shop, body: bytes) -> None:
    runs: list[Event] = []
    sqlite_shop.webhooks.on("*")(runs.append)

    assert refusal(sqlite_shop.post(body)) == (400, "invalid_payload")
    assert runs == []
    assert sqlite_shop.recorded() == []


class PlainProvider(JSONProvider):
    """With no options for how to write, as a provider may be."""

    def dumps(self, obj: t.Any) -> str:  # type: ignore[override]
        return json.dumps(obj)

    def loads(self, s: str | bytes, **kwargs: t.Any) -> t.Any:
        return json.loads(s)


def test_json_provider_of_the_app(granting_shop: Shop) -> None:
    shop = granting_shop
    shop.app.json = PlainProvider(shop.app)
    response = shop.deliver(secret="whsec_another0123456789")
    assert (response.status_code, response.json["error"]) == (401, "mismatch")  # type: ignore[index]
    assert answer(shop.deliver()) == (200, {"received": True})


def test_event_id_header_contradicts_the_body(granting_shop: Shop) -> None:
    response = granting_shop.deliver(headers={"Sangho-Event-ID": "evt_2"})

    assert refusal(response) == (400, "invalid_payload")
    assert granting_shop.recorded() == []


@pytest.mark.parametrize("path", ["/webhook", "/webhook/"])
def test_other_methods(granting_shop: Shop, path: str) -> None:
    response = granting_shop.app.test_client().get(path)

    assert response.status_code == 405
    assert response.allow.as_set() == {"post", "options"}


# ---------------------------------------------------------------------- 503


def test_event_in_progress(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    running, go_on = threading.Event(), threading.Event()

    @shop.webhooks.on(TYPE)
    def slow(event: Event) -> None:
        running.set()
        assert go_on.wait(10)

    first: list[TestResponse] = []
    thread = threading.Thread(target=lambda: first.append(shop.deliver()))
    thread.start()

    try:
        assert running.wait(10)
        response = shop.deliver()
    finally:
        go_on.set()
        thread.join(10)

    assert refusal(response) == (503, "in_progress")
    assert response.headers["Retry-After"] == "30"
    assert answer(first[0]) == (200, {"received": True})
    assert answer(shop.deliver()) == (200, {"received": True, "duplicate": True})


@pytest.mark.parametrize(("seconds", "header"), [(7, "7"), (0.2, "1"), (0, "0")])
def test_retry_later(sqlite_shop: Shop, seconds: float, header: str) -> None:
    tries: list[str] = []

    @sqlite_shop.webhooks.on(TYPE)
    def not_yet(event: Event) -> None:
        sqlite_shop.grant(event.id)
        tries.append(event.id)

        if len(tries) == 1:
            raise RetryLater(seconds)

    response = sqlite_shop.deliver()

    assert refusal(response) == (503, "retry_later")
    assert response.headers["Retry-After"] == header
    assert (sqlite_shop.grants(), sqlite_shop.recorded()) == ([], [])
    assert answer(sqlite_shop.deliver()) == (200, {"received": True})
    assert sqlite_shop.grants() == ["evt_1"]


def unreachable_url() -> str:
    """A PostgreSQL URL with a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    return f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"


def unavailable(response: TestResponse, retry_after: str = "30") -> None:
    assert refusal(response) == (503, "unavailable")
    assert response.headers["Retry-After"] == retry_after


def test_database_is_unreachable() -> None:
    shop = Shop(unreachable_url(), config={"SANGHO_WEBHOOK_RETRY_AFTER": 45})
    runs: list[Event] = []
    shop.webhooks.on(TYPE)(runs.append)

    unavailable(shop.deliver(), retry_after="45")
    assert runs == []


def test_database_is_locked(sqlite_url: str) -> None:
    path = sa.make_url(sqlite_url).database
    assert path is not None

    with Shop(sqlite_url, config={"SANGHO_WEBHOOK_LOCK_TIMEOUT": 0.1}) as shop:

        @shop.webhooks.on(TYPE)
        def grant(event: Event) -> None:
            shop.grant(event.id)

        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            unavailable(shop.deliver())

        assert answer(shop.deliver()) == (200, {"received": True})
        assert shop.grants() == ["evt_1"]


def test_pool_is_exhausted(sqlite_url: str) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.1}

    with Shop(sqlite_url, config={"SQLALCHEMY_ENGINE_OPTIONS": options}) as shop:
        shop.webhooks.on(TYPE)(lambda event: None)

        with shop.app.app_context(), shop.db.engine.connect():
            unavailable(shop.deliver())

        assert answer(shop.deliver()) == (200, {"received": True})


def test_queue_is_unreachable(sqlite_url: str) -> None:
    with Shop(sqlite_url, queue=BrokenQueue()) as shop:
        shop.webhooks.on(TYPE)(lambda event: None)

        unavailable(shop.deliver())
        assert shop.recorded() == []


# ------------------------------------------------------------- a handler that raises


class Bug(Exception):
    pass


@pytest.fixture
def failing_shop(sqlite_shop: Shop) -> Shop:
    """A shop whose handler has an effect and fails after it."""

    @sqlite_shop.webhooks.on(TYPE)
    def handler_with_a_bug(event: Event) -> None:
        sqlite_shop.grant(event.id)
        raise Bug

    return sqlite_shop


def nothing_happened(shop: Shop) -> bool:
    return (shop.grants(), shop.recorded()) == ([], [])


def test_exception_is_reported_once_with_its_traceback(failing_shop: Shop) -> None:
    reported: list[BaseException] = []

    def report(app: Flask, exception: BaseException) -> None:
        reported.append(exception)

    with got_request_exception.connected_to(report, failing_shop.app):
        response = failing_shop.deliver()

    (error,) = reported
    assert type(error) is Bug
    assert traceback.extract_tb(error.__traceback__)[-1].name == "handler_with_a_bug"
    assert (response.status_code, response.mimetype) == (500, "text/html")
    assert nothing_happened(failing_shop)


@pytest.mark.parametrize("mode", ["TESTING", "PROPAGATE_EXCEPTIONS"])
def test_exception_propagates(failing_shop: Shop, mode: str) -> None:
    failing_shop.app.config[mode] = True

    with pytest.raises(Bug):
        failing_shop.deliver()

    assert nothing_happened(failing_shop)


def test_exception_reaches_the_error_handler_of_the_app(failing_shop: Shop) -> None:
    failing_shop.app.register_error_handler(Bug, lambda error: ("a bug", 555))

    response = failing_shop.deliver()

    assert (response.status_code, response.text) == (555, "a bug")
    assert nothing_happened(failing_shop)


def test_next_delivery_runs_the_handler_that_failed(sqlite_shop: Shop) -> None:
    tries: list[str] = []

    @sqlite_shop.webhooks.on(TYPE)
    def fails_once(event: Event) -> None:
        sqlite_shop.grant(event.id)
        tries.append(event.id)

        if len(tries) == 1:
            raise Bug

    assert sqlite_shop.deliver().status_code == 500
    assert answer(sqlite_shop.deliver()) == (200, {"received": True})
    assert (sqlite_shop.grants(), sqlite_shop.recorded()) == (["evt_1"], ["evt_1"])
    assert len(tries) == 2


def deliver_to(shop: Shop, handler: c.Callable[[Event], object]) -> TestResponse:
    """Deliver to a handler that ends with an effect and this function."""

    @shop.webhooks.on(TYPE)
    def grant(event: Event) -> None:
        shop.grant(event.id)
        handler(event)

    return shop.deliver()


def test_http_exception_is_a_failure(sqlite_shop: Shop) -> None:
    response = deliver_to(sqlite_shop, lambda event: abort(409))

    assert response.status_code == 409
    assert Conflict.description in response.text
    assert nothing_happened(sqlite_shop)


# -------------------------------------------------------------- a 2xx of someone else


@pytest.fixture
def kept_promise(caplog: pytest.LogCaptureFixture) -> c.Callable[[TestResponse], None]:
    """Checks that a 2xx of someone else has become a 500, and that the log says so."""

    def check(response: TestResponse) -> None:
        assert response.status_code == 500
        (message,) = (r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
        assert "not processed" in message

    return check


KeptPromise = c.Callable[[TestResponse], None]


def test_http_exception_with_success_status(sqlite_shop: Shop, kept_promise: KeptPromise) -> None:
    kept_promise(deliver_to(sqlite_shop, lambda event: abort(Response("fine", 200))))
    assert nothing_happened(sqlite_shop)


def test_error_handler_that_forgets_the_status(
    failing_shop: Shop, kept_promise: KeptPromise
) -> None:
    failing_shop.app.register_error_handler(Bug, lambda error: {"error": "sorry"})

    kept_promise(failing_shop.deliver())
    assert nothing_happened(failing_shop)


def test_before_request_that_answers(granting_shop: Shop, kept_promise: KeptPromise) -> None:
    granting_shop.app.before_request(lambda: "closed for maintenance")

    kept_promise(granting_shop.deliver())
    assert nothing_happened(granting_shop)


def test_promise_of_each_delivery_in_one_app_context(
    granting_shop: Shop, kept_promise: KeptPromise
) -> None:
    with granting_shop.app.app_context():
        assert granting_shop.deliver().status_code == 200

        granting_shop.app.before_request_funcs[None] = [lambda: "closed for maintenance"]
        kept_promise(granting_shop.deliver("evt_2"))

    assert granting_shop.recorded() == ["evt_1"]


def test_answer_in_place_of_one_that_was_lost(sqlite_shop: Shop, kept_promise: KeptPromise) -> None:
    def later(event: Event) -> None:
        raise RetryLater(5)

    def fail(response: Response) -> Response:
        raise Bug

    sqlite_shop.app.after_request(fail)
    sqlite_shop.app.register_error_handler(500, lambda error: "sorry")
    sqlite_shop.app.logger.disabled = True

    kept_promise(deliver_to(sqlite_shop, later))
    assert nothing_happened(sqlite_shop)


def test_before_request_that_refuses(granting_shop: Shop) -> None:
    granting_shop.app.before_request(lambda: ("closed for maintenance", 503))

    assert granting_shop.deliver().status_code == 503
    assert nothing_happened(granting_shop)
